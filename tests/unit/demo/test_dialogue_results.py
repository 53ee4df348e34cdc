"""What the demo of dialogues says about its models."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tables.score_tables import new_run, put_rows, score

from treadle.core.errors import RunError
from treadle.demo.dialogue_results import Dialogue, dialogue_figures, dialogues_of
from treadle.demo.pages.results import page_figures
from treadle.demo.programs.tasks import HELDOUT
from treadle.eval.statistics import wilson_interval
from treadle.eval.tables import SCORES


def test_each_model_has_a_row_of_shares_and_means() -> None:
    solved, partly, open_ = Dialogue(True, 1.0, 3), Dialogue(False, 0.4, 2), Dialogue(False, None, 4)
    figures = dialogue_figures({"start": [[partly, open_], [solved, partly]], "policy": [[solved], [solved]]})
    start, policy = (dict(zip(figures.header, row, strict=True)) for row in figures.rows)
    assert str(start["held-out tasks"]).startswith("start (SmolLM2-135M")
    assert (start["dialogues"], start["tests passed %"], start["messages"]) == (4, "60.0", "2.75")
    assert str(start["solved % [95 %]"]).startswith("25.0 [")
    assert str(policy["solved % [95 %]"]).startswith("100.0 [") and policy["messages"] == "3.00"


def test_model_without_dialogues_has_unknown_figures() -> None:
    (row,) = dialogue_figures({"mine": []}).rows
    assert row == ("mine", 0, "?", "?", "?")


def test_dialogues_without_a_passed_test_and_their_number_count() -> None:
    (row,) = dialogue_figures({"mine": [[Dialogue(True, 1.0, 1), Dialogue(False, 0.0, 1)]]}).rows
    low, high = (100 * border for border in wilson_interval(0.5, 2))
    assert row[2:4] == (f"50.0 [{low:.1f}, {high:.1f}]", "50.0")


def test_only_dialogues_about_held_out_tasks_are_read(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with pytest.raises(RunError, match=r"no scores of base in iteration 1"):
        dialogues_of(run, "base")
    empty = {one.name: None for one in SCORES.schema if one.nullable}
    rows = [
        empty | score(f"{task}{index}", task, correct) | {"dataset": dataset, "num_turns": 3, "sample_index": index}
        for task, index, dataset, correct in (("a", 0, HELDOUT, True), ("a", 1, HELDOUT, False), ("b", 0, "x", True))
    ]
    put_rows(run, "1/scores@base", SCORES, rows)
    found = dialogues_of(run, "base")
    assert {key: [one.is_solved for one in dialogues] for key, dialogues in found.items()} == {"a": [True, False]}
    assert found["a"][0].num_turns == 3


def test_pages_have_their_mean_similarity_and_the_measure_is_named() -> None:
    figures = page_figures({"hasty": [[Dialogue(False, 0.9, 1)], [Dialogue(False, None, 1)]], "tutor": []})
    hasty, tutor = (dict(zip(figures.header, row, strict=True)) for row in figures.rows)
    assert (hasty["dialogues"], hasty["similarity x 100"], hasty["messages"]) == (2, "90.0", "1.00")
    assert str(hasty["same % [95 %]"]).startswith("0.0 [") and tutor["similarity x 100"] == "?"
    assert "EfficientNet-Lite0 and not by CLIP" in figures.note
