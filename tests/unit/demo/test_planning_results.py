"""What the gap demo says about two environments: means, changes, and paired accuracy."""

from __future__ import annotations

import pytest

from treadle.demo.planning_results import AnsweredQuestion, change_in_turns, paired_accuracy, planning_figures


def answer(right: bool, turns: int, critical_path_s: float | None = 0.25) -> AnsweredQuestion:
    return AnsweredQuestion(right, turns, 2, 100, 400, critical_path_s, 1.0)


ANSWERS = {
    "parallel": {"a": answer(True, 2), "b": answer(False, 2, 0.75), "c": answer(True, 2, None)},
    "sequential": {"a": answer(True, 3), "b": answer(True, 5), "c": answer(False, 4), "d": answer(True, 4)},
}


def test_each_environment_has_a_row_of_means() -> None:
    figures = planning_figures(ANSWERS)
    rows = {str(row[0]): dict(zip(figures.header, row, strict=True)) for row in figures.rows}
    assert list(rows) == ["sequential", "parallel"]
    assert (rows["parallel"]["questions"], rows["parallel"]["turns"], rows["sequential"]["turns"]) == (
        3,
        "2.00",
        "4.00",
    )
    assert rows["parallel"]["tools ms"] == "500.0", "a lost time does not count"
    assert change_in_turns(ANSWERS) == pytest.approx(-0.5)


def test_lost_times_are_unknown_not_zero() -> None:
    (row,) = planning_figures({"parallel": {"a": answer(True, 2, None)}}).rows
    assert "?" in row and change_in_turns({"parallel": {}}) is None


def test_accuracy_is_paired_by_question_within_each_run() -> None:
    found = paired_accuracy([ANSWERS, ANSWERS])
    assert found is not None and found.difference.mean == 0.0
    assert (len(found.gained), len(found.lost)) == (2, 2)
    assert paired_accuracy([{"parallel": {"a": answer(True, 2)}}]) is None
