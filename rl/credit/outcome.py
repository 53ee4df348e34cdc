"""Give all tokens of a trajectory its reward compared with its group's (arXiv 2402.03300)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from treadle.rl.credit.base import CreditGroup, CreditRule
from treadle.rl.rewards.rewarded import RewardedItem
from treadle.rl.training.figures import deviation

EPSILON = 1e-6
"""Added to the standard deviation, as in verl."""


class OutcomeCredit(CreditRule):
    """(R - mean) / (std + 1e-6) within the group, for all tokens of the trajectory.

    verl computes this advantage itself from the rewards; tests compare its results with those of `group_advantages`.
    """

    type: str = "outcome"
    """Type of the rule."""

    def advantages(self, group: CreditGroup) -> list[float]:
        """See `CreditRule`."""
        if len(group.rewards) == 1:  # as verl has it, for groups of one next to a critic
            return [item.reward for item in group.rewards]
        return scored_advantages(group.rewards)


def group_advantages(rewards: Sequence[float], epsilon: float = EPSILON) -> list[float]:
    """Return (R - mean) / (std + epsilon) with the sample standard deviation (n - 1); all 0 for equal rewards.

    A group of one keeps its reward.
    """
    if len(rewards) == 1:
        return [float(rewards[0])]
    if not (spread := deviation(rewards)):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [(reward - mean) / (spread + epsilon) for reward in rewards]


def scored_advantages(rewards: Sequence[RewardedItem]) -> list[float]:
    """Return the advantages within a group; unscored items get 0, and do not count in mean and deviation."""
    scored = [one.reward for one in rewards if one.scored]
    if len(scored) < 2:
        return [0.0] * len(rewards)  # there is nothing to compare it with
    values = iter(group_advantages(scored))
    return [next(values) if one.scored else 0.0 for one in rewards]
