"""Keys of the jobs of the stage `exploration`: its journal outlives changed settings, so they hold all that counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from treadle.core.config import load_config
from treadle.core.runs.stage import JournalView, Rows
from treadle.datagen.exploration.jobs import ExplorationJobs
from treadle.datagen.exploration.settings import ExplorationSettings

ROW = {
    "question_key": "q0",
    "dataset": "sums",
    "domain": "math",
    "question": "2+2?",
    "choices": [],
    "format": None,
    "scorer": "mine",
    "search": None,
    "environment": "default",
    "answers": ["4"],
    "payload": "{}",
    "split": "train",
}


def role(name: str) -> dict[str, Any]:
    endpoints = [{"url": "http://127.0.0.1:1/v1"}]
    return {"name": name, "model": {"model": name, "endpoints": endpoints}, "sampling": {}}


def settings(**changed: Any) -> ExplorationSettings:
    data: dict[str, Any] = {
        "roles": {name: role("policy") for name in ("explorer", "summariser", "solver")},
        "environment_roles": {"human": role("tutor")},
        "grader": {"type": "qa"},
        "scorers": {"mine": {"type": "qa"}},
    }
    return load_config(ExplorationSettings, data={**data, **changed})


def calibration_key(used: ExplorationSettings) -> str:
    def rows(columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        yield {name: ROW[name] for name in columns}

    table = cast(Rows, SimpleNamespace(rows=rows, digest="q"))
    jobs = ExplorationJobs(used, {"questions": [table]}, cast(JournalView, SimpleNamespace()), accepts_failures=False)
    (job,) = jobs.calibrations()
    return job.key


@pytest.mark.parametrize(
    "changed",
    [
        {"environment_roles": {"human": role("another")}},
        {"summarizer": role("reader")},
        {"scorers": {"mine": {"type": "math"}}},
        {"grader": {"type": "math"}},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_calibration_with_another_model_or_scorer_is_another_job(changed: dict[str, Any]) -> None:
    assert calibration_key(settings(**changed)) != calibration_key(settings()) == calibration_key(settings())


def test_scorer_that_no_seed_task_names_does_not_count() -> None:
    scorers = {"mine": {"type": "qa"}, "other": {"type": "math"}}
    assert calibration_key(settings(scorers=scorers)) == calibration_key(settings())
