"""What a finished exploration says of itself."""

from __future__ import annotations

from typing import Any, cast

from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.datagen.exploration.summary import exploration_report


class Record:
    """The parts of a record that the report reads."""

    def __init__(self, **metrics: Any) -> None:
        self.settings = {"roles": {"solver": {"name": "big"}}}
        self.metrics = {
            "seed_tasks": 4, "explorations": 8, "steps": 90, "unreadable": 1, "drafts": 20, "status_kept": 9,
            "status_filtered": 6, "status_infeasible": 5, "filter.lexical": 6, "tokens.solver.prompt": 100,
            "tokens.solver.sampled": 20, **metrics,
        }  # fmt: skip


def report(**metrics: Any) -> str:
    made = exploration_report(cast("StageRecord", Record(**metrics)), cast("Run", None), {})
    assert made is not None
    return made.markdown()


def test_report_counts_what_became_of_drafts_and_the_agreement_of_the_grader() -> None:
    names = ("both_right", "both_wrong", "grader_only", "environment_only", "without_verdict")
    verdicts = {f"calibration.{name}": number for number, name in enumerate(names, 1)}
    text = report(**verdicts, **{"calibration.rollouts": 10, "agreement": 0.3})
    assert "9 tasks were made of 20 drafts, from 8 explorations of 4 seed tasks" in text
    assert "agree on 30% of 10 rollouts of seed tasks" in text
    for line in ("lexical", "infeasible", "right for the grader alone", "solver"):
        assert line in text
    assert "not compared" in report(**dict.fromkeys(verdicts, 0), **{"calibration.rollouts": 0})
    assert "agree" not in report()
