"""Rewards of items of a group by the rule `efficiency`, without a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.agent.contract import Task
from treadle.agent.dialects.base import Dialect
from treadle.core.answers.extraction import extract_prediction
from treadle.core.answers.math_equal import Checker
from treadle.core.answers.rules import score_answer
from treadle.core.answers.score import Score
from treadle.core.errors import EngineError
from treadle.rl.rewards.base import ANSWERED, FAILED, GroupItem, RewardGroup
from treadle.rl.rewards.efficiency import EfficiencyReward
from treadle.rl.rewards.rewarded import RewardedItem, reward_items


def group_rewards(
    items: Sequence[GroupItem],
    gold: Sequence[str],
    domain: str,
    sigma_tool: float,
    sigma_length: float,
    *,
    choices: Sequence[str] = (),
    checker: Checker | None = None,
    dialect: Dialect,
    **keys: Any,
) -> list[RewardedItem]:
    """Return the rewards of all trajectories of a question; `keys` are those of the rule."""
    verdicts = [_verdict(item, gold, domain, choices, checker) for item in items]
    group = RewardGroup(
        task=Task("q1", "?", tuple(choices), domain=domain, answers=tuple(gold)),
        items=items,
        predictions=[answer for answer, _ in verdicts],
        scores=[score for _, score in verdicts],
        has_answers=True,
        dialect=dialect,
    )
    return reward_items(EfficiencyReward(sigma_tool=sigma_tool, sigma_length=sigma_length, **keys), group)


def _verdict(
    item: GroupItem, gold: Sequence[str], domain: str, choices: Sequence[str], checker: Checker | None
) -> tuple[str, Score]:
    """Return prediction and verdict, as an engine's scorer does."""
    if item.status == FAILED:
        return "", Score(0.0, False, "status")
    answer = extract_prediction({"kind": part.kind, "text": part.text} for part in item.segments)
    if item.status != ANSWERED:
        return answer, Score(0.0, False, "status")
    score = score_answer(answer, gold, choices, domain, checker=checker)
    if score.score is None:
        raise EngineError(f"an answer of a rollout could not be compared with the gold answers: {score.error}")
    return answer, score
