"""Compare two models on the same questions: difference, interval, p-value, and questions that were gained or lost.

Documented in docs/behaviour/metrics.md. Pairing by question removes the variance due to question difficulty, which
widens the intervals of two separate means. Results do not depend on the order of rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from treadle.core.errors import DataError
from treadle.eval.dataset_figures import sums_of
from treadle.eval.figures.sums import FigureSums
from treadle.eval.metrics import bounds_of
from treadle.eval.scored_rollout import ScoredRollout
from treadle.eval.statistics import (
    Interval,
    average_interval,
    mcnemar_test,
    mean_of,
    paired_share_interval,
    permutation_test,
    ratio_interval,
)

DEFAULT_PERMUTATIONS = 10_000
LEVEL = 0.05
"""Significance level at which intervals and tests are made consistent."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Paired values of one figure for two models on one data set, by question."""

    figure: str
    first: dict[str, float]
    """Question key -> mean over the first model's rollouts, sorted by key. Only questions on which both models have a
    value."""
    second: dict[str, float]
    is_binary: bool
    """Whether each question has exactly one rollout per model, with value 0 or 1."""
    num_dropped: int
    """Number of questions left out because only one model was asked or has a value."""
    num_dropped_rollouts: int
    """Number of rollouts of both models left out: those of dropped questions, and those without a value."""
    gained: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def differences(self) -> list[float]:
        """Second minus first, per question."""
        return [self.second[key] - self.first[key] for key in self.first]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two models by one figure, on one data set or averaged over several.

    Differences are second minus first.
    """

    figure: str
    num_questions: int
    """Number of questions on which both models have a value."""
    num_dropped: int
    """Number of questions left out."""
    num_dropped_rollouts: int
    """Number of rollouts of both models that are left out."""
    first: float
    """Mean over questions of the first model's per-question mean."""
    second: float
    difference: Interval
    """Tango interval for binary values, otherwise a bootstrap over questions. Widened to contain 0 if the test does not
    reject equality."""
    p_value: float
    """Two-sided p-value: probability of a difference at least this large if the models are equal."""
    test: str
    """Name of the test: "mcnemar" (exact) if every question has one binary rollout per model. Otherwise "permutation",
    or "permutation_exact" for few questions."""
    gained: tuple[str, ...]
    """Sorted keys of questions that the first model gets mostly wrong and the second mostly right."""
    lost: tuple[str, ...]
    """Sorted keys of questions that the first model gets mostly right and the second mostly wrong."""


def pair(first: Sequence[ScoredRollout], second: Sequence[ScoredRollout], figure: str) -> Pairs:
    """Pair a figure of two models by question. Raise DataError if rollouts come from more than one data set."""
    if len(datasets := sorted({rollout.dataset for rollout in (*first, *second)})) > 1:
        raise DataError(
            f"questions of {', '.join(datasets)} cannot be paired; compare models on one data set at a time"
        )
    given = (first, second)
    sums = [sums_of(rollouts, figure) for rollouts in given]
    ours, theirs = map(_values, sums)
    shared = ours.keys() & theirs.keys()
    asked = {rollout.question_key for rollout in (*first, *second)}
    kept: Sequence[Sequence[ScoredRollout]] = given
    # Sum again without the dropped questions, so that the flags and counts refer to the paired ones only.
    if shared != asked:
        kept = tuple([one for one in rollouts if one.question_key in shared] for rollouts in given)
        sums = [sums_of(rollouts, figure) for rollouts in kept]
    keys = sorted(shared)
    before, after = map(_sides, given)
    return Pairs(
        figure=figure,
        first={key: ours[key] for key in keys},
        second={key: theirs[key] for key in keys},
        is_binary=bounds_of(figure) is not None and all(one.is_binary and set(_counts(one)) <= {1.0} for one in sums),
        num_dropped=len(asked) - len(keys),
        num_dropped_rollouts=sum(map(len, given)) - sum(map(len, kept)) + sum(one.num_undecided for one in sums),
        gained=tuple(key for key in keys if (before.get(key), after.get(key)) == (-1, 1)),
        lost=tuple(key for key in keys if (before.get(key), after.get(key)) == (1, -1)),
    )


def _values(sums: FigureSums) -> dict[str, float]:
    return {key: amount / count for key, (amount, count) in sums.questions.items() if count}


def _counts(sums: FigureSums) -> list[float]:
    return [count for _, count in sums.questions.values()]


def _sides(rollouts: Sequence[ScoredRollout]) -> dict[str, int]:
    """Map question key to 1 if most of its rollouts are right, -1 if most are wrong, 0 for a tie."""
    shares = _values(sums_of(rollouts, "accuracy"))
    return {key: (share > 0.5) - (share < 0.5) for key, share in shares.items()}


def compare_pairs(
    pairs: Pairs, *, num_samples: int = 1_000, num_permutations: int = DEFAULT_PERMUTATIONS, seed: int = 0
) -> Comparison:
    """Return the interval and test for one data set with at least one paired question."""
    if pairs.is_binary:
        gained, lost = pairs.differences.count(1.0), pairs.differences.count(-1.0)
        test, p_value = "mcnemar", mcnemar_test(gained, lost)
    else:
        test, p_value = permutation_test(pairs.differences, num_permutations=num_permutations, seed=seed)
    return _comparison([pairs], _interval(pairs, num_samples, seed), test, p_value)


def compare_average(
    parts: Sequence[Pairs], *, num_samples: int = 1_000, num_permutations: int = DEFAULT_PERMUTATIONS, seed: int = 0
) -> Comparison:
    """Compare the unweighted mean of a figure over data sets, each with at least one paired question.

    The permutation test flips signs per question; each data set keeps its weight.
    """
    difference = average_interval(_interval(part, num_samples, seed) for part in parts)
    weighted = [value / (len(part.first) * len(parts)) for part in parts for value in part.differences]
    test, p_value = permutation_test(weighted, num_permutations=num_permutations, seed=seed)
    return _comparison(parts, difference, test, p_value)


def _interval(pairs: Pairs, num_samples: int, seed: int) -> Interval:
    differences = pairs.differences
    if pairs.is_binary:
        return paired_share_interval(differences.count(1.0), differences.count(-1.0), len(differences))
    bounds = bounds_of(pairs.figure)
    width = None if bounds is None else bounds[1] - bounds[0]
    return ratio_interval(
        [(difference, 1.0) for difference in differences],
        num_samples=num_samples,
        seed=seed,
        bounds=None if width is None else (-width, width),
    )


def _comparison(parts: Sequence[Pairs], difference: Interval, test: str, p_value: float) -> Comparison:
    return Comparison(
        figure=parts[0].figure,
        num_questions=sum(len(part.first) for part in parts),
        num_dropped=sum(part.num_dropped for part in parts),
        num_dropped_rollouts=sum(part.num_dropped_rollouts for part in parts),
        first=mean_of(mean_of(part.first.values()) for part in parts),
        second=mean_of(mean_of(part.second.values()) for part in parts),
        difference=_consistent_with_test(difference, p_value),
        p_value=p_value,
        test=test,
        gained=parts[0].gained if len(parts) == 1 else (),
        lost=parts[0].lost if len(parts) == 1 else (),
    )


def _consistent_with_test(interval: Interval, p_value: float) -> Interval:
    """Widen the interval to include 0 if the test does not reject equality.

    With few questions, intervals are too narrow and exact tests conservative. Without this step they contradict each
    other, for example with 4 questions gained and none lost.
    """
    if p_value < LEVEL:
        return interval
    return replace(interval, low=min(interval.low, 0.0), high=max(interval.high, 0.0))
