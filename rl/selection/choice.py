"""Choose the questions to train on: filter them, let the selection method order the rest, and take the first ones.

Pure functions of arrays. The filters apply in the order of `DECISIONS`. Documented in docs/behaviour/selection.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from treadle.core.errors import StageFailed
from treadle.core.tables import part_items
from treadle.core.untrusted.concealment import exits_as_errors
from treadle.core.untrusted.sanitize import one_line
from treadle.environments.scorers.outcome import SUCCESS_SCORE
from treadle.rl.selection.dispersion import BINARY, GRADED, Dispersion, is_mixed
from treadle.rl.selection.methods.base import Candidates, Ranking, SelectionMethod
from treadle.rl.selection.settings import SelectionOptions

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
    method: SelectionMethod
    """Method that ordered the questions."""
    rank: np.ndarray
    """Number of each question's group, such as its Pareto front, int32; -1 for questions that a filter removed, and
    for all if the method has no groups."""
    parts: Mapping[str, np.ndarray]
    """Name of a number that the method declares in `PARTS` -> its value for each question, float64; nan if a filter
    removed the question."""
    place: np.ndarray
    """Position in the order of selection, from 0, int64; -1 for questions that are not selected."""
    quotas: Mapping[str, int]
    """Domain -> quota, if each domain was ranked separately; empty if all questions were ranked together."""

    @property
    def ranked(self) -> np.ndarray:
        """Mask of the questions that passed the filters, bool."""
        mask: np.ndarray = (self.decisions == SELECTED) | (self.decisions >= OVER_QUOTA)
        return mask

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
        """Return (domain, number of selected questions, quota) for each quota that is not full."""
        taken = Counter(self.domains[number] for number in np.flatnonzero(self.decisions == SELECTED).tolist())
        return [(name, taken[name], quota) for name, quota in sorted(self.quotas.items()) if taken[name] < quota]

    def _of(self, numbers: np.ndarray) -> Choice:
        return replace(
            self,
            keys=[self.keys[number] for number in numbers.tolist()],
            domains=[self.domains[number] for number in numbers.tolist()],
            dispersion=Dispersion(*(values[numbers] for values in self.dispersion)),
            **{name: getattr(self, name)[numbers] for name in ("decisions", "rank", "place")},
            parts={name: values[numbers] for name, values in self.parts.items()},
            quotas={},
        )

    def facts(self, number: int) -> dict[str, Any]:
        """Return the columns of `rl_rejections` for a question, except its data set."""
        dispersion = self.dispersion
        return {
            "question_key": self.keys[number],
            "domain": self.domains[number],
            "reason": DECISIONS[self.decisions[number]],
            "num_rollouts": int(dispersion.num_rollouts[number]),
            "num_usable": int(dispersion.num_usable[number]),
            "mean_correctness": _finite(dispersion.mean[number]),
            "score_tool": _finite(dispersion.score_tool[number]),
            "score_corr": _finite(dispersion.score_corr[number]),
            **self.place_facts(number),
        }

    def place_facts(self, number: int) -> dict[str, Any]:
        """Return the columns `rank` (group number or None) and `parts` (numbers) that the method gave a question."""
        rank = int(self.rank[number])
        return {
            "rank": rank if rank >= 0 else None,
            "parts": part_items({name: float(values[number]) for name, values in self.parts.items()}),
        }


def choose(
    keys: Sequence[str],
    dispersion: Dispersion,
    domains: Sequence[str],
    *,
    options: SelectionOptions,
    held_out: np.ndarray,
    selected_before: np.ndarray,
    spans: np.ndarray | None = None,
    seed: int = 0,
) -> Choice:
    """Filter the questions, let the selection method order the rest and select up to the limit or the quotas.

    `held_out` and `selected_before` (bool, one value per question) mark questions that are held out, and those that an
    earlier phase selected. `spans` (float64, one value per question) has the range of rewards in the question's
    environment; if it is given, the method gets deviations of correctness divided by it, so that rewards of different
    scales can be compared. Raises StageFailed if quotas are set and a domain with training questions has none, or if
    the method fails.
    """
    domain_names = np.asarray(domains, dtype=np.str_)
    _check_quotas(set(domain_names[~held_out].tolist()), options)
    decisions = _filter(dispersion, domain_names, options, held_out, selected_before)
    rank = np.full(len(keys), -1, np.int32)
    parts = {name: np.full(len(keys), np.nan) for name in sorted(options.method.PARTS)}
    place = np.full(len(keys), -1, np.int64)
    taken = 0
    for members, limit in _pools(np.flatnonzero(decisions >= OVER_QUOTA), domain_names, options):
        if not len(members):
            continue
        figures = Dispersion(*(values[members] for values in dispersion))
        if spans is not None:
            figures = figures._replace(score_corr=figures.score_corr / spans[members])
        candidates = Candidates(
            [keys[number] for number in members.tolist()], [domains[number] for number in members.tolist()], figures
        )
        ranking = _ranking(options.method, candidates, limit, seed)
        if ranking.groups is not None:
            rank[members] = ranking.groups
        for name, values in ranking.parts.items():
            parts[name][members] = values
        numbers = dict(zip(candidates.keys, members.tolist(), strict=True))
        selected = np.array([numbers[key] for key in ranking.keys[:limit]], np.int64)
        decisions[selected] = SELECTED
        place[selected] = taken + np.arange(len(selected))
        taken += len(selected)
    return Choice(keys, domains, dispersion, decisions, options.method, rank, parts, place, options.quotas)


def _ranking(method: SelectionMethod, candidates: Candidates, limit: int, seed: int) -> Ranking:
    """Return the method's order; raise StageFailed if it fails or returns anything that cannot be used."""
    try:
        with exits_as_errors():
            ranking = method.rank(candidates, limit, seed)
        problem = _problem(method, ranking, candidates, limit)
    except Exception as error:  # noqa: BLE001 - any error of a user's class fails the stage
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise StageFailed(f"selection.method {method.type}: {one_line(problem)}; correct its method `rank`")
    return ranking


def _problem(method: SelectionMethod, ranking: object, candidates: Candidates, limit: int) -> str:
    """Return a description of the fault in the result of a method; empty if the result can be used."""
    if not isinstance(ranking, Ranking):
        return f"it returned {type(ranking).__name__}, not a Ranking"
    known, count = set(candidates.keys), len(candidates.keys)
    repeated = [key for key, times in Counter(ranking.keys).items() if times > 1]
    unknown = [key for key in ranking.keys if key not in known]
    if unknown:
        return f"it returned {unknown[0]!r}, which is no candidate"
    if repeated:
        return f"it returned {repeated[0]!r} twice"
    if len(ranking.keys) < min(limit, count):
        return f"it returned {len(ranking.keys):,} of {count:,} candidates, of which {min(limit, count):,} are wanted"
    if ranking.groups is not None:
        groups = np.asarray(ranking.groups)
        if not method.GROUP:
            return "it returned groups, but its class has no GROUP"
        if groups.shape != (count,) or groups.dtype.kind not in "iu" or groups.min(initial=0) < 0:
            return f"groups are not {count:,} integers from 0"
    for name, values in ranking.parts.items():
        if name not in method.PARTS:
            return f"it returned part {name!r}, which its PARTS do not declare"
        if np.asarray(values, np.float64).shape != (count,):
            return f"part {name!r} is not {count:,} numbers"
    return ""


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
    """Return the decision on each question before any is selected; the first filter that matches decides.

    Questions that pass all filters get OVER_QUOTA if quotas are set, else OVER_LIMIT, until they are selected.
    """
    mixed = is_mixed(dispersion.lowest, dispersion.highest, domains, options.mixed_f1)
    enough = np.where(domains == GRADED, options.mixed_f1, 1.0)
    is_known = np.isin(domains, (*BINARY, GRADED))
    right = np.where(is_known, dispersion.lowest >= enough, dispersion.lowest > SUCCESS_SCORE)
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
