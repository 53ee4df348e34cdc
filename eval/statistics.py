"""Compute means with 95 % intervals for scores of questions that were answered once or several times.

K rollouts of one question are not K independent observations, so the sampling unit is the question.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Z_95 = 1.959963984540054

MAX_BOOTSTRAP_QUESTIONS = 5_000
"""Above this number of questions, a normal interval replaces the bootstrap, because the mean is nearly normal."""


_MAX_DRAWN = 1_000_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval and the name of the method."""

    mean: float
    low: float
    high: float
    method: str

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """Both ends for storing and showing; an infinite end is None."""
        low, high = (end if math.isfinite(end) else None for end in (self.low, self.high))
        return low, high


def mean_of(values: Iterable[float]) -> float:
    """Return the mean of at least one value, computed with `math.fsum`."""
    given = list(values)
    return math.fsum(given) / len(given)


def wilson_interval(share: float, num_trials: float) -> tuple[float, float]:
    """Return the Wilson score interval (1927) of a share seen in `num_trials` independent trials.

    Without trials it is (0, 1). `num_trials` may be fractional: an effective sample size.
    """
    if num_trials <= 0:
        return 0.0, 1.0
    z2 = Z_95 * Z_95
    centre = (share + z2 / (2 * num_trials)) / (1 + z2 / num_trials)
    half = Z_95 / (1 + z2 / num_trials) * math.sqrt(share * (1 - share) / num_trials + z2 / (4 * num_trials**2))
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def share_interval(questions: Sequence[tuple[float, int]]) -> Interval:
    """Return the share of right rollouts from (number right, number of rollouts) per question; at least one question.

    With one rollout per question: Wilson. Otherwise: Wilson with the effective sample size m(1-m)/SE², clipped to
    between 1 and the number of rollouts, where SE is the cluster-robust standard error of the ratio. With a single
    question, or if all rollouts are right or all are wrong, the number of questions is used, which is conservative.
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
        # With zero variance the quotient is infinite, so it is clipped to the number of rollouts.
        effective = min(float(num_rollouts), max(1.0, mean * (1 - mean) / variance)) if variance else num_rollouts
    return Interval(mean, *wilson_interval(mean, effective), "clustered")


def average_interval(intervals: Iterable[Interval]) -> Interval:
    """Return the unweighted mean of independent means; distances to the ends are combined in quadrature."""
    parts = list(intervals)
    mean = mean_of(part.mean for part in parts)
    below = math.sqrt(math.fsum((part.mean - part.low) ** 2 for part in parts)) / len(parts)
    above = math.sqrt(math.fsum((part.high - part.mean) ** 2 for part in parts)) / len(parts)
    return Interval(mean, mean - below, mean + above, "combined")


def ratio_interval(
    questions: Sequence[tuple[float, float]],
    *,
    num_samples: int,
    seed: int,
    bounds: tuple[float, float] | None = None,
) -> Interval:
    """Return sum of numerators over sum of denominators, from (numerator, denominator) per question.

    Works for any mean (denominator: number of rollouts) and any ratio (such as tokens per call). Raise ValueError
    unless all denominators are at least 0 and one is above 0. Questions with a denominator of 0 are left out. The
    interval is a percentile bootstrap with a fixed seed, or the normal interval above MAX_BOOTSTRAP_QUESTIONS.

    If all n questions have the same ratio, there is no spread to resample. By Wilson, a share of up to z²/(n + z²) of
    the population may still differ; `bounds`, within which all values lie, limit how far this can move the mean
    (`wilson`). Without bounds, the interval is infinite for one question (`unknown`) and has no width for several
    (`constant`).
    """
    import numpy as np

    total = math.fsum(denominator for _, denominator in questions)
    if total <= 0 or min(denominator for _, denominator in questions) < 0:
        raise ValueError("the denominators of a ratio must not be negative, and at least one must be above 0")
    ratio = math.fsum(numerator for numerator, _ in questions) / total
    questions = [question for question in questions if question[1]]
    above = np.array([numerator for numerator, _ in questions], dtype=np.float64)
    below = np.array([denominator for _, denominator in questions], dtype=np.float64)
    size = len(questions)
    spread = math.sqrt(float(((above - ratio * below) ** 2).sum())) / total
    if size == 1 or spread <= 1e-12 * max(1.0, abs(ratio)):
        return _interval_without_spread(ratio, size, bounds)
    if size > MAX_BOOTSTRAP_QUESTIONS:
        half = Z_95 * math.sqrt(size / (size - 1)) * spread
        least, most = bounds or (-math.inf, math.inf)
        return Interval(ratio, max(least, ratio - half), min(most, ratio + half), "normal")
    generator = np.random.default_rng(seed)
    resampled: list[float] = []
    for rows in _portions(num_samples, size):
        chosen = generator.integers(0, size, (rows, size))
        resampled += (above[chosen].sum(axis=1) / below[chosen].sum(axis=1)).tolist()
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Interval(ratio, min(ratio, float(low)), max(ratio, float(high)), "bootstrap")


def _portions(num_rows: int, size: int) -> Iterator[int]:
    """Yield the numbers of rows to draw at once, so that memory stays bounded."""
    most = max(1, _MAX_DRAWN // size)
    while num_rows > 0:
        yield min(most, num_rows)
        num_rows -= most


def _interval_without_spread(ratio: float, num_questions: int, bounds: tuple[float, float] | None) -> Interval:
    if bounds is not None:
        least, most = bounds
        _, others = wilson_interval(0.0, num_questions)
        return Interval(ratio, ratio - others * (ratio - least), ratio + others * (most - ratio), "wilson")
    if num_questions == 1:
        return Interval(ratio, -math.inf, math.inf, "unknown")
    return Interval(ratio, ratio, ratio, "constant")


def paired_share_interval(gained: int, lost: int, num_questions: int) -> Interval:
    """Return the difference of two shares of right answers to the same questions, second minus first.

    Tango's score interval (1998): it contains all differences whose score statistic, which generalises McNemar's, is at
    most 1.96. If no answer changed, each side is the Wilson interval of a share of 0. Needs at least one question.
    """
    difference = (gained - lost) / num_questions

    def distance(supposed: float) -> float:
        """Return the distance in standard deviations between the observed and a supposed difference.

        The variance uses the maximum likelihood estimate of the share of losses.
        """
        half = -gained - lost + (2 * num_questions - gained + lost) * supposed
        root = math.sqrt(half * half + 8 * num_questions * lost * supposed * (1 - supposed))
        loss = (root - half) / (4 * num_questions)
        variance = num_questions * (2 * loss + supposed * (1 - supposed))
        excess = abs(gained - lost - num_questions * supposed)
        return excess / math.sqrt(variance) if variance > 0 else math.inf if excess else 0.0

    def end(limit: float) -> float:
        inside, outside = difference, limit
        # 60 bisections exhaust the precision of a double.
        for _ in range(60):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if distance(middle) <= Z_95 else (inside, middle)
        return inside

    return Interval(difference, end(-1.0), end(1.0), "tango")


def mcnemar_test(gained: int, lost: int) -> float:
    """Return the exact two-sided p-value (McNemar 1947) of the numbers of questions gained and lost."""
    changed = gained + lost
    tail = sum(math.comb(changed, count) for count in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / (1 << changed))


def permutation_test(differences: Sequence[float], *, num_permutations: int, seed: int) -> tuple[str, float]:
    """Return the name of the test and the two-sided p-value of the sum (and so the mean) of paired differences.

    If the models were equal, the sign of each difference would be arbitrary. All sign combinations are tried if there
    are at most `num_permutations`; otherwise that many random ones. The observed one counts among them, so the p-value
    is never 0.
    """
    import numpy as np

    moved = np.array([difference for difference in differences if difference], dtype=np.float64)
    # Tolerance for sums that are mathematically equal but differ in the last bits.
    least = abs(math.fsum(moved)) - 1e-9 * float(np.abs(moved).sum())
    size = len(moved)
    if 1 << size <= num_permutations:
        codes = np.arange(1 << size)[:, None] >> np.arange(size) & 1
        return "permutation_exact", float(np.mean(np.abs((1.0 - 2.0 * codes) @ moved) >= least))
    generator = np.random.default_rng(seed)
    as_far = 1
    for rows in _portions(num_permutations, size):
        signs = 1.0 - 2.0 * generator.integers(0, 2, (rows, size), dtype=np.int8)
        as_far += int(np.count_nonzero(np.abs(signs @ moved) >= least))
    return "permutation", as_far / (num_permutations + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's method (1979), in their order. It bounds the family-wise error rate."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def pass_at_k(num_rollouts: int, num_right: int, k: int) -> float:
    """Return the probability that at least one of k rollouts is right: 1 - C(n-c, k) / C(n, k), with c right ones of n.

    The unbiased estimator of Chen et al. 2021 (arXiv 2107.03374). Raise ValueError unless 1 <= k <= n and 0 <= c <= n.
    """
    if not 1 <= k <= num_rollouts or not 0 <= num_right <= num_rollouts:
        raise ValueError(f"pass@{k} cannot be estimated from {num_right} right of {num_rollouts} rollouts")
    choices = math.comb(num_rollouts, k)
    return (choices - math.comb(num_rollouts - num_right, k)) / choices


def expected_best(values: Sequence[float], k: int) -> float:
    """Return the expected largest of k of these values, drawn without replacement: best@k.

    It is exact, and unbiased for k new values of the same kind. Raise ValueError unless 1 <= k <= n.
    """
    if not 1 <= k <= len(values):
        raise ValueError(f"the best of {k} cannot be estimated from {len(values)} rollouts")
    choices = math.comb(len(values), k)
    # The value at rank i, from 0, is the largest of the draw if the others are among the i below it.
    return math.fsum(value * (math.comb(rank, k - 1) / choices) for rank, value in enumerate(sorted(values)))


def per_pass_interval(questions: Sequence[tuple[float, float]], *, num_samples: int, seed: int) -> Interval:
    """Return an amount per right answer, from (amount, number of right answers) per question; at least one question.

    The interval is a percentile bootstrap over questions; its upper end is infinite if resamples without a right answer
    are frequent. Without any right answer, the amount is infinite (method `infinite`). With a single question, the
    interval is infinite (method `unknown`).
    """
    import numpy as np

    above = np.array([amount for amount, _ in questions], dtype=np.float64)
    below = np.array([count for _, count in questions], dtype=np.float64)
    total = math.fsum(count for _, count in questions)
    if not total:
        return Interval(math.inf, -math.inf, math.inf, "infinite")
    ratio, size = math.fsum(amount for amount, _ in questions) / total, len(questions)
    if size == 1:
        return Interval(ratio, -math.inf, math.inf, "unknown")
    generator = np.random.default_rng(seed)
    resampled: list[float] = []
    for rows in _portions(num_samples, size):
        chosen = generator.integers(0, size, (rows, size))
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn = above[chosen].sum(axis=1) / below[chosen].sum(axis=1)
        resampled += np.where(np.isnan(drawn), np.inf, drawn).tolist()
    low = np.quantile(resampled, 0.025, method="lower")
    high = np.quantile(resampled, 0.975, method="higher")
    return Interval(ratio, min(ratio, float(low)), max(ratio, float(high)), "bootstrap")
