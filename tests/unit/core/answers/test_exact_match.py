"""Exact match: the published normalisation, one answer or a list, and one rule for scores and rewards."""

from __future__ import annotations

import re
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agent.contract import Task
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.core.answers.exact_match import Expected, is_exact_match, normalize_exact
from treadle.core.answers.extraction import BY_CANDIDATE, extract_prediction
from treadle.core.answers.score import Score
from treadle.environments.scorers.answer import AnswerTools
from treadle.environments.scorers.em import EmScorer
from treadle.rl.rewards.base import GroupItem, RewardGroup
from treadle.rl.rewards.em import EmReward

GOLD = ("director", "film director")
WORDS = st.lists(st.sampled_from(["a", "The", "an", "Ilme", "x-y", ".", "|", "Ann's", "\u00e9", " "])).map(" ".join)


def published(text: str) -> str:
    """Normalise as the SQuAD evaluation does."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def rewarded(
    predictions: list[str], statuses: list[str], expected: Expected = "any", **facts: Any
) -> list[float | None]:
    """Return the rewards of a group of answers to one question."""
    counts = {"tool_calls": 0, "model_tokens": 1, "total_tokens": 1, **facts}
    group = RewardGroup(
        task=Task("q1", "?", (), domain="qa", answers=GOLD),
        items=[GroupItem(segments=(), status=one, **counts) for one in statuses],
        predictions=predictions,
        scores=[Score(0.5, False, "qa_f1")] * len(predictions),
        has_answers=True,
        dialect=TOOL_DIALECT,
    )
    return [reward.total for reward in EmReward(expected=expected).rewards(group)]


@pytest.mark.covers("planning-18")
@pytest.mark.parametrize(
    ("text", "expected", "right"),
    [
        ("<answer>The Director.</answer>", "any", True),
        ("<answer>director|actor</answer>", "set", False),
        ("<answer>director|actor</answer>", "any", False),
        ("<answer>director | The film director||</answer>", "any", True),
        ("<answer>film director|director</answer>", "set", True),
        ("<answer>director</answer>", "set", False),
        ("director", "any", False),
        ("<answer>actor</answer> no: <answer>director</answer>", "any", True),
        ("<answer>director</answer> no: <answer>actor</answer>", "any", False),
        ("<answer>|</answer>", "any", False),
        ("<answer>movie director</answer>", "any", False),
    ],
)
def test_scores_and_rewards_follow_one_rule(text: str, expected: Expected, right: bool) -> None:
    prediction = extract_prediction([{"kind": "text", "text": text}])
    score = EmScorer(expected=expected).compare(prediction, GOLD, (), AnswerTools())
    assert (score.score, score.correct, score.parts["em"]) == (float(right), right, float(right))
    assert rewarded([prediction], ["answered"], expected) == [float(right)]


def test_rollout_without_an_end_is_never_rewarded() -> None:
    assert rewarded(["director"] * 2, ["answered", "length"]) == [1.0, 0.0]


def test_candidate_that_stands_for_an_answer_is_rewarded_as_evaluation_scores_it() -> None:
    assert rewarded(["director", "actor"], ["max_turns"] * 2, parts={BY_CANDIDATE: 1.0}) == [1.0, 0.0]
    assert rewarded(["director"], ["max_turns"], parts={BY_CANDIDATE: 0.0}) == [0.0]


@given(WORDS)
def test_normalises_as_published_unless_nothing_is_left(text: str) -> None:
    assert normalize_exact(text) == (published(text) or normalize_exact(text))
    assert normalize_exact(normalize_exact(text)) == normalize_exact(text)


def test_articles_alone_are_not_equal() -> None:
    assert not is_exact_match("The", ["A"])
    assert is_exact_match("the the.", ["The The"])


@given(st.lists(WORDS, max_size=3), WORDS)
def test_a_set_is_never_easier_than_any(gold: list[str], prediction: str) -> None:
    whole = [part for answer in gold for part in answer.split("|")]
    assert is_exact_match(prediction, whole) or not is_exact_match(prediction, gold, "set")
