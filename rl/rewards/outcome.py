"""Reward rollouts by their score alone."""

from __future__ import annotations

from typing import ClassVar

from treadle.rl.rewards.base import Reward, RewardGroup, RewardRule


class OutcomeReward(RewardRule):
    """The score itself: correctness by the gold answers, or what an environment or a tool gave."""

    COMPARES_GROUP: ClassVar[bool] = False

    type: str = "outcome"
    """Type of the rule."""

    def rewards(self, group: RewardGroup) -> list[Reward]:
        """See `RewardRule`."""
        return outcome_rewards(group)


def outcome_rewards(group: RewardGroup) -> list[Reward]:
    """Return the scores as rewards; an item without a score has no reward, which is not the same as 0."""
    return [Reward(score.score) for score in group.scores]
