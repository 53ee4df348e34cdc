"""How far the rollouts of a question disagree: the two objectives of the selection, and whether they are mixed.

Documented in docs/behaviour/selection.md; after ET-Agent (arXiv 2601.06860), section 3.3.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treadle.core.errors import DataError

MILLION = 1_000_000
"""Correctness is counted in millionths, as whole numbers: sums are then exact, and equal outcomes give equal points
whatever the order of the rollouts."""
MOST_ROLLOUTS = 3_000
"""More rollouts of one question would overflow the sums."""
_START = 1_024


class Dispersion(NamedTuple):
    """One value per question; arrays of the same length."""

    num_rollouts: np.ndarray
    """All rollouts, int64."""
    num_usable: np.ndarray
    """Of these, those that count below, int64."""
    mean: np.ndarray
    """Mean correctness, float64; nan where none is usable, as everywhere below."""
    score_tool: np.ndarray
    """S_tool: population standard deviation of executed calls."""
    score_corr: np.ndarray
    """S_corr: population standard deviation of correctness."""
    lowest: np.ndarray
    """Least correctness."""
    highest: np.ndarray
    """Greatest correctness."""


class DispersionSums:
    """Sums per question, added to batch by batch in any order: about 70 bytes per question, however many rollouts."""

    def __init__(self) -> None:
        self._rollouts, self._usable = _zeros(), _zeros()
        self._calls, self._calls_squared = _zeros(), _zeros()
        self._correct, self._correct_squared = _zeros(), _zeros()
        self._lowest, self._highest = _zeros(), _zeros()
        self._num_questions = 0

    def add(self, questions: np.ndarray, calls: np.ndarray, correctness: np.ndarray) -> None:
        """Count rollouts: number of the question (int64, from 0), executed calls, correctness in [0, 1].

        A correctness of nan marks a rollout that is not usable: lost to infrastructure, or without a verdict. Raises
        ValueError where the three differ in length or correctness lies elsewhere.
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
        millionths = np.rint(correctness[usable] * MILLION).astype(np.int64)
        if millionths.size and not 0 <= int(millionths.min()) <= int(millionths.max()) <= MILLION:
            raise ValueError("correctness lies outside of 0 and 1")
        self._add_extremes(questions, millionths)
        np.add.at(self._usable, questions, 1)
        np.add.at(self._calls, questions, calls)
        np.add.at(self._calls_squared, questions, calls * calls)
        np.add.at(self._correct, questions, millionths)
        np.add.at(self._correct_squared, questions, millionths * millionths)

    def _add_extremes(self, questions: np.ndarray, millionths: np.ndarray) -> None:
        fresh = questions[self._usable[questions] == 0]
        self._lowest[fresh] = MILLION
        np.minimum.at(self._lowest, questions, millionths)
        np.maximum.at(self._highest, questions, millionths)

    def _grow(self, num_questions: int) -> None:
        self._num_questions = max(self._num_questions, num_questions)
        if (size := len(self._rollouts)) >= num_questions:
            return
        for name, values in vars(self).items():
            if isinstance(values, np.ndarray):
                setattr(self, name, np.concatenate([values, np.zeros(max(size, num_questions - size), np.int64)]))

    def totals(self) -> Dispersion:
        """The objectives of every question; raises DataError for more than `MOST_ROLLOUTS` of one."""
        count = self._num_questions
        usable = self._usable[:count]
        if (most := int(self._rollouts[:count].max(initial=0))) > MOST_ROLLOUTS:
            raise DataError(
                f"a question has {most:,} rollouts; at most {MOST_ROLLOUTS:,} are taken: lower samples_per_question"
            )

        def quotient(values: np.ndarray, divisor: np.ndarray) -> np.ndarray:
            with np.errstate(invalid="ignore"):
                found: np.ndarray = np.where(usable > 0, values / np.maximum(divisor, 1), np.nan)
            return found

        def deviation(values: np.ndarray, squares: np.ndarray, unit: int) -> np.ndarray:
            # Whole numbers above and below one division: equal deviations are equal, whatever the number of rollouts.
            spread = usable * squares[:count] - values[:count] * values[:count]
            root: np.ndarray = np.sqrt(quotient(spread, (usable * unit) ** 2))
            return root

        known = usable > 0
        return Dispersion(
            num_rollouts=self._rollouts[:count],
            num_usable=usable,
            mean=quotient(self._correct[:count], usable * MILLION),
            score_tool=deviation(self._calls, self._calls_squared, 1),
            score_corr=deviation(self._correct, self._correct_squared, MILLION),
            lowest=np.where(known, self._lowest[:count] / MILLION, np.nan),
            highest=np.where(known, self._highest[:count] / MILLION, np.nan),
        )


def is_mixed(lowest: np.ndarray, highest: np.ndarray, is_graded: np.ndarray, mixed_f1: float) -> np.ndarray:
    """Whether some rollouts of each question are right and some wrong (bool array).

    `is_graded`: the question is scored by F1, so that `mixed_f1` divides right from wrong; else by 0 or 1.
    """
    graded = (highest >= mixed_f1) & (lowest < mixed_f1)
    plain = (highest >= 1.0) & (lowest <= 0.0)
    return np.where(is_graded, graded, plain)


def _zeros() -> np.ndarray:
    return np.zeros(_START, np.int64)
