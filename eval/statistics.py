"""Means with 95 % intervals for scores of questions that were answered one or several times.

K rollouts of one question are not K independent observations, so questions, not rollouts, are what is sampled here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Z_95 = 1.959963984540054

MAX_BOOTSTRAP_QUESTIONS = 5_000
"""With more questions than this the mean is as good as normal, and resampling would only cost time."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with the ends of its 95 % interval and how that was made."""

    mean: float
    low: float
    high: float
    method: str


def wilson_interval(share: float, num_trials: float) -> tuple[float, float]:
    """Wilson score interval (1927) of a share seen in `num_trials` independent trials; (0, 1) without trials.

    `num_trials` may be fractional: an effective sample size.
    """
    if num_trials <= 0:
        return 0.0, 1.0
    z2 = Z_95 * Z_95
    centre = (share + z2 / (2 * num_trials)) / (1 + z2 / num_trials)
    half = Z_95 / (1 + z2 / num_trials) * math.sqrt(share * (1 - share) / num_trials + z2 / (4 * num_trials**2))
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def share_interval(questions: Sequence[tuple[float, int]]) -> Interval:
    """Share of right rollouts, from (number right, number of rollouts) per question; at least one question.

    One rollout each: Wilson. More: Wilson with the effective sample size m(1-m)/SE², where SE is the cluster-robust
    standard error of the ratio; it lies between 1 and the number of rollouts. Where SE² says nothing (one question,
    or all rollouts alike) the number of questions takes its place, the cautious end.
    """
    num_rollouts = sum(count for _, count in questions)
    mean = sum(right for right, _ in questions) / num_rollouts
    if num_rollouts == len(questions):
        return Interval(mean, *wilson_interval(mean, num_rollouts), "wilson")
    num_questions = len(questions)
    effective = float(num_questions)
    if num_questions > 1 and 0 < mean < 1:
        residuals = sum((right - mean * count) ** 2 for right, count in questions)
        variance = num_questions / (num_questions - 1) * residuals / num_rollouts**2
        effective = min(float(num_rollouts), max(1.0, mean * (1 - mean) / variance)) if variance else num_rollouts
    return Interval(mean, *wilson_interval(mean, effective), "clustered")


def mean_interval(questions: Sequence[tuple[float, int]], *, num_samples: int, seed: int) -> Interval:
    """Mean over rollouts of a value within [0, 1], from (sum, number of rollouts) per question.

    Percentile bootstrap over questions with a fixed seed; the normal interval above MAX_BOOTSTRAP_QUESTIONS. Without
    any spread (a single question, all values alike) resampling shows nothing: then Wilson with the number of
    questions, which is cautious because no value within [0, 1] spreads more than a 0/1 one of the same mean.
    """
    import numpy as np

    sums = np.array([total for total, _ in questions], dtype=np.float64)
    counts = np.array([count for _, count in questions], dtype=np.float64)
    mean = float(sums.sum() / counts.sum())
    size = len(questions)
    if size > MAX_BOOTSTRAP_QUESTIONS:
        variance = size / (size - 1) * float(((sums - mean * counts) ** 2).sum()) / float(counts.sum()) ** 2
        half = Z_95 * math.sqrt(variance)
        return Interval(mean, max(0.0, mean - half), min(1.0, mean + half), "normal")
    generator = np.random.default_rng(seed)
    means = np.empty(num_samples)
    for index in range(num_samples):
        chosen = generator.integers(0, size, size)
        means[index] = sums[chosen].sum() / counts[chosen].sum()
    low, high = np.quantile(means, [0.025, 0.975])
    if high - low < 1e-12:
        return Interval(mean, *wilson_interval(mean, size), "wilson")
    return Interval(mean, min(mean, float(low)), max(mean, float(high)), "bootstrap")


def average_interval(intervals: Iterable[Interval]) -> Interval:
    """Unweighted mean of independent means, with their distances to the ends combined as squares."""
    parts = list(intervals)
    mean = sum(part.mean for part in parts) / len(parts)
    below = math.sqrt(sum((part.mean - part.low) ** 2 for part in parts)) / len(parts)
    above = math.sqrt(sum((part.high - part.mean) ** 2 for part in parts)) / len(parts)
    return Interval(mean, mean - below, mean + above, "combined")


def ratio_interval(
    questions: Sequence[tuple[float, float]],
    *,
    num_samples: int,
    seed: int,
    bounds: tuple[float, float] | None = None,
) -> Interval:
    """Sum of the numerators over sum of the denominators, from (numerator, denominator) per question.

    For any mean (denominator: number of rollouts) and any ratio (tokens per call), in any unit. Denominators are at
    least 0 and one is above; else ValueError. Made like `mean_interval`; resamples without a denominator above 0 tell
    nothing and are left out. Without spread no question of n is unlike the others, but by Wilson up to a share of
    z²/(n + z²) may be; `bounds`, within which all values lie, say how far these can move the mean (`wilson`). Without
    bounds one question tells nothing (`unknown`: infinite ends), and several alike have no width (`constant`).
    """
    import numpy as np

    above = np.array([numerator for numerator, _ in questions], dtype=np.float64)
    below = np.array([denominator for _, denominator in questions], dtype=np.float64)
    total = float(below.sum())
    if total <= 0 or below.min() < 0:
        raise ValueError("a ratio needs denominators of at least 0, and one above 0")
    ratio = float(above.sum()) / total
    size = len(questions)
    residuals = above - ratio * below
    spread = math.sqrt(float((residuals**2).sum())) / total
    if size == 1 or spread <= 1e-12 * max(1.0, abs(ratio)):
        return _interval_without_spread(ratio, size, bounds)
    if size > MAX_BOOTSTRAP_QUESTIONS:
        half = Z_95 * math.sqrt(size / (size - 1)) * spread
        return Interval(ratio, ratio - half, ratio + half, "normal")
    generator = np.random.default_rng(seed)
    ratios = []
    for _ in range(num_samples):
        chosen = generator.integers(0, size, size)
        if (denominator := below[chosen].sum()) > 0:
            ratios.append(above[chosen].sum() / denominator)
    low, high = np.quantile(ratios or [ratio], [0.025, 0.975])
    return Interval(ratio, min(ratio, float(low)), max(ratio, float(high)), "bootstrap")


def _interval_without_spread(ratio: float, num_questions: int, bounds: tuple[float, float] | None) -> Interval:
    if bounds is not None:
        least, most = bounds
        _, others = wilson_interval(0.0, num_questions)
        return Interval(ratio, ratio - others * (ratio - least), ratio + others * (most - ratio), "wilson")
    if num_questions == 1:
        return Interval(ratio, -math.inf, math.inf, "unknown")
    return Interval(ratio, ratio, ratio, "constant")


def pass_at_k(num_rollouts: int, num_right: int, k: int) -> float:
    """Chance that at least one of k rollouts is right: 1 - C(n-c, k) / C(n, k), from c right ones of n.

    The unbiased estimator of Chen et al. 2021 (arXiv 2107.03374): the share of all choices of k among the n rollouts
    that hold a right one. Raises ValueError unless 1 <= k <= n and 0 <= c <= n.
    """
    if not 1 <= k <= num_rollouts or not 0 <= num_right <= num_rollouts:
        raise ValueError(f"pass@{k} cannot be told from {num_right} right of {num_rollouts} rollouts")
    choices = math.comb(num_rollouts, k)
    return (choices - math.comb(num_rollouts - num_right, k)) / choices
