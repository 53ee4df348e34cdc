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
    agreement = {"calibration.rollouts": 10, "agreement": 0.3, "balanced_agreement": 0.27}
    text = report(**verdicts, **agreement)
    assert "9 tasks were made of 20 drafts, from 8 explorations of 4 seed tasks" in text
    assert "agree on 30% of 10 rollouts of seed tasks, 27% if right and wrong ones count alike." in text
    for line in ("lexical", "infeasible", "right for the grader alone", "solver"):
        assert line in text
    assert "not compared" in report(**dict.fromkeys(verdicts, 0), **{"calibration.rollouts": 0})
    assert "agree" not in report()


def test_report_says_if_the_environment_scored_all_seed_tasks_alike() -> None:
    verdicts = {f"calibration.{name}": 0 for name in ("both_right", "grader_only", "environment_only")}
    alike = {"calibration.both_wrong": 4, "calibration.without_verdict": 0, "calibration.rollouts": 4}
    text = report(**verdicts, **alike, agreement=1.0)
    assert "agree on 100% of 4 rollouts of seed tasks; the environment scored all of them wrong, so this" in text
