"""Choose the groups of a step among those of several draws: dynamic sampling (DAPO, arXiv 2503.14476).

A step draws questions until enough of their groups have rewards that differ. The questions of each draw depend only on
the seed, the step and the number of the draw, so a resumed training draws the same questions as an uninterrupted one.
Documented in docs/behaviour/rl.md. Only the standard library is imported.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from treadle.core.seeds import derive_seed
from treadle.rl.training.figures import deviation

if TYPE_CHECKING:
    from treadle.rl.rewards.rewarded import RewardedItem

G = TypeVar("G")


class NoSpread(Exception):
    """Error for a step in which, after all draws, every group has equal rewards."""


@dataclass(slots=True)
class Draws(Generic[G]):
    """Groups of the draws of a step so far.

    Attributes:
        kept: Groups whose rewards differ, in the order of the draws.
        equal: Groups with equal rewards.
        number: Number of draws.
    """

    kept: list[G] = field(default_factory=list)
    equal: list[G] = field(default_factory=list)
    number: int = 0

    def chosen(self, count: int) -> list[G]:
        """Return at most `count` groups for the step: those whose rewards differ, then those with equal rewards."""
        return [*self.kept, *self.equal][:count]

    def figures(self, count: int) -> dict[str, int]:
        """Return metrics of a step of `count` groups: draws, groups dropped for equal rewards, and surplus groups."""
        filled = max(0, min(count - len(self.kept), len(self.equal)))
        return {
            "num_draws": self.number,
            "num_dropped_groups": len(self.equal) - filled,
            "num_surplus_groups": max(0, len(self.kept) - count),
        }


def rows_of_draw(num_rows: int, per_draw: int, step: int, draw: int, seed: int) -> list[int]:
    """Return the indices of the rows of a draw (from 0) of a step (from 1).

    The first draws of all steps together pass over all rows, in an order by the seed; rows that do not fill a draw at
    the end of a pass are left out. Further draws of a step take the other rows, in an order by seed and step. No row is
    drawn twice in a step, so its last draw may be smaller; any draw after that is empty.
    """
    epoch, place = divmod(step - 1, num_rows // per_draw)
    first = _shuffled(num_rows, derive_seed(seed, "rows", epoch))[place * per_draw : (place + 1) * per_draw]
    if not draw:
        return first
    others = [row for row in _shuffled(num_rows, derive_seed(seed, "extra rows", step)) if row not in set(first)]
    return others[(draw - 1) * per_draw : draw * per_draw]


def draw_groups(
    count: int,
    max_extra: int,
    rows_of: Callable[[int], Sequence[int]],
    roll_out: Callable[[Sequence[int], int], Sequence[G]],
    rewards_of: Callable[[G], Sequence[RewardedItem]],
) -> Draws[G]:
    """Draw until `count` groups have rewards that differ, at most `max_extra` times after the first draw.

    `rows_of` returns the rows of a draw (from 0); an empty draw ends the drawing. `roll_out` gets these rows and the
    number of rows of earlier draws, and returns a group for each row. Raises NoSpread if the rewards of every group are
    equal.
    """
    draws: Draws[G] = Draws()
    num_rows = 0
    while len(draws.kept) < count and draws.number <= max_extra and (rows := rows_of(draws.number)):
        groups = roll_out(rows, num_rows)
        num_rows += len(rows)
        draws.number += 1
        for group in groups:
            (draws.kept if has_spread(rewards_of(group)) else draws.equal).append(group)
    if not draws.kept:
        raise NoSpread(
            f"in all {draws.number:,} draws the rewards of every group were equal ({len(draws.equal):,} questions); "
            "select questions whose rollouts differ, raise rl.max_extra_batches, rl.temperature or rl.group_size, or "
            "start from a policy that is sometimes right"
        )
    return draws


def has_spread(rewards: Sequence[RewardedItem]) -> bool:
    """Return whether the rewards of a group differ; a group of one counts as if they did.

    Rollouts that were not scored do not count.
    """
    scored = [reward.reward for reward in rewards if reward.scored]
    return deviation(scored) > 0.0 or (len(rewards) == 1 and bool(scored))


def _shuffled(num_rows: int, seed: int) -> list[int]:
    order = list(range(num_rows))
    random.Random(seed).shuffle(order)
    return order
