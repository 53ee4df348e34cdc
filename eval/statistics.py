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
