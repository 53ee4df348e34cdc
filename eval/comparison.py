"""Two models on the same questions: how far apart, how sure, and which questions changed sides.

Documented in docs/behaviour/metrics.md. Pairing by question takes out how hard the questions are, which two separate
intervals leave in. Nothing here depends on the order of rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import orjson

from treadle.core.errors import DataError
from treadle.eval.metrics import FIGURES
from treadle.eval.scored_rollout import ScoredRollout
from treadle.eval.statistics import Interval, ratio_interval

DEFAULT_PERMUTATIONS = 10_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of two models on one data set; differences are second minus first."""

    figure: str
    num_questions: int
    """Questions with a verdict for both."""
    num_undecided: int
    """Questions left out because one of the models has no verdict on them."""
    first: float
    """Mean over questions of the first model's mean over the question's rollouts."""
    second: float
    difference: Interval
    """Bootstrap over the questions' differences."""
    p_value: float
    """Two-sided: how often chance alone sets two equal models apart at least as far."""
    test: str
    """mcnemar or sign (exact), for one rollout each; else permutation, with permutation_exact for few questions."""
    gained: tuple[str, ...]
    """Keys of questions that the first model gets mostly wrong and the second mostly right, sorted."""
    lost: tuple[str, ...]
    """The other way."""

    def to_json(self) -> bytes:
        """The same bytes for the same rollouts, in whatever order they came; infinite ends are null."""
        return orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)


@dataclass(slots=True)
class _Answers:
    """What one model did on one question, in a fixed order."""

    values: list[float]
    num_right: int

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def side(self) -> int:
        """1 if more than half of the rollouts are right, -1 if more than half are wrong, 0 at a tie."""
        twice = 2 * self.num_right - len(self.values)
        return (twice > 0) - (twice < 0)


def compare(
    first: Iterable[ScoredRollout],
    second: Iterable[ScoredRollout],
    figure: str = "score",
    *,
    num_samples: int = 1_000,
    num_permutations: int = DEFAULT_PERMUTATIONS,
    seed: int = 0,
) -> Comparison:
    """Compare a figure of `FIGURES` on one data set that both models answered, any number of times per question.

    Raises DataError if the models were asked different questions, or no question has a verdict for both.
    """
    ours, theirs = _by_question(first, figure), _by_question(second, figure)
    _check_same_questions(ours.keys(), theirs.keys())
    keys = [key for key in sorted(ours) if ours[key].values and theirs[key].values]
    if not keys:
        raise DataError("no question has a verdict for both models; run the scores of both again")
    pairs = [(ours[key], theirs[key]) for key in keys]
    differences = [right.mean - left.mean for left, right in pairs]
    test, p_value = _test(pairs, differences, num_permutations, seed)
    return Comparison(
        figure=figure,
        num_questions=len(keys),
        num_undecided=len(ours) - len(keys),
        first=math.fsum(left.mean for left, _ in pairs) / len(pairs),
        second=math.fsum(right.mean for _, right in pairs) / len(pairs),
        difference=ratio_interval(
            [(difference, 1.0) for difference in differences],
            num_samples=num_samples,
            seed=seed,
            bounds=(-1.0, 1.0) if FIGURES[figure].bounds else None,
        ),
        p_value=p_value,
        test=test,
        gained=tuple(key for key in keys if (ours[key].side, theirs[key].side) == (-1, 1)),
        lost=tuple(key for key in keys if (ours[key].side, theirs[key].side) == (1, -1)),
    )


def _by_question(rollouts: Iterable[ScoredRollout], figure: str) -> dict[str, _Answers]:
    answers: dict[str, _Answers] = {}
    for rollout in rollouts:
        answer = answers.setdefault(rollout.question_key, _Answers([], 0))
        if (term := FIGURES[figure].term(rollout)) is not None:
            answer.values.append(term[0])
            answer.num_right += rollout.correct is True
    return answers


def _check_same_questions(first: Iterable[str], second: Iterable[str]) -> None:
    if alone := sorted(set(first) ^ set(second)):
        raise DataError(
            f"only one of the two models was asked {len(alone)} of the questions, {alone[0]} among them; "
            "compare models on rollouts of the same questions"
        )


def _test(
    pairs: Sequence[tuple[_Answers, _Answers]], differences: Sequence[float], num_permutations: int, seed: int
) -> tuple[str, float]:
    if all(len(left.values) == len(right.values) == 1 for left, right in pairs):
        is_binary = all(value in (0.0, 1.0) for pair in pairs for answer in pair for value in answer.values)
        return "mcnemar" if is_binary else "sign", sign_test(differences)
    return permutation_test(differences, num_permutations=num_permutations, seed=seed)


def sign_test(differences: Sequence[float]) -> float:
    """Exact two-sided p-value of as many signs as these being so uneven; zeros tell nothing and are left out.

    For right and wrong answers this is McNemar's exact test (1947).
    """
    up = sum(difference > 0 for difference in differences)
    down = sum(difference < 0 for difference in differences)
    tail = sum(math.comb(up + down, count) for count in range(min(up, down) + 1))
    return min(1.0, 2 * tail / (1 << up + down))


def permutation_test(differences: Sequence[float], *, num_permutations: int, seed: int) -> tuple[str, float]:
    """Name of the test and two-sided p-value of the mean difference.

    Were the models alike, either could have given either side of a question, so each difference may turn its sign.
    Every choice of signs is tried where there are no more than `num_permutations`; else that many random ones, with
    the seen one counted among them, so that the p-value is never 0.
    """
    import numpy as np

    moved = np.array([difference for difference in differences if difference], dtype=np.float64)
    # Sums that are equal on paper may differ in their last bits.
    least = abs(math.fsum(moved)) - 1e-9 * float(np.abs(moved).sum())
    if 1 << len(moved) <= num_permutations:
        codes = np.arange(1 << len(moved))[:, None] >> np.arange(len(moved)) & 1
        return "permutation_exact", float(np.mean(np.abs((1.0 - 2.0 * codes) @ moved) >= least))
    generator = np.random.default_rng(seed)
    as_far = 1
    for _ in range(num_permutations):
        signs = 1.0 - 2.0 * generator.integers(0, 2, len(moved))
        as_far += abs(float((signs * moved).sum())) >= least
    return "permutation", as_far / (num_permutations + 1)
