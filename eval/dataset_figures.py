"""Compute the figures of one model per data set from its scored rollouts. Pure functions of records.

Sums use `math.fsum`, first over each question's rollouts and then over questions, so no figure depends on the order of
records.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from treadle.eval.averages import MIXED, area_of
from treadle.eval.figures.attempts import attempt_figures, attempt_sums, is_over_attempts
from treadle.eval.figures.response_lengths import response_quantiles
from treadle.eval.figures.sums import FigureSums
from treadle.eval.metrics import figure_of, figures_of
from treadle.eval.scored_rollout import ScoredRollout


@dataclass(frozen=True, slots=True)
class DatasetFigures:
    """Figures of one model on one data set."""

    dataset: str
    area: str
    """Area: "math", "knowledge" (qa and choice), or "mixed" if a data set without a configured area has rows of both.
    """
    environments: tuple[str, ...]
    """Names of the environments of the data set's tasks; a report refuses more than one."""
    num_rollouts: int
    num_questions: int
    sums: dict[str, FigureSums]
    """Name of a figure that the data set has -> its sums."""
    quantiles: dict[str, float]
    """Quantiles of the number of tokens of a response, by name."""
    counts: dict[str, int]
    """Rollout counts. `num_failed`: ended by an infrastructure failure that the user accepted; they count as wrong.
    `num_valid`: ended with a non-empty answer. Also one count per `status:`, `scorer:` (who decided), `judge_status:`,
    `votes:` and `tools_used:` value."""

    judges: tuple[str, ...]
    """Names of all judges that were asked about an answer."""
    joint_verdicts: tuple[tuple[bool, ...], ...]
    """Verdicts on rollouts for which every one of several judges has a verdict, in the order of `judges`."""


def figure_sums(rollouts: Iterable[ScoredRollout], name: str) -> FigureSums:
    """Return the sums of a figure over one model's rollouts on one data set, by sorted question key.

    Raise KeyError if there is no such figure of single rollouts.
    """
    given = list(rollouts)
    if (figure := figure_of(name)) is None:
        raise KeyError(name)
    terms: dict[str, list[tuple[float, float]]] = {}
    is_binary, num_undecided = True, 0
    for rollout in given:
        term = figure.term(rollout)
        if term is None:
            num_undecided += 1
        elif term[1] or figure.per_pass:
            is_binary = is_binary and term[1] == 1 and term[0] in (0, 1)
            terms.setdefault(rollout.question_key, []).append(term)
    # Without this, conciseness would be computed only from rollouts without calls, which are concise by definition.
    if figure.requires_figure and num_undecided and figure_sums(given, figure.requires_figure).value is None:
        return FigureSums({}, False, len(given))
    by_question = {key: _sum(terms[key]) for key in sorted(terms)}
    return FigureSums(by_question, is_binary and not figure.per_pass, num_undecided, figure.per_pass)


def _sum(terms: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return math.fsum(amount for amount, _ in terms), math.fsum(count for _, count in terms)


def sums_of(rollouts: Iterable[ScoredRollout], name: str) -> FigureSums:
    """Return the sums of a figure by name, of single rollouts or over attempts such as pass@k."""
    return attempt_sums(rollouts, name) if is_over_attempts(name) else figure_sums(rollouts, name)


def by_dataset(rollouts: Iterable[ScoredRollout]) -> dict[str, list[ScoredRollout]]:
    """Group one model's rollouts by data set, sorted by name."""
    groups: dict[str, list[ScoredRollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.dataset, []).append(rollout)
    return {dataset: groups[dataset] for dataset in sorted(groups)}


def dataset_figures(
    rollouts: Iterable[ScoredRollout], areas: Mapping[str, str] = MappingProxyType({}), tools: Sequence[str] = ()
) -> list[DatasetFigures]:
    """Return the figures of one model per data set, by name.

    Args:
        rollouts: The model's rollouts on all data sets.
        areas: Data set -> area, instead of the one that rows' domains imply.
        tools: Tools with figures of their own, the same for all models and data sets, so that averages cover all.
    """
    groups = by_dataset(rollouts)
    found = areas_of(groups, areas)
    return [_figures(dataset, group, found[dataset], tools) for dataset, group in groups.items()]


def environments_of(rollouts: Iterable[ScoredRollout]) -> tuple[str, ...]:
    """Return the names of the environments that rollouts belong to, sorted."""
    return tuple(sorted({rollout.environment for rollout in rollouts}))


def areas_of(datasets: Mapping[str, Sequence[ScoredRollout]], areas: Mapping[str, str]) -> dict[str, str]:
    """Return the area of each data set: from `areas`, else from the domains of its rollouts.

    Data sets with rewards are in neither area, whatever the domains.
    """
    return {
        dataset: areas.get(dataset)
        or (MIXED if any(one.is_reward for one in rollouts) else area_of({one.domain for one in rollouts}))
        for dataset, rollouts in datasets.items()
    }


def _figures(dataset: str, rollouts: Sequence[ScoredRollout], area: str, tools: Sequence[str]) -> DatasetFigures:
    sums = {name: figure_sums(rollouts, name) for name in figures_of(rollouts, tools)}
    judges = tuple(sorted({judge for rollout in rollouts for judge, _ in rollout.judge_verdicts}))
    sums |= {name: attempt_sums(rollouts, name) for name in attempt_figures(rollouts)}
    return DatasetFigures(
        dataset=dataset,
        area=area,
        environments=environments_of(rollouts),
        num_rollouts=len(rollouts),
        num_questions=len({rollout.question_key for rollout in rollouts}),
        sums=sums,
        quantiles=response_quantiles(rollouts),
        counts=_counts(rollouts),
        judges=judges,
        joint_verdicts=_joint_verdicts(rollouts, judges),
    )


def _joint_verdicts(rollouts: Sequence[ScoredRollout], judges: Sequence[str]) -> tuple[tuple[bool, ...], ...]:
    if len(judges) < 2:
        return ()
    found = []
    for rollout in rollouts:
        verdicts = [verdict for _, verdict in rollout.judge_verdicts if verdict is not None]
        if len(verdicts) == len(judges):
            found.append(tuple(verdicts))
    return tuple(found)


def _counts(rollouts: Sequence[ScoredRollout]) -> dict[str, int]:
    kinds = Counter(kind for rollout in rollouts for kind in rollout.kinds())
    return {
        "num_failed": kinds["status:failed"],
        "num_valid": sum(rollout.is_valid_answer for rollout in rollouts),
        **{kind: kinds[kind] for kind in sorted(kinds)},
    }
