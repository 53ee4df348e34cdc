"""Measure how far the rollouts of a question disagree: the two objectives of the selection, and mixed outcomes.

Documented in docs/behaviour/selection.md; after ET-Agent (arXiv 2601.06860), section 3.3.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treadle.core.errors import DataError

MILLION = 1_000_000
"""Scale of correctness, which is summed as an integer number of millionths: sums are exact, so questions with equal
outcomes get equal deviations, in any order of the rollouts."""
GRADED = "qa"
"""Domain whose correctness is an F1 score."""
BINARY = ("math", "choice")
"""Domains whose correctness is 0 or 1. In all domains but these and qa, it is any number that a scorer or an
environment gives."""
MAX_ROLLOUTS = 3_000
"""Maximum number of rollouts per question; more would overflow the integer sums."""
_INITIAL_SIZE = 1_024


class Dispersion(NamedTuple):
    """Statistics with one value per question; arrays of the same length."""

    num_rollouts: np.ndarray
    """Number of all rollouts, int64."""
    num_usable: np.ndarray
    """Number of usable rollouts, int64; mean, deviations, minimum and maximum cover only these."""
    mean: np.ndarray
    """Mean correctness, float64; like deviations, minimum and maximum, it is nan if no rollout is usable."""
    score_tool: np.ndarray
    """S_tool: population standard deviation of the number of executed calls."""
    score_corr: np.ndarray
    """S_corr: population standard deviation of correctness."""
    lowest: np.ndarray
    """Minimum correctness."""
    highest: np.ndarray
    """Maximum correctness."""


class DispersionSums:
    """Running sums per question, batch by batch in any order.

    Memory: about 70 bytes per question, for any number of rollouts.
    """

    def __init__(self, low: float = 0.0, high: float = 1.0) -> None:
        """Prepare sums of correctness values between `low` and `high`, in millionths of this range."""
        self._low, self._span = low, high - low
        self._rollouts, self._usable = _zeros(), _zeros()
        self._calls, self._calls_squared = _zeros(), _zeros()
        self._correct, self._correct_squared = _zeros(), _zeros()
        # `add` rounds extremes to millionths of 1, not of the range: one huge reward must not make the others equal.
        self._lowest, self._highest = _zeros().astype(np.float64), _zeros().astype(np.float64)
        self._num_questions = 0

    def add(self, questions: np.ndarray, calls: np.ndarray, correctness: np.ndarray) -> None:
        """Add rollouts: number of the question (int64, from 0), executed calls, correctness.

        A correctness of nan marks a rollout that is not usable: lost to infrastructure, or without a verdict. Raises
        ValueError if the arrays differ in length or a correctness is outside of the range.
        """
        if not len(questions) == len(calls) == len(correctness):
            raise ValueError(
                f"{len(questions)} questions, {len(calls)} calls and {len(correctness)} scores do not match"
            )
        if not len(questions):
            return
        self._grow(int(questions.max()) + 1)
        np.add.at(self._rollouts, questions, 1)
        usable = ~np.isnan(correctness)
        questions, calls = questions[usable], calls[usable].astype(np.int64)
        millionths = np.rint((correctness[usable] - self._low) / self._span * MILLION).astype(np.int64)
        if millionths.size and not 0 <= int(millionths.min()) <= int(millionths.max()) <= MILLION:
            raise ValueError(f"correctness is outside of [{self._low:g}, {self._low + self._span:g}]")
        self._add_extremes(questions, np.round(correctness[usable], 6))
        np.add.at(self._usable, questions, 1)
        np.add.at(self._calls, questions, calls)
        np.add.at(self._calls_squared, questions, calls * calls)
        np.add.at(self._correct, questions, millionths)
        np.add.at(self._correct_squared, questions, millionths * millionths)

    def _add_extremes(self, questions: np.ndarray, correctness: np.ndarray) -> None:
        fresh = questions[self._usable[questions] == 0]
        self._lowest[fresh], self._highest[fresh] = np.inf, -np.inf
        np.minimum.at(self._lowest, questions, correctness)
        np.maximum.at(self._highest, questions, correctness)

    def _grow(self, num_questions: int) -> None:
        self._num_questions = max(self._num_questions, num_questions)
        if (size := len(self._rollouts)) >= num_questions:
            return
        for name, values in vars(self).items():
            if isinstance(values, np.ndarray):
                setattr(self, name, np.concatenate([values, np.zeros(max(size, num_questions - size), values.dtype)]))

    def totals(self) -> Dispersion:
        """Return the statistics of every question; raise DataError if one has more than `MAX_ROLLOUTS` rollouts."""
        count = self._num_questions
        usable = self._usable[:count]
        if (most := int(self._rollouts[:count].max(initial=0))) > MAX_ROLLOUTS:
            raise DataError(
                f"a question has {most:,} rollouts; at most {MAX_ROLLOUTS:,} are allowed: lower samples_per_question"
            )

        def quotient(values: np.ndarray, divisor: np.ndarray) -> np.ndarray:
            with np.errstate(invalid="ignore"):
                found: np.ndarray = np.where(usable > 0, values / np.maximum(divisor, 1), np.nan)
            return found

        def deviation(values: np.ndarray, squares: np.ndarray, unit: int) -> np.ndarray:
            # One division of two integers, so that equal deviations are equal floats for any number of rollouts.
            spread = usable * squares[:count] - values[:count] * values[:count]
            root: np.ndarray = np.sqrt(quotient(spread, (usable * unit) ** 2))
            return root

        known = usable > 0
        return Dispersion(
            num_rollouts=self._rollouts[:count],
            num_usable=usable,
            mean=self._low + quotient(self._correct[:count], usable * MILLION) * self._span,
            score_tool=deviation(self._calls, self._calls_squared, 1),
            score_corr=deviation(self._correct, self._correct_squared, MILLION) * self._span,
            lowest=np.where(known, self._lowest[:count], np.nan),
            highest=np.where(known, self._highest[:count], np.nan),
        )


def is_mixed(lowest: np.ndarray, highest: np.ndarray, domains: np.ndarray, mixed_f1: float) -> np.ndarray:
    """Return whether each question has both right and wrong rollouts (bool array).

    A rollout of qa is right if its F1 is at least `mixed_f1`, one of math or choice if its correctness is 1. In other
    domains a question is mixed if its rollouts differ in correctness.
    """
    graded = (highest >= mixed_f1) & (lowest < mixed_f1)
    plain = (highest >= 1.0) & (lowest <= 0.0)
    return np.select([domains == GRADED, np.isin(domains, BINARY)], [graded, plain], highest > lowest)


def _zeros() -> np.ndarray:
    return np.zeros(_INITIAL_SIZE, np.int64)
