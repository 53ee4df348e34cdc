"""Compute figures over several attempts at a question: pass@k, avg@k, std@k, maj@k, best@k, worst@k. Pure.

Documented in docs/behaviour/metrics.md.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from treadle.eval.figures.sums import FigureSums
from treadle.eval.scored_rollout import ScoredRollout
from treadle.eval.statistics import expected_best, pass_at_k

PASS_AT, BEST_OF = "pass@", "best_of@"
PICKED, UNDECIDED = "picked", "undecided"
"""Values of the column `best_of` for the attempt that a judge picked, and for attempts without a choice."""
OVER_ATTEMPTS: Mapping[str, str] = {
    PASS_AT: "probability that at least one of k rollouts of a question is right",
    "avg@": "share of right ones among the first k rollouts of each question",
    "std@": "standard deviation of these k verdicts of a question, each 0 or 1, with the divisor k",
    BEST_OF: "whether the one is right that a judge picked of the first k, without knowing the right answer",
    "maj@": "whether the most frequent of their answers is right",
    "best@": "expected P of the best of k rollouts",
    "worst@": "expected P of the worst of k rollouts",
}
"""Prefix of the name of a figure over k rollouts of a question -> what it measures; k follows the prefix."""
_NAME = re.compile(rf"({'|'.join(OVER_ATTEMPTS)})([1-9]\d*)")


def is_over_attempts(name: str) -> bool:
    """Return whether a figure is one over several rollouts of a question, such as `pass@4`."""
    return _NAME.fullmatch(name) is not None


def num_attempts_of(name: str) -> int:
    """Return the k of a figure over attempts."""
    return int(name.partition("@")[2])


def attempt_sums(rollouts: Iterable[ScoredRollout], name: str) -> FigureSums:
    """Return the sums of a figure over attempts; raise KeyError for any other name.

    Rollouts without a verdict are left out first, then questions with fewer than k rollouts.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise KeyError(name)
    kind, k = match[1], int(match[2])
    given = list(rollouts)
    if kind == BEST_OF:
        return _best_of_sums(given)
    decided: dict[str, list[ScoredRollout]] = {}
    for rollout in given:
        if rollout.correct is not None:
            decided.setdefault(rollout.question_key, []).append(rollout)
    kept = {key: decided[key] for key in sorted(decided) if len(decided[key]) >= k}
    values = {key: (_value(kind, ours, k), 1.0) for key, ours in kept.items()}
    is_binary = all(value in (0.0, 1.0) for value, _ in values.values())
    return FigureSums(values, is_binary, len(given) - sum(map(len, kept.values())))


def attempt_figures(rollouts: Sequence[ScoredRollout]) -> list[str]:
    """Return the names of the figures over attempts that a data set has; none if a question has one rollout.

    k is 2, 4, 8, … up to the smallest number of rollouts per question, and that number itself; `avg@`, `std@` and
    `maj@` have only the latter. `best@` is left out if every score is 0 or 1, because it then equals `pass@`. Of all
    these, a data set with rewards has only `pass@`.
    """
    ks, compared = pass_at_ks(rollouts), _compared(rollouts)
    picked = [f"{BEST_OF}{len(next(iter(compared.values())))}"] if compared else []
    if not ks:
        return picked
    names = [f"{PASS_AT}{k}" for k in ks]
    if any(rollout.is_reward for rollout in rollouts):
        return [*names, *picked]
    is_graded = any(rollout.score not in (None, 0.0, 1.0) for rollout in rollouts)
    graded = ("best@", "worst@") if is_graded else ("worst@",)
    of_all = (f"{kind}{ks[-1]}" for kind in ("avg@", "std@", "maj@"))
    return [*names, *of_all, *picked, *(f"{kind}{k}" for kind in graded for k in ks)]


def _compared(rollouts: Iterable[ScoredRollout]) -> dict[str, list[ScoredRollout]]:
    """Return question key -> the attempts that were compared to pick one, sorted by key."""
    found: dict[str, list[ScoredRollout]] = {}
    for one in rollouts:
        if one.best_of is not None:
            found.setdefault(one.question_key, []).append(one)
    return {key: found[key] for key in sorted(found)}


def _best_of_sums(rollouts: Iterable[ScoredRollout]) -> FigureSums:
    """Return the sums of the picked attempts.

    Questions without a picked attempt, or without a verdict on it, are left out instead of counting as 0.
    """
    compared, values, num_undecided = _compared(rollouts), dict[str, tuple[float, float]](), 0
    for key, ours in compared.items():
        picked = next((one for one in ours if one.best_of == PICKED), None)
        if picked is None or picked.correct is None:
            num_undecided += len(ours)
        else:
            values[key] = float(picked.correct), 1.0
    return FigureSums(values, True, num_undecided)


def pass_at_ks(rollouts: Iterable[ScoredRollout]) -> list[int]:
    """Return 2, 4, 8, … up to the smallest number n of rollouts per question, and n itself; empty if n is 1."""
    least = min(Counter(rollout.question_key for rollout in rollouts).values(), default=1)
    powers = [1 << exponent for exponent in range(1, least.bit_length())]
    return sorted({*powers, least} - {1})


def _value(kind: str, rollouts: Sequence[ScoredRollout], k: int) -> float:
    if kind == PASS_AT:
        return pass_at_k(len(rollouts), sum(bool(one.correct) for one in rollouts), k)
    if kind in ("best@", "worst@"):
        sign = 1.0 if kind == "best@" else -1.0
        return sign * expected_best([sign * (one.score or 0.0) for one in rollouts], k)
    first = sorted(rollouts, key=lambda one: (one.sample_index, one.answer, bool(one.correct)))[:k]
    if kind == "maj@":
        return _majority(first)
    mean = math.fsum(bool(one.correct) for one in first) / k
    return mean if kind == "avg@" else math.sqrt(mean * (1.0 - mean))


def _majority(rollouts: Sequence[ScoredRollout]) -> float:
    """Return the share of right rollouts among those with the most frequent answer; in a tie, the mean of the shares.

    Rollouts without an answer do not vote. Equal answers may have different verdicts, because of judges.
    """
    answers: dict[int, list[bool]] = {}
    for one in rollouts:
        if one.is_valid_answer:
            answers.setdefault(one.answer, []).append(bool(one.correct))
    most = max(map(len, answers.values()), default=0)
    shares = [math.fsum(verdicts) / most for verdicts in answers.values() if len(verdicts) == most]
    return math.fsum(shares) / len(shares) if shares else 0.0
