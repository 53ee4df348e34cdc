"""Choose pairs by score: trajectories of a task by their rewards, candidates of a turn by their advantages."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

Pair = tuple[int, int]
"""Index of the chosen item and index of the rejected item."""

_TOLERANCE = 1e-9
"""Tolerance for the rounding of rewards, which are shares of tests, in comparisons with limits such as the minimum gap.
"""


def pairs_with_best(rewards: Sequence[float | None], min_best: float = 1.0) -> list[Pair]:
    """Pair the first trajectory with the best reward with each worse one; no pair if this reward is below `min_best`.

    This is the rule of SWEET-RL for tasks with tests (section 5.1 of the paper); trajectories without a reward are
    left out.
    """
    known = [(reward, place) for place, reward in enumerate(rewards) if reward is not None]
    best = max((reward for reward, _ in known), default=None)
    if best is None or best < min_best - _TOLERANCE:
        return []
    chosen = next(place for reward, place in known if reward == best)
    return [(chosen, place) for reward, place in known if reward < best]


def pairs_by_gap(rewards: Sequence[float | None], min_gap: float) -> list[Pair]:
    """Return all pairs of trajectories whose rewards differ by at least `min_gap`, the better one chosen.

    Equal rewards give no pair.
    """
    known = [(place, reward) for place, reward in enumerate(rewards) if reward is not None]
    pairs = []
    for (first, reward), (second, other) in itertools.combinations(known, 2):
        if reward != other and abs(reward - other) >= min_gap - _TOLERANCE:
            pairs.append((first, second) if reward > other else (second, first))
    return pairs


def ends_by_score(scores: Sequence[float], size: int | None = None) -> tuple[list[int], list[int]]:
    """Return the indices of the worst and of the best candidates, each in ascending order of score.

    Each list has half of the candidates (without the middle one of an odd number), but at most `size` of them. Equal
    scores are ordered by index.
    """
    order = sorted(range(len(scores)), key=lambda place: (scores[place], place))
    count = len(order) // 2 if size is None else min(size, len(order) // 2)
    return order[:count], order[len(order) - count :]


def draw_turn_pairs(scores: Sequence[float], num_draws: int, seed: int, size: int | None = None) -> list[Pair]:
    """Draw pairs of candidates: one of the best candidates is the chosen side, one of the worst is the rejected side.

    Both sides are drawn independently and with replacement from the lists that `ends_by_score` returns for `size`.
    Pairs with equal scores are dropped, so there may be fewer than `num_draws`; the same pair may be drawn twice.
    """
    worst, best = ends_by_score(scores, size)
    if not worst:
        return []
    random_ = random.Random(seed)
    drawn = [(random_.choice(best), random_.choice(worst)) for _ in range(num_draws)]
    return [(chosen, rejected) for chosen, rejected in drawn if scores[chosen] > scores[rejected]]
