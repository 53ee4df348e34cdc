"""Choose the questions to train on: filter them, rank the rest in Pareto fronts, and take fronts up to the limit.

Pure functions of arrays. The filters apply in the order of `DECISIONS`. Documented in docs/behaviour/selection.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from treadle.core.errors import StageFailed
from treadle.environments.scorers.outcome import SUCCESS_SCORE
from treadle.rl.selection.dispersion import GRADED, TASK, Dispersion, is_mixed
from treadle.rl.selection.pareto import rank_questions
from treadle.rl.selection.settings import Domain, SelectionOptions

DECISIONS = (
    "selected",
    "held_out",
    "selected_before",
    "too_few_rollouts",
    "all_right",
    "all_wrong",
    "over_quota",
    "over_limit",
)
"""Possible outcomes for a question, in the order of precedence; only a question with the first one becomes a row."""
SELECTED, HELD_OUT, SELECTED_BEFORE, TOO_FEW, ALL_RIGHT, ALL_WRONG, OVER_QUOTA, OVER_LIMIT = range(len(DECISIONS))


@dataclass(frozen=True, slots=True)
class Choice:
    """Result of a selection: one value per question, in sequences and arrays of the same length."""

    keys: Sequence[str]
    domains: Sequence[str]
    dispersion: Dispersion
    decisions: np.ndarray
    """Indices into DECISIONS, uint8."""
    rank: np.ndarray
    """Pareto front, int32; -1 for questions that a filter removed."""
    distance: np.ndarray
    """Crowding distance, float64; inf at the boundary of a front, nan for questions that a filter removed."""
    place: np.ndarray
    """Position in the order of selection, from 0, int64; -1 for questions that are not selected."""
    quotas: Mapping[Domain, int]
    """Domain -> quota, if each domain was ranked separately; empty if all questions were ranked together."""

    def counts(self) -> dict[str, int]:
        """Return the number of questions for each decision in DECISIONS, zeros included."""
        counts = np.bincount(self.decisions, minlength=len(DECISIONS)).tolist()
        return dict(zip(DECISIONS, counts, strict=True))

    def pools(self) -> list[tuple[str, Choice]]:
        """Return the sets of questions that were ranked together, each with its domain.

        Under quotas there is one set per domain; otherwise one set of all questions, with an empty name.
        """
        if not self.quotas:
            return [("", self)]
        names = np.asarray(self.domains, dtype=np.str_)
        return [(domain, self._of(np.flatnonzero(names == domain))) for domain in sorted(set(self.domains))]

    def unfilled(self) -> list[tuple[str, int, int]]:
        """Return (domain, number of rows, quota) for each quota that is not full."""
        taken = Counter(self.domains[number] for number in np.flatnonzero(self.decisions == SELECTED).tolist())
        return [(name, taken[name], quota) for name, quota in sorted(self.quotas.items()) if taken[name] < quota]

    def _of(self, numbers: np.ndarray) -> Choice:
        return replace(
            self,
            keys=[self.keys[number] for number in numbers.tolist()],
            domains=[self.domains[number] for number in numbers.tolist()],
            dispersion=Dispersion(*(values[numbers] for values in self.dispersion)),
            **{name: getattr(self, name)[numbers] for name in ("decisions", "rank", "distance", "place")},
            quotas={},
        )

    def facts(self, number: int) -> dict[str, Any]:
        """Return the columns of `rl_rejections` for a question, except its data set."""
        dispersion, rank = self.dispersion, int(self.rank[number])
        return {
            "question_key": self.keys[number],
            "domain": self.domains[number],
            "reason": DECISIONS[self.decisions[number]],
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
    """Filter the questions, rank the rest and select up to the limit or the quotas.

    The masks (bool, one value per question) mark questions that are held out and those that an earlier phase selected.
    Raises StageFailed if quotas are set and a domain with training questions has none.
    """
    domain_names = np.asarray(domains, dtype=np.str_)
    _check_quotas(set(domain_names[~held_out].tolist()), options)
    decisions = _filter(dispersion, domain_names, options, held_out, selected_before)
    rank = np.full(len(keys), -1, np.int32)
    distance = np.full(len(keys), np.nan)
    place = np.full(len(keys), -1, np.int64)
    taken = 0
    for members, limit in _pools(np.flatnonzero(decisions >= OVER_QUOTA), domain_names, options):
        ranking = rank_questions(
            dispersion.score_tool[members], dispersion.score_corr[members], [keys[number] for number in members]
        )
        rank[members], distance[members] = ranking.rank, ranking.distance
        selected = members[ranking.order[:limit]]
        decisions[selected] = SELECTED
        place[selected] = taken + np.arange(len(selected))
        taken += len(selected)
    return Choice(keys, domains, dispersion, decisions, rank, distance, place, options.quotas)


def _check_quotas(domains: set[str], options: SelectionOptions) -> None:
    if options.quotas and (missing := sorted(domains - set(options.quotas))):
        raise StageFailed(
            f"selection.quotas has no quota for domain {missing[0]}, which has questions to train on; "
            "add one (0 leaves them out)"
        )


def _filter(
    dispersion: Dispersion,
    domains: np.ndarray,
    options: SelectionOptions,
    held_out: np.ndarray,
    selected_before: np.ndarray,
) -> np.ndarray:
    """Return the decision of each question before any is selected; the first filter that matches decides.

    Questions that pass all filters get OVER_QUOTA if quotas are set, else OVER_LIMIT.
    """
    mixed = is_mixed(dispersion.lowest, dispersion.highest, domains, options.mixed_f1)
    enough = np.where(domains == GRADED, options.mixed_f1, 1.0)
    right = np.where(domains == TASK, dispersion.lowest > SUCCESS_SCORE, dispersion.lowest >= enough)
    left = OVER_QUOTA if options.quotas else OVER_LIMIT
    decisions = np.where(mixed, left, np.where(right, ALL_RIGHT, ALL_WRONG)).astype(np.uint8)
    decisions[dispersion.num_usable < options.min_rollouts] = TOO_FEW
    if options.exclude_previous:
        decisions[selected_before] = SELECTED_BEFORE
    decisions[held_out] = HELD_OUT
    return decisions


def _pools(members: np.ndarray, domains: np.ndarray, options: SelectionOptions) -> list[tuple[np.ndarray, int]]:
    """Return the sets of questions that are ranked together, each with the number of questions to select from it."""
    if not options.quotas:
        return [(members, options.max_questions)]
    return [(members[domains[members] == domain], limit) for domain, limit in sorted(options.quotas.items())]


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
