"""The stage `scores` with real symbolic workers, working and broken."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.tables.score_tables import question, rollout, score_rows

from treadle.core.errors import StageFailed
from treadle.eval.config import ScoresOptions


def _algebra(number: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return `number` rollouts that need algebra to be found wrong or (the first) right, and one that needs none."""
    questions = [question("q1", ["x+1"], "math"), question("q2", ["7"], "math")]
    hard = [rollout(f"r{n}", "q1", [("answer", f"<answer>1+x+{n}</answer>")], domain="math") for n in range(number)]
    easy = [rollout("s", "q2", [("answer", "<answer>7</answer>")], domain="math")]
    return questions, hard + easy


@pytest.mark.parametrize("workers", [1, 2])
def test_algebra_decides_answers_that_cheaper_rules_leave_undecided(tmp_path: Path, workers: int) -> None:
    rows, _ = score_rows(tmp_path, *_algebra(3), ScoresOptions(symbolic_workers=workers))
    assert [row["correct"] for row in rows] == [True, False, False, True]
    assert [row["scorer"] for row in rows] == ["math_symbolic"] * 3 + ["math_text"]


def test_answers_that_algebra_cannot_compare_are_counted_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    questions = [question("q", [r"x+\pi"], "math")]
    said = [r"\pi+x", "2+x", r"\boxed{\frac{}{\frac}}", r"\prod_{k=1}^{10^8} k"]
    rows, metrics = score_rows(
        tmp_path,
        questions,
        [rollout(f"r{n}", "q", [("answer", f"<answer>{text}</answer>")], domain="math") for n, text in enumerate(said)],
        ScoresOptions(),
    )
    assert [row["correct"] for row in rows] == [True, False, False, False]
    assert [row["scorer"] for row in rows[:3]] == ["math_symbolic", "math_symbolic", "math_symbolic_unparsable"]
    assert rows[3]["scorer"] in ("math_symbolic_error", "math_symbolic_limit")
    assert (metrics["num_symbolic_undecided"], metrics["scorer_math_symbolic_unparsable"]) == (2, 1)
    assert "computer algebra could not decide 2 of 4 comparisons" in caplog.text


@pytest.mark.parametrize("interpreter", ["/bin/false", "/nonexistent/python"])
def test_failed_scorer_leaves_a_null_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interpreter: str
) -> None:
    monkeypatch.setattr(sys, "executable", interpreter)
    rows, metrics = score_rows(tmp_path, *_algebra(1), ScoresOptions(max_error_rate=0.5))
    assert [(row["correct"], row["score"], row["efficiency"]) for row in rows] == [(None, None, None), (True, 1.0, 1.0)]
    assert "did not start" in rows[0]["error"] and rows[1]["error"] is None
    assert (metrics["num_scorer_failed"], metrics["accuracy"]) == (1, 1.0)


def test_too_many_failed_verdicts_fail_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StageFailed, match=r"3 of 4 rollouts have no verdict.*did not start"):
        score_rows(tmp_path, *_algebra(3), ScoresOptions())
