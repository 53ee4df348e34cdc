"""Which result an export takes if a run has several, of iterations, phases and models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.tables.score_tables import put_rows
from support.tables.viewer_run import agent_row, filled, put_from, question_row

from treadle.cli.commands.export import export
from treadle.core.config import Section
from treadle.core.errors import ConfigError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.tables import CHECKPOINTS
from treadle.datagen.questions.tables import QUESTIONS
from treadle.datagen.sft_rows.tables import SFT_ROWS
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.tables import SCORES


class Sampled(Section):
    environment: QuestionSettings = QuestionSettings()
    checkpoint: bool = False


def sample(run: Run, address: str, checkpoint: str | None = None, imported_from: str | None = None) -> None:
    """One rollout, in all instances the same unless they read a checkpoint."""
    place = Address.parse(address)

    def write(context: StageContext) -> Mapping[str, Any]:
        context.write("rollouts", [agent_row(ROLLOUTS, "k1", "q1", ("answer", "x"))])
        return {"imported_from": imported_from} if imported_from else {}

    read = {"questions": (Address(1, "questions"),)}
    read |= {"checkpoint": (Address.parse(checkpoint),)} if checkpoint else {}
    stage = Stage(
        name="rollouts", version=1, settings=Sampled, consumes={kind: kind for kind in read},
        produces=(ROLLOUTS,), run=write,
    )  # fmt: skip
    execute(Instance(address=place, stage=stage, settings=Sampled(), inputs=read), run)


def score(run: Run, address: str, right: bool) -> None:
    """Write the verdict on it."""
    place = Address.parse(address)
    row = filled(
        SCORES, rollout_key="k1", question_key="q1", dataset="world", domain="qa", model=place.qualifier,
        status="answered", correct=right, score=float(right), prediction="x", judges="{}", scorer="qa_f1",
    )  # fmt: skip
    rollouts = Address(place.iteration, "rollouts", place.qualifier)
    put_from(run, address, {"scores": [row], "judgements": []}, {"rollouts": rollouts})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run.create(tmp_path / "outputs", "first", {}, {})
    put_rows(run, "1/questions", QUESTIONS, [question_row("q1", "Which river?")])
    return run


def command(run: Run, *arguments: str) -> Result:
    options = [*arguments, "--run", "first", "--root", run.storage.location()]
    return CliRunner().invoke(export, options, catch_exceptions=False)


def test_model_name_ending_in_a_number_is_not_a_phase(run: Run, tmp_path: Path) -> None:
    for name in ("base", "qwen-72"):
        sample(run, f"1/rollouts@{name}")
    with pytest.raises(RunError, match="1/rollouts@base, 1/rollouts@qwen-72; name one of them"):
        command(run, "dataset", "rollouts", "--out", str(tmp_path / "out"))


def test_last_phase_is_exported_but_not_before_a_model_of_the_same_iteration(run: Run, tmp_path: Path) -> None:
    for place in ("1/rollouts@base", "2/rollouts@phase-2", "2/rollouts@phase-10"):
        sample(run, place)
    assert "of 2/rollouts@phase-10" in command(run, "dataset", "rollouts", "--out", str(tmp_path / "out")).output
    sample(run, "2/rollouts@tutor")
    with pytest.raises(RunError, match="2/rollouts@phase-10, 2/rollouts@tutor; name one of them"):
        command(run, "dataset", "rollouts", "--out", str(tmp_path / "more"))


@pytest.mark.parametrize("name", ["rollouts.json", "rollouts.jsonl", "rollouts.parquet"])
def test_folder_is_not_named_like_a_file(run: Run, tmp_path: Path, name: str) -> None:
    sample(run, "1/rollouts@base")
    with pytest.raises(ConfigError, match=f"{name} is a file, but the export is a folder"):
        command(run, "dataset", "rollouts", "--out", str(tmp_path / name))
    assert not (tmp_path / name).exists()


def test_rollouts_have_the_verdicts_of_their_own_iteration(run: Run, tmp_path: Path) -> None:
    for iteration in (1, 2):
        sample(run, f"{iteration}/rollouts@base")
        score(run, f"{iteration}/scores@base", right=iteration == 2)
    for iteration, verdict in ((1, 0.0), (2, 1.0)):
        out = tmp_path / str(iteration)
        command(run, "et-agent", "rollouts", "--instance", f"{iteration}/rollouts@base", "--out", str(out))
        assert json.loads((out / "rollouts.json").read_text())[0]["correctness"] == [verdict]


def checkpoint(run: Run) -> None:
    """Make 1/sft hold one."""
    put_from(run, "1/sft_rows", {"sft_rows": [filled(SFT_ROWS, rollout_key="p1")]}, {})
    facts = {"name": "1/sft", "base_model": "embedded", "versions": "{}"}
    put_from(run, "1/sft", {"checkpoint": [filled(CHECKPOINTS, **facts)]}, {})


def test_reused_scores_appear_on_a_card_once(run: Run, tmp_path: Path) -> None:
    checkpoint(run)
    for iteration in (1, 2):
        sample(run, f"{iteration}/rollouts@phase-1", checkpoint="1/sft")
        score(run, f"{iteration}/scores@phase-1", right=True)
    command(run, "model", "--out", str(tmp_path / "model"))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "1/scores@phase-1" in card and "2/scores@phase-1" not in card


def test_scores_of_imported_rollouts_are_not_shown_for_a_checkpoint(run: Run, tmp_path: Path) -> None:
    checkpoint(run)
    sample(run, "1/rollouts@phase-1", checkpoint="1/sft", imported_from="foreign.json")
    score(run, "1/scores@phase-1", right=True)
    command(run, "model", "--out", str(tmp_path / "model"))
    assert "This run has no scores of this checkpoint" in (tmp_path / "model" / "README.md").read_text()
