"""Figures of one model's scored rollouts, per data set and over data sets. Pure: records in, numbers out.

Documented in docs/behaviour/metrics.md; efficiency and the behaviour figures follow ET-Agent (arXiv 2601.06860). Sums
are exact before they are rounded (`math.fsum`), first over each question's rollouts and then over questions, so that no
figure depends on the order of records.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from treadle.eval.conciseness import is_redundant
from treadle.eval.scored_rollout import ScoredRollout
from treadle.eval.statistics import pass_at_k

PER_THOUSAND = 1_000
"""Correctness per token of reasoning is a small number; it is given per thousand tokens, as published."""

MATH = "math"
KNOWLEDGE = "knowledge"
MIXED = "mixed"
ALL = "all"
"""The average over the headline data sets, or over all where there are none of these."""
EVERY = "every"
"""The average over all data sets, where that is another."""

_PASS_AT = "pass@"

Term = Callable[[ScoredRollout], tuple[float, float] | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a data set: the sum of its terms' first parts over that of their second parts."""

    term: Term
    """Of one rollout; None where it is undecided: the verdict, the tokenizer or the votes are missing. Where the second
    part is 0 there was nothing to say, and the rollout is none of the figure's."""
    bounds: tuple[float, float] | None = None
    """Where all quotients of terms lie, whatever the rollout; None for numbers without an upper end."""
    rests_on: str = ""
    """A figure without which this one is none, although terms are left, where some say nothing."""


@dataclass(frozen=True, slots=True)
class FigureSums:
    """A figure's terms, summed up by question; what its mean and its interval are made from."""

    questions: dict[str, tuple[float, float]]
    """Question key -> sums of both parts; questions of which no rollout says anything are absent."""
    is_binary: bool
    """Whether every rollout counts once, as 0 or 1."""
    num_undecided: int
    """Rollouts that say nothing."""

    @property
    def value(self) -> float | None:
        """The figure; None where there is nothing to divide by."""
        total = math.fsum(count for _, count in self.questions.values())
        return math.fsum(amount for amount, _ in self.questions.values()) / total if total else None


@dataclass(frozen=True, slots=True)
class DatasetFigures:
    """One model on one data set."""

    dataset: str
    area: str
    """math; knowledge, for qa and choice; mixed, where rows of both are in a data set that nothing is said of."""
    num_rollouts: int
    num_questions: int
    sums: dict[str, FigureSums]
    """Name of a figure, in `FIGURES` or pass@k -> what it is made from."""
    counts: dict[str, int]
    """Numbers of rollouts: num_failed (ended by infrastructure, accepted by the user; they count as wrong), num_valid
    (ended with an answer), and how many by status:, scorer: (who decided), judge_status: and tools_used:."""

    @property
    def means(self) -> dict[str, float | None]:
        """Name of a figure -> its value; None where no rollout says anything."""
        return {name: sums.value for name, sums in self.sums.items()}


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


def _once(value: float | None) -> tuple[float, float] | None:
    return None if value is None else (value, 1.0)


def _share(value: Callable[[ScoredRollout], float | None]) -> Figure:
    return Figure(lambda rollout: _once(value(rollout)), (0.0, 1.0))


def _share_of_score(value: Callable[[ScoredRollout, float], float]) -> Figure:
    return _share(lambda rollout: None if rollout.score is None else value(rollout, rollout.score))


def _number(value: Callable[[ScoredRollout], float | None]) -> Figure:
    return Figure(lambda rollout: _once(value(rollout)))


def _reasoning_length(rollout: ScoredRollout) -> float | None:
    if rollout.score is None or rollout.reasoning_tokens is None:
        return None
    return reasoning_length(rollout.score, rollout.reasoning_tokens)


def _conciseness(rollout: ScoredRollout) -> tuple[float, float] | None:
    """Without a call there is nothing to be redundant, whatever was voted."""
    if rollout.votes is None:
        return None
    redundant = rollout.calls_requested > 0 and is_redundant(rollout.votes)
    return None if redundant is None else (float(not redundant), 1.0)


FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        "score": _share_of_score(lambda _, score: score),
        "accuracy": _share(lambda rollout: None if rollout.correct is None else float(rollout.correct)),
        "em": _share(lambda rollout: rollout.em),
        "acc": _share(lambda rollout: rollout.acc),
        "f1": _share(lambda rollout: rollout.f1),
        "f1_legacy": _share(lambda rollout: rollout.f1_legacy),
        "efficiency": _share_of_score(lambda rollout, score: efficiency(score, rollout.calls_requested)),
        "conciseness": Figure(_conciseness, (0.0, 1.0), rests_on="conciseness_tool_users"),
        "conciseness_tool_users": Figure(
            lambda rollout: _conciseness(rollout) if rollout.calls_requested else (0.0, 0.0), (0.0, 1.0)
        ),
        "successful_execution": _share_of_score(
            lambda rollout, score: successful_execution(score, rollout.failed_calls)
        ),
        "successful_execution_strict": _share_of_score(
            lambda rollout, score: strict_successful_execution(score, rollout.failed_calls)
        ),
        "call_success": Figure(
            lambda rollout: (rollout.calls_executed - rollout.failed_calls, rollout.calls_executed), (0.0, 1.0)
        ),
        "reasoning_length": _number(_reasoning_length),
        "reasoning_tokens": _number(lambda rollout: rollout.reasoning_tokens),
        "output_chars": _number(lambda rollout: rollout.output_chars),
        "prompt_tokens": _number(lambda rollout: rollout.prompt_tokens),
        "completion_tokens": _number(lambda rollout: rollout.completion_tokens),
        "calls_requested": _number(lambda rollout: rollout.calls_requested),
        "python_calls": _number(lambda rollout: rollout.python_calls),
        "search_calls": _number(lambda rollout: rollout.search_calls),
        "tool_use": _share(lambda rollout: float(rollout.calls_requested > 0)),
    }
)
"""Every figure that is made of single rollouts, by name. All of them count, those without a verdict too, where the
figure needs none."""


_NEEDS_CALLS = frozenset({"efficiency"})


def says_something(name: str, num_calls: float) -> bool:
    """Whether a figure is one at all of so many requested calls: what each call brought is none without a call."""
    return num_calls > 0 or name not in _NEEDS_CALLS


def figure_sums(rollouts: Iterable[ScoredRollout], name: str) -> FigureSums:
    """Sums of one of `FIGURES` over one model's rollouts on one data set, by question, in the order of their keys."""
    given = list(rollouts)
    figure = FIGURES[name]
    terms: dict[str, list[tuple[float, float]]] = {}
    is_binary, num_undecided = True, 0
    for rollout in given:
        term = figure.term(rollout)
        if term is None:
            num_undecided += 1
        elif term[1]:
            is_binary = is_binary and term[1] == 1 and term[0] in (0, 1)
            terms.setdefault(rollout.question_key, []).append(term)
    if figure.rests_on and num_undecided and figure_sums(given, figure.rests_on).value is None:
        return FigureSums({}, False, len(given))
    return FigureSums({key: _sum(terms[key]) for key in sorted(terms)}, is_binary, num_undecided)


def _sum(terms: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return math.fsum(amount for amount, _ in terms), math.fsum(count for _, count in terms)


def pass_at_sums(rollouts: Iterable[ScoredRollout], k: int) -> FigureSums:
    """pass@k of each question by the rollouts with a verdict; questions with fewer than k of them are left out."""
    given = list(rollouts)
    verdicts: dict[str, list[bool]] = {}
    for rollout in given:
        if rollout.correct is not None:
            verdicts.setdefault(rollout.question_key, []).append(rollout.correct)
    kept = {key: verdicts[key] for key in sorted(verdicts) if len(verdicts[key]) >= k}
    chances = {key: (pass_at_k(len(ours), sum(ours), k), 1.0) for key, ours in kept.items()}
    is_binary = all(chance in (0.0, 1.0) for chance, _ in chances.values())
    return FigureSums(chances, is_binary, len(given) - sum(map(len, kept.values())))


def sums_of(rollouts: Iterable[ScoredRollout], name: str) -> FigureSums:
    """Sums of a figure by its name: one of `FIGURES`, or pass@k."""
    if name.startswith(_PASS_AT):
        return pass_at_sums(rollouts, int(name.removeprefix(_PASS_AT)))
    return figure_sums(rollouts, name)


def bounds_of(name: str) -> tuple[float, float] | None:
    """Where all values of a figure lie, by its name."""
    return (0.0, 1.0) if name.startswith(_PASS_AT) else FIGURES[name].bounds


def pass_at_ks(rollouts: Iterable[ScoredRollout]) -> list[int]:
    """2, 4, 8, … up to the number of rollouts that every question has, and that number; none where it is 1."""
    least = min(Counter(rollout.question_key for rollout in rollouts).values(), default=1)
    powers = [1 << exponent for exponent in range(1, least.bit_length())]
    return sorted({*powers, least} - {1})


def by_dataset(rollouts: Iterable[ScoredRollout]) -> dict[str, list[ScoredRollout]]:
    """One model's rollouts by data set, in the order of names."""
    groups: dict[str, list[ScoredRollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.dataset, []).append(rollout)
    return {dataset: groups[dataset] for dataset in sorted(groups)}


def dataset_figures(
    rollouts: Iterable[ScoredRollout], areas: Mapping[str, str] = MappingProxyType({})
) -> list[DatasetFigures]:
    """Figures of one model per data set, by name; `areas` says what a data set is of, else its rows' domains do."""
    return [_figures(dataset, group, areas) for dataset, group in by_dataset(rollouts).items()]


def _figures(dataset: str, rollouts: Sequence[ScoredRollout], areas: Mapping[str, str]) -> DatasetFigures:
    sums = {name: figure_sums(rollouts, name) for name in FIGURES}
    sums |= {f"{_PASS_AT}{k}": pass_at_sums(rollouts, k) for k in pass_at_ks(rollouts)}
    return DatasetFigures(
        dataset=dataset,
        area=areas.get(dataset) or _area({rollout.domain for rollout in rollouts}),
        num_rollouts=len(rollouts),
        num_questions=len({rollout.question_key for rollout in rollouts}),
        sums=sums,
        counts=_counts(rollouts),
    )


def _area(domains: set[str]) -> str:
    if domains == {MATH}:
        return MATH
    return MIXED if MATH in domains else KNOWLEDGE


def _counts(rollouts: Sequence[ScoredRollout]) -> dict[str, int]:
    kinds = Counter(kind for rollout in rollouts for kind in rollout.kinds())
    return {
        "num_failed": kinds["status:failed"],
        "num_valid": sum(rollout.is_valid_answer for rollout in rollouts),
        **{kind: kinds[kind] for kind in sorted(kinds)},
    }


def averaged(parts: Sequence[DatasetFigures], headline: Collection[str] = ()) -> dict[str, list[DatasetFigures]]:
    """Name of an average -> the data sets that it is over: `all`, and `math` and `knowledge` where they occur.

    These are over the data sets of the headline, or over all where there are none of these; `every` is over all, where
    that is another. A data set of mixed area counts in `all` and `every` alone.
    """
    chosen = [part for part in parts if part.dataset in headline] or list(parts)
    groups = {ALL: chosen} | {area: [part for part in chosen if part.area == area] for area in (MATH, KNOWLEDGE)}
    if len(chosen) < len(parts):
        groups[EVERY] = list(parts)
    return {name: group for name, group in groups.items() if group}
