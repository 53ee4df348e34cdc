"""What becomes of every question: filters first, then fronts, taken until there are enough.

Pure: arrays in, arrays out. The filters apply in the order of `FATES`; documented in docs/behaviour/selection.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from treadle.core.errors import StageFailed
from treadle.rl.dispersion import Dispersion, is_mixed
from treadle.rl.pareto import rank_questions
from treadle.rl.selection_settings import Domain, SelectionOptions

FATES = (
    "selected",
    "held_out",
    "selected_before",
    "too_few_rollouts",
    "all_right",
    "all_wrong",
    "over_quota",
    "over_limit",
)
"""What can become of a question; only the first becomes a row."""
SELECTED, HELD_OUT, SELECTED_BEFORE, TOO_FEW, ALL_RIGHT, ALL_WRONG, OVER_QUOTA, OVER_LIMIT = range(len(FATES))
GRADED = "qa"
"""The domain whose correctness is an F1; in all others it is 0 or 1."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One value per question; arrays of the same length."""

    keys: Sequence[str]
    domains: Sequence[str]
    dispersion: Dispersion
    fate: np.ndarray
    """Index into FATES, uint8."""
    rank: np.ndarray
    """Front, int32; -1 for questions that a filter left out."""
    distance: np.ndarray
    """Crowding distance, inf at the boundary; nan as above."""
    place: np.ndarray
    """Place among the selected ones in the order of the selection, from 0, int64; -1 for all others."""
    quotas: Mapping[Domain, int]
    """Domain -> most questions, where each domain was ranked by itself; empty where all were ranked together."""

    @property
    def score_tool(self) -> np.ndarray:
        """S_tool."""
        return self.dispersion.score_tool

    @property
    def score_corr(self) -> np.ndarray:
        """S_corr."""
        return self.dispersion.score_corr

    def counts(self) -> dict[str, int]:
        """Questions by fate, all of FATES."""
        counts = np.bincount(self.fate, minlength=len(FATES)).tolist()
        return dict(zip(FATES, counts, strict=True))

    def pools(self) -> list[tuple[str, Choice]]:
        """What was ranked together: under quotas each domain with its questions, else all under an empty name."""
        if not self.quotas:
            return [("", self)]
        names = np.asarray(self.domains, dtype=np.str_)
        return [(domain, self._of(np.flatnonzero(names == domain))) for domain in sorted(set(self.domains))]

    def unfilled(self) -> list[tuple[str, int, int]]:
        """Domain, rows and quota where there are fewer rows than the quota has room for."""
        taken = Counter(self.domains[number] for number in np.flatnonzero(self.fate == SELECTED).tolist())
        return [(name, taken[name], quota) for name, quota in sorted(self.quotas.items()) if taken[name] < quota]

    def _of(self, numbers: np.ndarray) -> Choice:
        return replace(
            self,
            keys=[self.keys[number] for number in numbers.tolist()],
            domains=[self.domains[number] for number in numbers.tolist()],
            dispersion=Dispersion(*(values[numbers] for values in self.dispersion)),
            fate=self.fate[numbers],
            rank=self.rank[numbers],
            distance=self.distance[numbers],
            place=self.place[numbers],
            quotas={},
        )

    def facts(self, number: int) -> dict[str, Any]:
        """What `rl_rejections` says of a question, beside its data set."""
        dispersion, rank = self.dispersion, int(self.rank[number])
        return {
            "question_key": self.keys[number],
            "domain": self.domains[number],
            "reason": FATES[self.fate[number]],
            "num_rollouts": int(dispersion.num_rollouts[number]),
            "num_usable": int(dispersion.num_usable[number]),
            "mean_correctness": _finite(dispersion.mean[number]),
            "score_tool": _finite(dispersion.score_tool[number]),
            "score_corr": _finite(dispersion.score_corr[number]),
            "rank": rank if rank >= 0 else None,
            "distance": _finite(self.distance[number]),
        }


def choose(
    keys: Sequence[str],
    dispersion: Dispersion,
    domains: Sequence[str],
    *,
    options: SelectionOptions,
    held_out: np.ndarray,
    selected_before: np.ndarray,
) -> Choice:
    """Filter, rank and take. The masks (bool) say which questions are held out and which were selected before.

    Raises StageFailed where quotas are set and a domain with questions to train on has none.
    """
    domain_names = np.asarray(domains, dtype=np.str_)
    _check_quotas(set(domain_names[~held_out].tolist()), options)
    fate = _filter(dispersion, domain_names == GRADED, options, held_out, selected_before)
    rank = np.full(len(keys), -1, np.int32)
    distance = np.full(len(keys), np.nan)
    place = np.full(len(keys), -1, np.int64)
    taken = 0
    for members, limit in _pools(np.flatnonzero(fate >= OVER_QUOTA), domain_names, options):
        ranking = rank_questions(
            dispersion.score_tool[members], dispersion.score_corr[members], [keys[number] for number in members]
        )
        rank[members], distance[members] = ranking.rank, ranking.distance
        selected = members[ranking.order[:limit]]
        fate[selected] = SELECTED
        place[selected] = taken + np.arange(len(selected))
        taken += len(selected)
    return Choice(keys, domains, dispersion, fate, rank, distance, place, options.quotas)


def _check_quotas(domains: set[str], options: SelectionOptions) -> None:
    if options.quotas and (missing := sorted(domains - set(options.quotas))):
        raise StageFailed(
            f"selection.quotas names no quota for domain {missing[0]}, of which there are questions to train on; "
            "give one, 0 to leave them out"
        )


def _filter(
    dispersion: Dispersion,
    is_graded: np.ndarray,
    options: SelectionOptions,
    held_out: np.ndarray,
    selected_before: np.ndarray,
) -> np.ndarray:
    """Fate of each question if nothing is taken: OVER_LIMIT, or OVER_QUOTA with quotas, where it may be taken.

    The first filter counts.
    """
    mixed = is_mixed(dispersion.lowest, dispersion.highest, is_graded, options.mixed_f1)
    right = dispersion.lowest >= np.where(is_graded, options.mixed_f1, 1.0)
    left = OVER_QUOTA if options.quotas else OVER_LIMIT
    fate = np.where(mixed, left, np.where(right, ALL_RIGHT, ALL_WRONG)).astype(np.uint8)
    fate[dispersion.num_usable < options.min_rollouts] = TOO_FEW
    if options.exclude_previous:
        fate[selected_before] = SELECTED_BEFORE
    fate[held_out] = HELD_OUT
    return fate


def _pools(members: np.ndarray, domains: np.ndarray, options: SelectionOptions) -> list[tuple[np.ndarray, int]]:
    """Which questions are ranked against each other, and how many of them are taken."""
    if not options.quotas:
        return [(members, options.max_questions)]
    return [(members[domains[members] == domain], limit) for domain, limit in sorted(options.quotas.items())]


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
