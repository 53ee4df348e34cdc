"""Build the rows of the table `comparisons`: pairs of models by data set and figure, with adjusted p-values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from treadle.eval.config import ReportSettings
from treadle.eval.dataset_figures import areas_of, by_dataset, environments_of
from treadle.eval.judging_differences import judging_differences
from treadle.eval.metrics import MAIN_FIGURES, figures_of, is_meaningful
from treadle.eval.scored_rollout import ScoredRollout
from treadle.eval.statistics import holm
from treadle.report.comparison import Comparison, Pairs, compare_average, compare_pairs, pair
from treadle.report.summary import averaged, shown_averages

COMPARED_FIGURES = (
    "score",
    "reward",
    "accuracy",
    "efficiency",
    "conciseness",
    "successful_execution",
    "reasoning_length",
    "num_turns",
    "calls_requested",
    "reasoning_tokens",
)
"""Figures to compare. A figure is left out if its per-question values equal those of an earlier one, such as
accuracy on math."""
_MAX_PAIRED = 3
"""Maximum number of models of which all pairs are compared."""

Row = dict[str, Any]


def model_pairs(models: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of models to compare, in order.

    Up to three models, these are all pairs. For more models, they are the first model with each other one, and each two
    consecutive models.
    """
    if len(models) <= _MAX_PAIRED:
        return list(combinations(models, 2))
    with_first = [(models[0], other) for other in models[1:]]
    return [*with_first, *zip(models[1:], models[2:], strict=False)]


@dataclass(frozen=True, slots=True)
class ModelRollouts:
    """One model's rollouts grouped for comparison, prepared once for all its pairs."""

    model: str
    rollouts: Mapping[str, Sequence[ScoredRollout]]
    """Data set -> rollouts of the model."""
    areas: Mapping[str, str]
    """Data set -> its area: `math`, `knowledge` or `mixed`."""

    @classmethod
    def of(cls, model: str, rollouts: Iterable[ScoredRollout], areas: Mapping[str, str]) -> ModelRollouts:
        """Group one model's rollouts by data set. `areas` overrides the area of a data set."""
        groups = by_dataset(rollouts)
        return cls(model, groups, areas_of(groups, areas))


def comparison_rows(models: Mapping[str, Sequence[ScoredRollout]], settings: ReportSettings) -> list[Row]:
    """Return all comparison rows from each model's rollouts. Models without a common question have no row."""
    sides = {model: ModelRollouts.of(model, rollouts, settings.areas) for model, rollouts in models.items()}
    pairs = model_pairs(list(models))
    return adjusted([row for first, second in pairs for row in pair_rows(sides[first], sides[second], settings)])


def adjusted(rows: list[Row]) -> list[Row]:
    """Add the Holm-adjusted p-value to each row, in place, and return the rows."""
    for row, p_value in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row["p_adjusted"] = p_value
    return rows


def pair_rows(first: ModelRollouts, second: ModelRollouts, settings: ReportSettings) -> Iterator[Row]:
    """Yield the rows of one pair, without `p_adjusted`: one per figure of each data set and average."""
    ours, theirs = first.rollouts, second.rollouts
    groups = {name: [name] for name in ours if name in theirs}
    if ours.keys() == theirs.keys():
        averages = shown_averages(first.areas, settings.headline)
        groups |= {name: group for name, group in averages.items() if len(group) > 1}
    paired = {
        name: {figure: pair(ours[name], theirs[name], figure) for figure in _figures_of(ours[name], theirs[name])}
        for name in groups
        if name in ours
    }
    for group, names in groups.items():
        note = "; ".join(
            judging_differences(*([one for name in names for one in side[name]] for side in (ours, theirs)))
        )
        num_calls = min(sum(one.calls_requested for name in names for one in side[name]) for side in (ours, theirs))
        shown: list[list[Pairs]] = []
        environments = [environments_of([*ours[name], *theirs[name]]) for name in names]
        shared = averaged([paired[name] for name in names], environments)
        for figure in (name for name in shared if is_meaningful(name, num_calls)):
            parts = [paired[name][figure] for name in names]
            if any(not part.first for part in parts) or any(_same(parts, earlier) for earlier in shown):
                continue
            shown.append(parts)
            columns = _columns(_compared(parts, settings))
            yield {"first": first.model, "second": second.model, "dataset": group, **columns, "note": note or None}


def _figures_of(*sides: Sequence[ScoredRollout]) -> list[str]:
    """Return the figures to compare that a data set has for any of the models."""
    found = {name for rollouts in sides for name in figures_of(rollouts)}
    return [name for name in COMPARED_FIGURES if name in found]


def _same(parts: Sequence[Pairs], earlier: Sequence[Pairs]) -> bool:
    return all(
        (one.first, one.second) == (other.first, other.second) for one, other in zip(parts, earlier, strict=True)
    )


def _compared(parts: Sequence[Pairs], settings: ReportSettings) -> Comparison:
    if len(parts) == 1:
        return compare_pairs(parts[0], num_samples=settings.bootstrap_samples, seed=settings.seed)
    return compare_average(parts, num_samples=settings.bootstrap_samples, seed=settings.seed)


def _columns(comparison: Comparison) -> Row:
    """Return the columns of a comparison. Only those of the score and the reward list questions gained and lost."""
    interval = comparison.difference
    low, high = interval.ends
    of_score = comparison.figure in MAIN_FIGURES
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
