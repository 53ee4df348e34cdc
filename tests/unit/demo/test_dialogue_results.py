"""What the demo of dialogues says about its models."""

from __future__ import annotations

from treadle.demo.dialogue_results import Dialogue, dialogue_figures
from treadle.demo.pages.results import page_figures


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


def test_pages_have_their_mean_similarity_and_the_measure_is_named() -> None:
    figures = page_figures({"hasty": [[Dialogue(False, 0.9, 1)], [Dialogue(False, None, 1)]], "tutor": []})
    hasty, tutor = (dict(zip(figures.header, row, strict=True)) for row in figures.rows)
    assert (hasty["dialogues"], hasty["similarity x 100"], hasty["messages"]) == (2, "90.0", "1.00")
    assert str(hasty["same % [95 %]"]).startswith("0.0 [") and tutor["similarity x 100"] == "?"
    assert "EfficientNet-Lite0 and not by CLIP" in figures.note
