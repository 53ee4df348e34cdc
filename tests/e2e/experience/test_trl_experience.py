"""RL by real TRL with a pool of experience that grows: hints in half of each group, and updates paid once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.experience.scripted_author import ScriptedAuthor, roles, valid
from support.servers.scripted_server import served
from support.training import trl_jobs

from treadle.core.engines.training import EngineOptions
from treadle.rl.experience.files import ExperienceFiles
from treadle.rl.experience.record import Experience
from treadle.rl.experience.settings import ExperienceOptions, ExperienceSettings
from treadle.rl.training.launch import EngineJob, RlFolder, reinforce

USE = {"rollout_mode": "mixed", "update_steps": 1, "template": "{experience}"}
INITIAL = Experience("strategy", "2 3 4 5 1 6", "add")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RlFolder]:
    """Yield a reinforcement's folder, with its rows."""
    made = RlFolder(tmp_path / "training")
    made.logs.mkdir(parents=True)
    trl_jobs.write_rows(made.parquet)
    yield made
    shutil.rmtree(made.path, ignore_errors=True)


def taught(shown: dict[str, Any]) -> list[dict[str, str]]:
    """Write a record that fits the task, of the kind that its rollouts support."""
    kind = "strategy" if any(one["score"] > 0.5 for one in shown["rollouts"]) else "lesson"
    digits = "".join(filter(str.isdigit, shown["task"]))
    return [{"kind": kind, "situation": shown["task"], "advice": f"say {digits} aloud"}]


@pytest.mark.covers("service-26")
def test_training_shows_experience_to_half_of_each_group_and_learns_from_its_steps(
    folder: RlFolder, policy: Path
) -> None:
    trl_jobs.write_rows(folder.validation, 2)
    options: dict[str, Any] = {"num_epochs": 1, "learning_rate": 1e-3, "max_prompt_tokens": 300}
    plan = trl_jobs.make_plan(num_validation_rows=2, experience=USE, **options)
    author = ScriptedAuthor(taught, valid)
    with served(author) as server:
        summariser, validator = roles(server.url)
        settings = ExperienceSettings(summariser=summariser, validator=validator, options=ExperienceOptions())
        files = ExperienceFiles(folder.experience, settings)
        files.put_initial([INITIAL])
        job = EngineJob(
            model=str(policy),
            environments=trl_jobs.environments_json(),
            interpreter=trl_jobs.interpreter(),
            experience=files.as_job(),
        )
        done = reinforce(folder, plan, job, EngineOptions(variant="cpu"))
    assert [(step.hinted, step.hint_cut) for step in done.steps] == [(0.5, 0.5)] * 2
    # Two questions are in each step, and each gives a record for the next one.
    assert [step.num_experiences for step in done.steps] == [1, 3]
    assert len(files.records(before_step=3)) == 5
    assert sorted(role for role, _ in author.shown) == ["summariser"] * 4 + ["validator"] * 4
    assert len(set(author.asked)) == 8
    rows = [orjson.loads(line) for path in sorted(folder.rollouts.glob("*.jsonl")) for line in path.open("rb")]
    hinted: dict[tuple[int, str], int] = {}
    for row in rows:
        assert INITIAL.advice not in row["input"]
        hinted[row["step"], row["group"]] = hinted.get((row["step"], row["group"]), 0) + ("hint:cut" in row["notes"])
    assert set(hinted.values()) == {2} and len(hinted) == 4
    assert done.validations, "which see no experience"
