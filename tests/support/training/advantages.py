"""The advantages within a group: the reference for the contract tests of both engines.

Group-relative policy optimisation (arXiv 2402.03300). Documented in docs/behaviour/rewards.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from treadle.rl.training.figures import deviation

EPSILON = 1e-6
"""Added to the standard deviation; TRL adds 1e-4."""


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
