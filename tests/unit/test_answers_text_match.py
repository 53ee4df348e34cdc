"""Exact match, containment and token F1."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.answers.score import score_answer
from treadle.core.answers.text_match import legacy_match_text, match_text, token_f1

WORDS = st.lists(st.sampled_from(["a", "the", "cat", "dog", "Paris", "x.", "12"]), max_size=8)


@pytest.mark.covers("evaluation-2")
@pytest.mark.parametrize(
    ("prediction", "references", "em", "acc", "f1"),
    [
        ("The Eiffel Tower", ["eiffel tower"], 1, 1, 1.0),
        ("the city of New York", ["New York City", "NYC"], 0, 0, 0.8571),
        ("Barack Hussein Obama", ["Barack Obama", "Obama"], 0, 1, 0.8),
        ("cat cat dog", ["cat dog dog"], 0, 0, 0.6667),
        ("Paris.", ["Paris"], 1, 1, 1.0),
        ("yes it is", ["yes"], 0, 1, 0.0),
        ("112", ["12"], 0, 0, 0.0),
        ("anything", ["The"], 0, 0, 0.0),
        ("true", ["True"], 1, 1, 1.0),
    ],
)
def test_worked_examples(prediction: str, references: list[str], em: float, acc: float, f1: float) -> None:
    match = match_text(prediction, references)
    assert (match.em, match.acc, round(match.f1, 4)) == (em, acc, f1)


@pytest.mark.covers("evaluation-2")
@pytest.mark.parametrize(
    ("prediction", "references", "em", "acc", "f1"),
    [
        ("The Eiffel Tower", ["eiffel tower"], 1, 1, 1.0),
        ("the city of New York", ["New York City", "NYC"], 0, 0, 0.8571),
        ("Barack Hussein Obama", ["Barack Obama", "Obama"], 0, 1, 0.8),
        ("cat cat dog", ["cat dog dog"], 0, 0, 0.6667),
        ("Paris.", ["Paris"], 0, 1, 0.0),
        ("yes it is", ["yes"], 0, 1, 0.5),
        ("112", ["12"], 0, 1, 0.0),
        ("anything", ["The"], 0, 1, 0.0),
        ("true", ["True"], 1, 1, 1.0),
        ("A", ["A"], 1, 1, 0.0),
        ("B", ["A"], 0, 1, 0.0),
    ],
)
def test_published_metrics_are_reproduced(
    prediction: str, references: list[str], em: float, acc: float, f1: float
) -> None:
    match = legacy_match_text(prediction, references)
    assert (match.em, match.acc, round(match.f1, 4)) == (em, acc, f1)


@pytest.mark.covers("evaluation-3")
def test_best_of_several_references_counts() -> None:
    match = match_text("Obama", ["Barack Obama", "Obama"])
    assert (match.em, match.f1) == (1.0, 1.0)


@pytest.mark.covers("flywheel-20")
def test_right_answer_needs_more_than_the_threshold() -> None:
    near = score_answer("red green blue black white", ["red green blue black"])
    assert near.f1 == pytest.approx(8 / 9)
    assert near.correct is True
    exact = score_answer("Barack Hussein Obama", ["Barack Obama"])
    assert (exact.f1, exact.correct, exact.scorer) == (0.8, False, "qa_f1")
    assert score_answer("Barack Hussein Obama", ["Barack Obama"], f1_threshold=0.79).correct is True


def test_answers_of_articles_or_punctuation_alone_are_not_erased() -> None:
    assert match_text("the", ["The"]).em == 1.0
    assert match_text("a", ["The"]).f1 == 0.0
    assert match_text("!!!", ["The"]).f1 == 0.0
    assert match_text("???", ["!!!"]).em == 0.0


def test_yes_and_no_get_no_partial_credit() -> None:
    assert score_answer("no, yes", ["yes"]).score == 0.0
    assert score_answer("Yes.", ["yes"]).correct is True


@pytest.mark.parametrize("prediction", ["", "  \n"])
@pytest.mark.parametrize("domain", ["qa", "math", "choice"])
def test_empty_prediction_scores_nothing(prediction: str, domain: str) -> None:
    score = score_answer(prediction, [prediction or "x"], domain=domain)
    assert (score.em, score.acc, score.f1, score.score, score.correct) == (0, 0, 0, 0, False)


@given(WORDS, WORDS)
def test_f1_is_symmetric_and_bounded(left: list[str], right: list[str]) -> None:
    assert token_f1(left, right) == token_f1(right, left)
    assert 0.0 <= token_f1(left, right) <= 1.0
    assert (token_f1(left, right) == 1.0) == (sorted(left) == sorted(right))


@given(WORDS.map(" ".join), WORDS.map(" ".join))
def test_exact_match_implies_full_marks(left: str, right: str) -> None:
    match = match_text(left, [right])
    assert 0.0 <= match.f1 <= 1.0
    if match.em:
        assert match.f1 == 1.0
