"""The rows of the table `comparisons`: which models are compared on what, with p-values adjusted for each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from treadle.eval.comparison import Comparison, Pairs, compared, compared_average, pair
from treadle.eval.config import ReportSettings
from treadle.eval.metrics import DatasetFigures, by_dataset, says_something
from treadle.eval.scored_rollout import ScoredRollout
from treadle.eval.statistics import holm
from treadle.eval.summary import averages_shown

COMPARED = (
    "score",
    "accuracy",
    "efficiency",
    "conciseness",
    "successful_execution",
    "reasoning_length",
    "calls_requested",
    "reasoning_tokens",
)
"""Figures that are compared. One that is the same as an earlier one question by question, such as the accuracy of
mathematics, is left out."""
_MOST_PAIRED = 3
"""With more models than this not every pair is compared."""

ANSWERED = "answered"
"""The status of rollouts whose answers are judged."""

Row = dict[str, Any]
ByDataset = Mapping[str, Sequence[ScoredRollout]]


def model_pairs(models: Sequence[str]) -> list[tuple[str, str]]:
    """Every pair in the order of models; of more than three the first with each, and neighbours."""
    if len(models) <= _MOST_PAIRED:
        return list(combinations(models, 2))
    with_first = [(models[0], other) for other in models[1:]]
    return [*with_first, *zip(models[1:], models[2:], strict=False)]


def comparison_rows(
    models: Mapping[str, Sequence[ScoredRollout]],
    parts: Mapping[str, Sequence[DatasetFigures]],
    settings: ReportSettings,
) -> list[Row]:
    """All rows, from each model's rollouts and from its figures; models without a common question have none."""
    rollouts = {model: by_dataset(given) for model, given in models.items()}
    rows: list[Row] = []
    for first, second in model_pairs(list(models)):
        ours, theirs = rollouts[first], rollouts[second]
        groups = {name: [name] for name in ours if name in theirs}
        if ours.keys() == theirs.keys():
            averages = averages_shown(parts[first], settings.headline)
            groups |= {name: [part.dataset for part in group] for name, group in averages.items() if len(group) > 1}
        for row in _rows_of_pair(groups, ours, theirs, settings):
            rows.append({"first": first, "second": second, **row})
    for row, p_value in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row["p_adjusted"] = p_value
    return rows


def _rows_of_pair(
    groups: Mapping[str, Sequence[str]], ours: ByDataset, theirs: ByDataset, settings: ReportSettings
) -> Iterator[Row]:
    """One row for each figure of each data set and average, given as the data sets that it is over."""
    paired = {
        name: {figure: pair(ours[name], theirs[name], figure) for figure in COMPARED} for name in groups if name in ours
    }
    for group, names in groups.items():
        note = _note([ours[name] for name in names], [theirs[name] for name in names])
        num_calls = min(sum(one.calls_requested for name in names for one in side[name]) for side in (ours, theirs))
        told: list[list[Pairs]] = []
        for figure in (name for name in COMPARED if says_something(name, num_calls)):
            parts = [paired[name][figure] for name in names]
            if any(not part.first for part in parts) or any(_same(parts, earlier) for earlier in told):
                continue
            told.append(parts)
            yield {"dataset": group, **_columns(_compared(parts, settings)), "note": note}


def _same(parts: Sequence[Pairs], earlier: Sequence[Pairs]) -> bool:
    return all(
        (one.first, one.second) == (other.first, other.second) for one, other in zip(parts, earlier, strict=True)
    )


def _compared(parts: Sequence[Pairs], settings: ReportSettings) -> Comparison:
    if len(parts) == 1:
        return compared(parts[0], num_samples=settings.bootstrap_samples, seed=settings.seed)
    return compared_average(parts, num_samples=settings.bootstrap_samples, seed=settings.seed)


def _columns(comparison: Comparison) -> Row:
    """Infinite ends are none; the questions that changed sides stand with P alone."""
    interval = comparison.difference
    low, high = (end if math.isfinite(end) else None for end in (interval.low, interval.high))
    of_score = comparison.figure == "score"
    return {
        "figure": comparison.figure,
        "num_questions": comparison.num_questions,
        "num_dropped": comparison.num_dropped,
        "num_dropped_rollouts": comparison.num_dropped_rollouts,
        "first_value": comparison.first,
        "second_value": comparison.second,
        "difference": interval.mean,
        "low": low,
        "high": high,
        "method": interval.method,
        "p_value": comparison.p_value,
        "test": comparison.test,
        "gained": list(comparison.gained) if of_score else [],
        "lost": list(comparison.lost) if of_score else [],
    }


def _note(ours: Iterable[Sequence[ScoredRollout]], theirs: Iterable[Sequence[ScoredRollout]]) -> str | None:
    """Whose answers alone a judge was asked about, where the other's wrong ones would have been its matter too."""
    first, second = ([one for rollouts in side for one in rollouts] for side in (ours, theirs))
    for which, judged, other in (("first", first, second), ("second", second, first)):
        domains = {rollout.domain for rollout in judged if rollout.judge_status is not None}
        left_to_rules = any(
            one.domain in domains and not one.correct and one.judge_status is None and one.status == ANSWERED
            for one in other
        )
        if left_to_rules and all(one.judge_status is None for one in other):
            return f"a judge was asked about answers of the {which} alone"
    return None
