"""Extraction of predictions from what an agent wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.answers.extraction import extract_prediction, last_box

MARKUP = ["<answer>", "</answer>", r"\boxed{", r"\fbox{", r"\text{", "{", "}", "\\", r"\{", r"\}", "7", " ", "a"]


def _segments(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"kind": kind, "text": text} for kind, text in pairs]


def _extracted(text: str) -> str:
    return extract_prediction(_segments(("text", text)))


@pytest.mark.covers("evaluation-1")
@pytest.mark.covers("flywheel-19")
@pytest.mark.parametrize(
    ("text", "prediction"),
    [
        (r"<answer>so \boxed{42} it is</answer>", "42"),
        ("<answer>Paris</answer>", "Paris"),
        (r"no block but \boxed{\text{Evelyn}}", "Evelyn"),
        ("<answer>first</answer> x <answer>second</answer>", "second"),
        (r"<answer>\boxed{\text{Paris}}</answer>", "Paris"),
        (r"<answer>\boxed{\frac{1}{\sqrt{2}}}</answer>", r"\frac{1}{\sqrt{2}}"),
        (r"<answer>\boxed{1} or \boxed{2}</answer>", "2"),
        (r"<answer>\fbox{3}</answer>", "3"),
        (r"<answer>\fbox{3} and \boxed{4} and \fbox{5}</answer>", "4"),
        (r"<answer>\boxed{\left\{1,2\right.}</answer>", r"\left\{1,2\right."),
        (r"<answer>\boxed{\text{a} + \text{b}}</answer>", r"\text{a} + \text{b}"),
        (r"<answer>\\boxed{6}</answer>", "6"),
        ("<answer>\n  Paris \n</answer>", "Paris"),
        ("<answer></answer>", ""),
        (r"\boxed{5} <answer></answer>", "5"),
        ("nothing here", ""),
        ("", ""),
    ],
)
def test_prediction_comes_from_the_last_answer(text: str, prediction: str) -> None:
    assert _extracted(text) == prediction


@pytest.mark.covers("evaluation-1")
@pytest.mark.parametrize("text", [r"<answer>\boxed{3", r"<answer>\boxed{3</answer>", r"\boxed{3", r"\boxed{{3}"])
def test_unclosed_box_is_not_an_answer(text: str) -> None:
    assert _extracted(text) == ""


@pytest.mark.covers("evaluation-1")
def test_boxes_and_answers_in_results_are_ignored() -> None:
    result = ("result", r"<result>\boxed{7} <answer>8</answer></result>")
    assert extract_prediction(_segments(("think", "<think>hm</think>"), ("search", "<search>q</search>"), result)) == ""
    assert extract_prediction(_segments(("think", r"\boxed{1}"), result, ("text", "unsure"))) == "1"
    assert extract_prediction(_segments(result, ("answer", "<answer>9</answer>"))) == "9"


def test_boxes_and_answers_do_not_span_a_result() -> None:
    segments = _segments(("text", r"<answer>\boxed{"), ("result", "x"), ("text", "5}</answer>"))
    assert extract_prediction(segments) == ""


@given(st.text(max_size=200) | st.lists(st.sampled_from(MARKUP), max_size=40).map("".join))
def test_extraction_never_raises_and_strips_whitespace(text: str) -> None:
    prediction = _extracted(text)
    assert prediction == prediction.strip()
    assert prediction in text


@given(st.text(alphabet=st.characters(exclude_characters="\\{}<>", exclude_categories=["Cs"]), max_size=60))
def test_boxed_content_round_trips(content: str) -> None:
    assert last_box(f"{{x \\boxed{{{content}}} y}}") == content.strip()
    assert _extracted(f"<answer>it is \\boxed{{{content}}}</answer>") == content.strip()


def test_hostile_text_is_scanned_in_one_pass() -> None:
    for piece in ("\\", r"\boxed{", "{", "}", "<answer>", r"\boxed ", "</answer>"):
        _extracted(piece * (1_000_000 // len(piece)))
