"""Select questions at random: the baseline for any other method."""

from __future__ import annotations

from treadle.core.store.buckets import draw
from treadle.rl.selection.methods.base import Candidates, Ranking, SelectionMethod


class Random(SelectionMethod):
    """Take questions in a random order that depends on the seed, the phase and the keys of the questions."""

    type: str = "random"
    """A random order."""

    def rank(self, candidates: Candidates, limit: int, seed: int) -> Ranking:
        """Return a uniformly random order."""
        return Ranking(sorted(candidates.keys, key=lambda key: (draw(seed, "selected", key), key)))
