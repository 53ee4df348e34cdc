"""The choice rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.answers.choice import match_choice
from treadle.core.answers.score import score_answer

CITIES = ["Paris", "London", "Rome"]


@pytest.mark.covers("evaluation-2")
@pytest.mark.covers("evaluation-29")
@pytest.mark.parametrize(
    ("prediction", "value"),
    [("A", 1.0), ("B", 0.0), ("(A)", 1.0), ("[a]", 1.0), ("A.", 1.0), ("A) because", 1.0), ("A: x", 1.0)],
)
def test_single_letter_gold_uses_the_choice_rule(prediction: str, value: float) -> None:
    score = score_answer(prediction, ["A"], domain="qa")
    assert (score.em, score.acc, score.f1, score.score, score.scorer) == (value, value, value, value, "choice")


@pytest.mark.parametrize(
    ("prediction", "answers", "right"),
    [
        ("B", ["B"], True),
        ("london", ["B"], True),
        ("The London.", ["B"], True),
        ("B", ["London"], True),
        ("B. London", ["B"], True),
        ("**B**", ["B"], True),
        (r"\text{B}", ["B"], True),
        ("The answer is (B)", ["B"], True),
        ("either (A) or (B)", ["B"], False),
        ("Rome", ["B"], False),
        ("C", ["B"], False),
        ("D", ["B"], False),
        ("A band from London", ["A"], False),
        ("", ["B"], False),
    ],
)
def test_letter_or_option_text(prediction: str, answers: list[str], right: bool) -> None:
    assert match_choice(prediction, answers, CITIES) is right


def test_whole_option_text_goes_before_a_letter_in_front() -> None:
    assert match_choice("E. coli", ["B"], ["yeast", "E. coli", "x", "y", "z"])


def test_options_with_numbers_keep_their_punctuation() -> None:
    assert match_choice("1/2", ["A"], ["1/2", "12"])
    assert not match_choice("1/2", ["B"], ["1/2", "12"])


@pytest.mark.covers("evaluation-2")
@pytest.mark.parametrize("answers", [["(B) K+"], ["(B)", "K+"], ["B. K+"], ["B", "(B) K+"]])
@pytest.mark.parametrize(
    ("prediction", "right"),
    [
        ("B", True),
        ("(B)", True),
        ("(B) K+", True),
        ("K+", True),
        (r"\text{K+}", True),
        ("k+.", True),
        ("K-", False),
        ("K", False),
        ("A", False),
        ("(A) K+", False),
        ("Na+", False),
        ("", False),
        (".", False),
    ],
)
def test_letter_or_text_of_an_option_that_stands_in_the_question(
    answers: list[str], prediction: str, right: bool
) -> None:
    assert score_answer(prediction, answers, domain="choice").correct is right


def test_a_gold_letter_alone_has_no_text_to_be_equal_to() -> None:
    for prediction in ("", ".", "()", "$$"):
        assert not match_choice(prediction, ["(B)", "B."])


def test_option_of_a_math_question_may_lack_its_brackets() -> None:
    assert score_answer("C", [r"\text{(C)}"], domain="math").correct is True
    assert score_answer("(D)", [r"\text{(C)}"], domain="math").correct is False
    assert score_answer("y", ["x"], domain="math").scorer != "choice"


@given(st.text(max_size=80), st.lists(st.text(max_size=10), max_size=5))
def test_any_text_is_judged(prediction: str, choices: list[str]) -> None:
    assert match_choice(prediction, ["A"], choices) in (True, False)


def test_hostile_text_ends() -> None:
    for piece in ("(", "A ", " ", "*", "(A) "):
        match_choice(piece * 500_000, ["A"], CITIES)
