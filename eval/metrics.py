"""Figures of one model's scored rollouts, per data set and over data sets. Pure: records in, numbers out.

Documented in docs/behaviour/metrics.md; efficiency and the behaviour figures follow ET-Agent (arXiv 2601.06860). All
sums are exact before they are rounded once (`math.fsum`), so that no figure depends on the order of records.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from treadle.core.errors import StageFailed

PER_THOUSAND = 1_000
"""Correctness per token of reasoning is a small number; it is given per thousand tokens, as published."""

MATH = "math"
KNOWLEDGE = "knowledge"
MIXED = "mixed"
ALL = "all"
"""The average over all data sets."""


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """What the figures need of one rollout and its verdict."""

    question_key: str
    dataset: str
    domain: str
    """math, qa or choice: what the verdict was made by."""
    score: float | None
    """P within [0, 1]: 1 or 0 for math and choice, F1 for qa; None without a verdict."""
    correct: bool | None
    """None exactly where `score` is."""
    f1: float
    calls_requested: int
    """T: what the agent asked for, run or refused."""
    calls_executed: int
    failed_calls: int
    """Wrong: calls with status error, timeout, invalid or empty; a refused call is none of these."""
    reasoning_tokens: int
    """L: tokens of the trajectory without tool results, by the evaluated model's tokenizer."""
    output_chars: int
    """Characters of the trajectory without tool results."""
    status: str
    is_valid_answer: bool


@dataclass(frozen=True, slots=True)
class DatasetFigures:
    """One model on one data set. Rollouts without a verdict are counted and left out of `means`."""

    dataset: str
    area: str
    """math; knowledge, for qa and choice; mixed, where rows of both are in one data set."""
    num_rollouts: int
    num_questions: int
    num_undecided: int
    """Rollouts without a verdict."""
    num_failed: int
    """Rollouts that infrastructure ended, accepted by the user; they count as wrong."""
    num_valid: int
    statuses: dict[str, int]
    """Status -> number of rollouts, by name."""
    call_success: float | None
    """Share of the calls of all rollouts together that did not fail; None without calls. Refused calls are left out."""
    means: dict[str, float]
    """Name in `FIGURES` -> mean over the rollouts with a verdict."""


def efficiency(score: float, calls_requested: int) -> float:
    """P / T, and P itself without calls: what each call brought. Within [0, P]."""
    return score / max(calls_requested, 1)


def successful_execution(score: float, failed_calls: int) -> float:
    """P / max(Wrong, 1), as published: the first failed call costs nothing. Within [0, P]."""
    return score / max(failed_calls, 1)


def strict_successful_execution(score: float, failed_calls: int) -> float:
    """P / (1 + Wrong): every failed call costs. Never above `successful_execution`."""
    return score / (1 + failed_calls)


def reasoning_length(score: float, reasoning_tokens: int) -> float:
    """Correctness per thousand tokens of reasoning, 1000 · P / max(L, 1); more is better."""
    return PER_THOUSAND * score / max(reasoning_tokens, 1)


FIGURES: Mapping[str, Callable[[ScoredRollout, float], float]] = {
    "accuracy": lambda rollout, _: float(rollout.correct is True),
    "score": lambda _, score: score,
    "f1": lambda rollout, _: rollout.f1,
    "efficiency": lambda rollout, score: efficiency(score, rollout.calls_requested),
    "successful_execution": lambda rollout, score: successful_execution(score, rollout.failed_calls),
    "successful_execution_strict": lambda rollout, score: strict_successful_execution(score, rollout.failed_calls),
    "reasoning_length": lambda rollout, score: reasoning_length(score, rollout.reasoning_tokens),
    "reasoning_tokens": lambda rollout, _: float(rollout.reasoning_tokens),
    "output_chars": lambda rollout, _: float(rollout.output_chars),
    "calls_requested": lambda rollout, _: float(rollout.calls_requested),
    "tool_use": lambda rollout, _: float(rollout.calls_requested > 0),
}
"""Every figure that is a mean over rollouts, as its value for one rollout and that rollout's P."""


def dataset_figures(rollouts: Iterable[ScoredRollout]) -> list[DatasetFigures]:
    """Figures of one model per data set, by name. Raises StageFailed for a data set without any verdict."""
    groups: dict[str, list[ScoredRollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.dataset, []).append(rollout)
    return [_figures(dataset, groups[dataset]) for dataset in sorted(groups)]


def _figures(dataset: str, rollouts: Sequence[ScoredRollout]) -> DatasetFigures:
    decided = [(rollout, rollout.score) for rollout in rollouts if rollout.score is not None]
    if not decided:
        raise StageFailed(f"data set {dataset}: none of {len(rollouts)} rollouts has a verdict; run its scores again")
    statuses = Counter(rollout.status for rollout in rollouts)
    executed = sum(rollout.calls_executed for rollout, _ in decided)
    failed = sum(rollout.failed_calls for rollout, _ in decided)
    return DatasetFigures(
        dataset=dataset,
        area=_area({rollout.domain for rollout in rollouts}),
        num_rollouts=len(rollouts),
        num_questions=len({rollout.question_key for rollout in rollouts}),
        num_undecided=len(rollouts) - len(decided),
        num_failed=statuses["failed"],
        num_valid=sum(rollout.is_valid_answer for rollout in rollouts),
        statuses={status: statuses[status] for status in sorted(statuses)},
        call_success=(executed - failed) / executed if executed else None,
        means={
            name: math.fsum(term(rollout, score) for rollout, score in decided) / len(decided)
            for name, term in FIGURES.items()
        },
    )


def _area(domains: set[str]) -> str:
    if domains == {MATH}:
        return MATH
    return MIXED if MATH in domains else KNOWLEDGE


def averages(parts: Sequence[DatasetFigures]) -> dict[str, dict[str, float]]:
    """Unweighted means over data sets, however many rows each has: `all`, and `math` and `knowledge` where they occur.

    A data set of mixed area counts in `all` alone.
    """
    groups = {ALL: list(parts)} | {area: [part for part in parts if part.area == area] for area in (MATH, KNOWLEDGE)}
    return {
        area: {name: math.fsum(part.means[name] for part in group) / len(group) for name in group[0].means}
        for area, group in groups.items()
        if group
    }


def question_sums(rollouts: Iterable[ScoredRollout], figure: str) -> list[tuple[float, int]]:
    """Sum of one of `FIGURES` and number of rollouts with a verdict, per question with any, by question key.

    This is what the intervals of `eval/statistics.py` are made from.
    """
    values: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.score is not None:
            values.setdefault(rollout.question_key, []).append(FIGURES[figure](rollout, rollout.score))
    return [(math.fsum(values[key]), len(values[key])) for key in sorted(values)]
