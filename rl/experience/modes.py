"""Choose the tasks whose prompts keep experience, and the rollouts of a group that see it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable

from treadle.core.seeds import derive_seed
from treadle.core.store.buckets import draw
from treadle.rl.experience.settings import ExperienceUse


def kept_tasks(keys: Iterable[str], keep_ratio: float, seed: int) -> frozenset[str]:
    """Return int(T * keep_ratio) of the T different tasks, drawn by the seed; the order of the keys does not matter."""
    unique = set(keys)
    count = int(len(unique) * keep_ratio)
    return frozenset(heapq.nsmallest(count, unique, key=lambda key: (draw(seed, "experience", key), key)))


def hinted_rollouts(use: ExperienceUse, size: int, seed: int) -> frozenset[int]:
    """Return the indices of the rollouts of a group of `size` that see experience; `seed` is that of the group."""
    if not use.shows:
        return frozenset()
    if use.rollout_mode == "all":
        return frozenset(range(size))
    number = round(size * use.rollout_ratio)
    return frozenset(random.Random(derive_seed(seed, "experience")).sample(range(size), number))
