"""Select by Pareto fronts of the two deviations, the method of ET-Agent (arXiv 2601.06860)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from treadle.rl.selection.methods.base import Candidates, Ranking, SelectionMethod
from treadle.rl.selection.methods.pareto_fronts import rank_questions


class Pareto(SelectionMethod):
    """Take the questions whose rollouts differ most in calls and in correctness, front by front."""

    GROUP: ClassVar[str] = "front"
    PARTS: ClassVar[Mapping[str, str]] = {
        "distance": "crowding distance in its front; none at the boundary",
        "is_boundary": "1 at an end of its front, where the distance is infinite",
    }

    def rank(self, candidates: Candidates, limit: int, seed: int) -> Ranking:
        """Return the fronts one after another, each in rounds of one question per distinct point."""
        figures, keys = candidates.figures, candidates.keys
        found = rank_questions(figures.score_tool, figures.score_corr, keys)
        parts = {"distance": found.distance, "is_boundary": np.isinf(found.distance).astype(np.float64)}
        return Ranking([keys[number] for number in found.order.tolist()], found.rank, parts)
