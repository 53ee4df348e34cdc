"""Rewards of items of a group by the rule `efficiency`, without a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.agent.contract import Task
from treadle.agent.dialects.base import Dialect
from treadle.core.answers.math_equal import Checker
from treadle.rl.rewards.base import FAILED, GroupItem, RewardGroup
from treadle.rl.rewards.efficiency import EfficiencyReward
from treadle.rl.rewards.rewarded import UNFINISHED, RewardedItem, reward_items, score_item


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
    verdicts = [
        ("", UNFINISHED) if item.status == FAILED else score_item(item, gold, domain, choices=choices, checker=checker)
        for item in items
    ]
    group = RewardGroup(
        task=Task("q1", "?", tuple(choices), domain=domain, answers=tuple(gold)),
        items=items,
        predictions=[answer for answer, _ in verdicts],
        scores=[score for _, score in verdicts],
        has_answers=True,
        dialect=dialect,
    )
    return reward_items(EfficiencyReward(sigma_tool=sigma_tool, sigma_length=sigma_length, **keys), group)
