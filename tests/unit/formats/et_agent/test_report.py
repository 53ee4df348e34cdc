"""`treadle export et-agent report`: the published program's figures from the stored rollouts of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.tables.score_tables import new_run, put_rows, question, rollout

from treadle.cli.commands.export import export
from treadle.core.errors import ConfigError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.config import ReportSettings, ScoresOptions, ScoresSettings
from treadle.eval.entry import SCORES_STAGE
from treadle.report.entry import REPORT_STAGE

SCORES_AT = Address.parse("1/scores@base")


def score_again(run: Run, settings: ScoresSettings) -> None:
    asked = {name: (Address.parse(at),) for name, at in (("rollouts", "1/rollouts@base"), ("questions", "1/questions"))}
    execute(Instance(address=SCORES_AT, stage=SCORES_STAGE, settings=settings, inputs=asked), run, force=True)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = new_run(tmp_path / "root")
    put_rows(run, "1/questions", QUESTIONS, [question("q1", ["Paris"]), question("q2", ["5"])])
    made = [rollout("r1", "q1", [("text", "<search>a</search>")]), rollout("r2", "q2", [("text", "b")])]
    put_rows(run, "1/rollouts@base", ROLLOUTS, made)
    score_again(run, ScoresSettings(options=ScoresOptions(symbolic=False)))
    report = Address.parse("1/report")
    execute(
        Instance(address=report, stage=REPORT_STAGE, settings=ReportSettings(), inputs={"scores": (SCORES_AT,)}), run
    )
    return run


def export_to(run: Run, file: Path, *more: str) -> str:
    options = ["--run", "test", "--root", run.storage.location(), "--out", str(file), *more]
    return CliRunner().invoke(export, ["et-agent", "report", *options], catch_exceptions=False).output


def test_report_has_the_figures_of_each_model_and_data_set(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    facts = json.loads(export_to(run, file, "--json"))
    assert facts == {"file": str(file), "format": "et-agent", "instance": "1/report", "bytes": file.stat().st_size}
    figures = json.loads(file.read_bytes())["base"]["world"]
    assert (figures["average_search_calls"], figures["num_valid_answer"]) == (0.5, "2 of 2")
    with pytest.raises(ConfigError, match="already exists"):
        export_to(run, file)


def test_report_of_scores_that_were_replaced_is_refused(run: Run, tmp_path: Path) -> None:
    put_rows(run, "1/rollouts@base", ROLLOUTS, [rollout("r3", "q1", [("text", "c")])])
    score_again(run, ScoresSettings(options=ScoresOptions(symbolic=False)))
    with pytest.raises(RunError, match="1/scores@base has been rerun since the report; run the report again"):
        export_to(run, tmp_path / "figures.json")
