"""The stage `rl` over rows of two environments: what the engine gets, and what is refused and reported."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.tables.rl_tables import example_rows, rl_row, run_with_rows, train, workspace_of, write_policy
from support.tables.score_tables import question

from treadle.core.errors import ConfigError, DataError, EngineError
from treadle.core.runs.run import Run
from treadle.environments.registry import ENVIRONMENTS
from treadle.rl.training.launch import RlFolder
from treadle.rl.training.plan import RlPlan
from treadle.rl.training.summary import rl_report

GUESS = {"type": "support.rollouts.dialogues:Guess", "top": 15}
UNUSED = {"type": "support.rollouts.dialogues:Guess", "top": 7}
NAMED = {"guess": GUESS, "unused": UNUSED}
SHARES = {"default": 0.25, "guess": 0.75}
SECRET = json.dumps({"secret": 7, "note": "canary-77ab"})
OTHER = json.dumps({"note": "canary-of-no-episode"})


@pytest.fixture
def start(tmp_path: Path) -> Path:
    return write_policy(tmp_path / "start")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    guesses = [
        rl_row(f"q{index}", domain="task", question="Guess.") | {"environment": "guess"} for index in range(6, 12)
    ]
    asked = [
        *(question(f"q{index}", ["Oreb"]) | {"payload": OTHER, "split": "train"} for index in range(6)),
        *(question(f"q{index}", [], "task") | {"payload": SECRET, "split": "train", "environment": "guess"}
          for index in range(6, 12)),
        question("h0", ["Oreb"]) | {"payload": OTHER},
        question("h1", [], "task") | {"payload": SECRET, "environment": "guess"},
    ]  # fmt: skip
    return run_with_rows(tmp_path / "root", [*example_rows(6), *guesses], asked)


def test_engine_gets_the_environments_and_payloads_of_its_rows_alone(run: Run, start: Path) -> None:
    with pytest.raises(EngineError):
        train(run, start, {"at": 1, "do": "no memory"}, environments=NAMED, shares=SHARES, validation_questions=2)
    folder = RlFolder(workspace_of(run))
    job: dict[str, Any] = json.loads((folder.path / "job.json").read_text())
    assert job["environments"].keys() == {"default", "guess"}, "no row is of the third"
    plan = RlPlan.from_json(folder.plan.read_text())
    assert plan.environment_digests["guess"] == ENVIRONMENTS.parse(GUESS).digest()
    assert (plan.environment_rows, plan.num_validation_rows) == ({"default": 6, "guess": 6}, 2)
    names = pq.read_table(folder.parquet)["environment"].to_pylist()
    assert names == ["default"] * 6 + ["guess"] * 6
    assert sorted(pq.read_table(folder.validation)["environment"].to_pylist()) == ["default", "guess"]
    payloads = {row["question_key"]: row["payload"] for row in pq.read_table(folder.payloads).to_pylist()}
    assert len(payloads) == 14 and {payloads["q6"], payloads["h1"]} == {SECRET}
    assert {payloads["q0"], payloads["h0"]} == {"{}"}, "episodes of `question` read none"
    holders = {path.name for path in folder.path.rglob("*") if path.is_file() and b"canary" in path.read_bytes()}
    assert holders <= {folder.payloads.name}


def test_figures_of_each_environment_are_reported(run: Run, start: Path) -> None:
    each = {
        "default": {"num_rollouts": 4, "reward": 0.5, "score": 0.25},
        "guess": {"num_rollouts": 4, "reward": 800.0, "score": None},
    }
    record = train(
        run,
        start,
        {"environments": each},
        environments=NAMED,
        shares=SHARES,
        validation_questions=2,
        validation_steps=2,
    )
    metrics = record.metrics
    assert metrics["environment_digest.guess"] == ENVIRONMENTS.parse(GUESS).digest()
    assert (metrics["rows"], metrics["rows.default"], metrics["rows.guess"]) == (12, 6, 6)
    report = run.rows(record.outputs["checkpoint"]).read_file("report.md").decode()
    assert "800.0" in report and "Validation of the exported policy by environment" in report
    curves = run.rows(record.outputs["checkpoint"]).read_file("curves.svg")
    assert b"guess: reward" in curves and b"default: score" in curves
    log = pq.read_table(io.BytesIO(run.storage.get(record.telemetry["rl_log"]) or b"")).to_pylist()
    assert log[0]["environments"] == [{"environment": name, **figures} for name, figures in each.items()]
    (table,) = rl_report(record, run, {}).figures
    assert {"guess: reward", "guess: score", "default: reward"} <= {row[0] for row in table.rows}
    told = pq.read_table(io.BytesIO(run.storage.get(record.telemetry["rl_validation"]) or b"")).to_pylist()
    assert [(row["environment"], row["domain"]) for row in told[:4]] == [
        ("all", "all"), ("all", "qa"), ("default", "all"), ("guess", "all"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shares": {"default": 1.0}}, "6 rows are of environment guess, which has no share in rl.shares; add it"),
        ({"shares": {**SHARES, "unused": 0.0}, "prompts_per_step": 8, "mini_batch_prompts": 8}, ""),
        ({"shares": {"default": 0.1, "guess": 0.8, "unused": 0.1}}, "unused up to 1 questions of a step, but only 0"),
        ({"shares": {"guess": 0.5, "default": 0.6}}, "sum 1.1, not 1"),
        ({"shares": SHARES, "prompts_per_step": 9, "mini_batch_prompts": 9}, "guess up to 7 .*, but only 6 rows"),
    ],
)  # fmt: skip
def test_shares_without_their_rows_are_refused(run: Run, start: Path, options: dict[str, Any], said: str) -> None:
    if said:
        with pytest.raises(ConfigError, match=said):
            train(run, start, {}, environments=NAMED, **options)
    else:
        assert train(run, start, {}, environments=NAMED, **options).metrics["steps"] == 1


def test_rows_of_an_unknown_environment_are_refused(run: Run, start: Path) -> None:
    with pytest.raises(DataError, match=r"environment 'guess', which this run does not have.*\[environments\.guess\]"):
        train(run, start, {})
