"""A training with verl begun and ended, verl's process played by a small program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.training.verl_e2e import prepare_folder
from support.training.verl_plans import verl_plan

from treadle.core.engines.events import EventFile
from treadle.core.errors import EngineError
from treadle.rl.engine.errors import BadPlan
from treadle.rl.engine.verl import commands as verl_commands
from treadle.rl.engine.verl import compose as verl_compose
from treadle.rl.engine.verl.folder import VerlFolder
from treadle.rl.engine.verl.metrics_follower import Follower

NEVER_ENDS = """
import os, pathlib, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(os.environ["VERL_FILE_LOGGER_PATH"]).touch()
while True:
    signal.pause()
"""


class Failing(Follower):
    """Fails once verl has logged something."""

    def poll(self) -> None:
        """See above."""
        if (self.folder.path / "metrics.jsonl").exists():
            raise EngineError("half of the groups failed")


def test_groups_of_a_killed_attempt_are_deleted(tmp_path: Path) -> None:
    job = prepare_folder(tmp_path)
    folder = VerlFolder.of_job(job)
    folder.write_group(31, "killed", [{"row": {}}], validation=False)
    folder.fail_group(30, "killed", "gone", validation=True)
    folder.environment_failure.write_text("gone")
    verl_commands.prepare(job, verl_plan(), folder, [])
    assert folder.read_groups(31, validation=False) == [] and not folder.groups.exists()
    assert not folder.environment_failure.exists() and folder.files(job).rows.is_file()


def test_rows_that_verl_would_skip_are_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = prepare_folder(tmp_path)
    counted: list[Path] = []

    def keeps_three(config: object, rows: Path, model: Path) -> int:
        counted.append(rows)
        return 3

    monkeypatch.setattr(verl_compose, "compose_config", lambda overrides: None)
    monkeypatch.setattr(verl_compose, "count_kept_rows", keeps_three)
    with pytest.raises(BadPlan, match="verl keeps 3 of 4 rows: .*rl.max_prompt_tokens = 400"):
        verl_commands.check(job, EventFile(tmp_path / "events.jsonl"))
    assert counted == [tmp_path / "verl" / "train.parquet"] and not (tmp_path / "events.jsonl").exists()
    counted.clear()
    plan = {**job["plan"], "num_rows": 3, "num_validation_rows": 4}
    with pytest.raises(BadPlan, match="verl keeps 3 of 4 validation questions"):
        verl_commands.check({**job, "plan": plan, "validation": job["rows"]}, EventFile(tmp_path / "events.jsonl"))
    assert [path.name for path in counted] == ["train.parquet", "valid.parquet"]


def test_process_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl_commands, "_POLL_S", 0.01)
    monkeypatch.setattr(verl_commands, "_GRACE_S", 0.0)
    events = EventFile(tmp_path / "events.jsonl")
    follower = Failing(verl_plan(), VerlFolder(tmp_path), tmp_path, tmp_path, events, 0)
    with pytest.raises(EngineError, match="half of the groups failed"):
        verl_commands._follow([sys.executable, "-c", NEVER_ENDS], tmp_path / "metrics.jsonl", follower)
