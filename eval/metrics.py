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
from typing import Literal

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
AVERAGES = (ALL, EVERY, MATH, KNOWLEDGE)
"""Names of averages over data sets, the one that models are told apart by first."""

_PASS_AT = "pass@"

Place = Literal["headline", "behaviour", "detail"]

Term = Callable[[ScoredRollout], tuple[float, float] | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a data set: the sum of its terms' first parts over that of their second parts; and how it is shown.

    Reports and the page take titles, units and places from here, so that no figure is in one of them alone.
    """

    title: str
    heading: str
    """The title above a narrow column."""
    term: Term
    """Of one rollout; None where it is undecided: the verdict, the tokenizer or the votes are missing. Where the second
    part is 0 there was nothing to say, and the rollout is none of the figure's."""
    bounds: tuple[float, float] | None = None
    """Where all quotients of terms lie, whatever the rollout: such a figure is a share. None for numbers without an
    upper end."""
    rests_on: str = ""
    """A figure without which this one is none, although terms are left, where some say nothing."""
    needs: Literal["calls", "votes"] | None = None
    """What there has to be some of among a model's rollouts for this to be a figure at all."""
    place: Place = "detail"
    """The table that it is a column of; all stand in the table of all figures."""


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

    judges: tuple[str, ...]
    """Everybody who was asked about an answer."""
    joint_verdicts: tuple[tuple[bool, ...], ...]
    """Of the rollouts on which all of several judges have one, in the order of `judges`."""


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


_SHARE = (0.0, 1.0)


def _once(value: float | None) -> tuple[float, float] | None:
    return None if value is None else (value, 1.0)


def _mean(value: Callable[[ScoredRollout], float | None]) -> Term:
    """Every rollout with a value counts once."""
    return lambda rollout: _once(value(rollout))


def _mean_by_score(value: Callable[[ScoredRollout, float], float]) -> Term:
    """The same of what is made from P."""
    return lambda rollout: None if rollout.score is None else (value(rollout, rollout.score), 1.0)


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


def _conciseness_with_calls(rollout: ScoredRollout) -> tuple[float, float] | None:
    return _conciseness(rollout) if rollout.calls_requested else (0.0, 0.0)


def _call_success(rollout: ScoredRollout) -> tuple[float, float]:
    return rollout.calls_executed - rollout.failed_calls, rollout.calls_executed


FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        "accuracy": Figure(
            "right",
            "accuracy",
            _mean(lambda rollout: None if rollout.correct is None else float(rollout.correct)),
            _SHARE,
            place="headline",
        ),
        "score": Figure("correctness", "P", _mean_by_score(lambda _, score: score), _SHARE, place="headline"),
        "em": Figure("exact match", "em", _mean(lambda rollout: rollout.em), _SHARE),
        "acc": Figure("containment", "acc", _mean(lambda rollout: rollout.acc), _SHARE),
        "f1": Figure("F1", "F1", _mean(lambda rollout: rollout.f1), _SHARE),
        "f1_legacy": Figure("F1 as published", "F1 legacy", _mean(lambda rollout: rollout.f1_legacy), _SHARE),
        "efficiency": Figure(
            "efficiency",
            "efficiency",
            _mean_by_score(lambda rollout, score: efficiency(score, rollout.calls_requested)),
            _SHARE,
            needs="calls",
            place="headline",
        ),
        "conciseness": Figure(
            "conciseness",
            "concise",
            _conciseness,
            _SHARE,
            rests_on="conciseness_tool_users",
            needs="votes",
            place="behaviour",
        ),
        "conciseness_tool_users": Figure(
            "conciseness with calls", "with calls", _conciseness_with_calls, _SHARE, needs="votes", place="behaviour"
        ),
        "successful_execution": Figure(
            "successful execution",
            "success",
            _mean_by_score(lambda rollout, score: successful_execution(score, rollout.failed_calls)),
            _SHARE,
            place="behaviour",
        ),
        "successful_execution_strict": Figure(
            "successful execution, strict",
            "strict",
            _mean_by_score(lambda rollout, score: strict_successful_execution(score, rollout.failed_calls)),
            _SHARE,
            place="behaviour",
        ),
        "call_success": Figure("calls without failure", "ran well", _call_success, _SHARE, place="behaviour"),
        "reasoning_length": Figure(
            "correctness per 1,000 tokens", "P/1000", _mean(_reasoning_length), place="behaviour"
        ),
        "calls_requested": Figure("calls", "calls", _mean(lambda rollout: rollout.calls_requested), place="headline"),
        "python_calls": Figure("Python calls", "Python", _mean(lambda rollout: rollout.python_calls)),
        "search_calls": Figure("searches", "searches", _mean(lambda rollout: rollout.search_calls)),
        "tool_use": Figure(
            "rollouts with calls",
            "tool use",
            _mean(lambda rollout: float(rollout.calls_requested > 0)),
            _SHARE,
            place="behaviour",
        ),
        "completion_tokens": Figure(
            "sampled tokens", "tokens", _mean(lambda rollout: rollout.completion_tokens), place="headline"
        ),
        "prompt_tokens": Figure("prompt tokens", "prompts", _mean(lambda rollout: rollout.prompt_tokens)),
        "reasoning_tokens": Figure(
            "tokens without results", "L", _mean(lambda rollout: rollout.reasoning_tokens), place="behaviour"
        ),
        "output_chars": Figure("characters without results", "chars", _mean(lambda rollout: rollout.output_chars)),
    }
)
"""Every figure that is made of single rollouts, by name, in the order in which they are shown. All rollouts count,
those without a verdict too, where the figure needs none."""


def is_figure(name: str) -> bool:
    """Whether a name of the summary is that of a figure, one of `FIGURES` or pass@k, and no number of rollouts."""
    return name in FIGURES or name.startswith(_PASS_AT)


def placed(place: Place) -> tuple[str, ...]:
    """Names of the figures of one table, in order."""
    return tuple(name for name, figure in FIGURES.items() if figure.place == place)


def title_of(name: str) -> str:
    """A figure as readers know it."""
    return FIGURES[name].title if name in FIGURES else name


def heading_of(name: str) -> str:
    """The same above a narrow column."""
    return FIGURES[name].heading if name in FIGURES else name


def is_share(name: str) -> bool:
    """Whether all values of a figure lie within 0 and 1."""
    return bounds_of(name) is not None


def needs(name: str, what: Literal["calls", "votes"]) -> bool:
    """Whether a figure is none without any of these."""
    return name in FIGURES and FIGURES[name].needs == what


def says_something(name: str, num_calls: float) -> bool:
    """Whether a figure is one at all of so many requested calls: what each call brought is none without a call."""
    return num_calls > 0 or not needs(name, "calls")


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
    return _SHARE if name.startswith(_PASS_AT) else FIGURES[name].bounds


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
    groups = by_dataset(rollouts)
    found = areas_of(groups, areas)
    return [_figures(dataset, group, found[dataset]) for dataset, group in groups.items()]


def areas_of(datasets: Mapping[str, Iterable[ScoredRollout]], areas: Mapping[str, str]) -> dict[str, str]:
    """What each data set is of: by `areas`, else by the domains of its rollouts."""
    return {
        dataset: areas.get(dataset) or _area({rollout.domain for rollout in rollouts})
        for dataset, rollouts in datasets.items()
    }


def _figures(dataset: str, rollouts: Sequence[ScoredRollout], area: str) -> DatasetFigures:
    sums = {name: figure_sums(rollouts, name) for name in FIGURES}
    judges = tuple(sorted({judge for rollout in rollouts for judge, _ in rollout.opinions}))
    sums |= {f"{_PASS_AT}{k}": pass_at_sums(rollouts, k) for k in pass_at_ks(rollouts)}
    return DatasetFigures(
        dataset=dataset,
        area=area,
        num_rollouts=len(rollouts),
        num_questions=len({rollout.question_key for rollout in rollouts}),
        sums=sums,
        counts=_counts(rollouts),
        judges=judges,
        joint_verdicts=_joint_verdicts(rollouts, judges),
    )


def _joint_verdicts(rollouts: Sequence[ScoredRollout], judges: Sequence[str]) -> tuple[tuple[bool, ...], ...]:
    if len(judges) < 2:
        return ()
    found = []
    for rollout in rollouts:
        verdicts = [verdict for _, verdict in rollout.opinions if verdict is not None]
        if len(verdicts) == len(judges):
            found.append(tuple(verdicts))
    return tuple(found)


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


def of_headline(datasets: Sequence[str], headline: Collection[str]) -> list[str]:
    """The data sets that `all` is over: those of the headline, or all where there are none of these."""
    return [dataset for dataset in datasets if dataset in headline] or list(datasets)


def averaged(areas: Mapping[str, str], headline: Collection[str] = ()) -> dict[str, list[str]]:
    """Name of an average -> the data sets that it is over, from what each data set is of.

    `all`, and `math` and `knowledge` where they occur, are over those of the headline (`of_headline`); `every` is over
    all, where that is another. A data set of mixed area counts in `all` and `every` alone.
    """
    chosen = of_headline(list(areas), headline)
    groups = {ALL: chosen} | {area: [one for one in chosen if areas[one] == area] for area in (MATH, KNOWLEDGE)}
    if len(chosen) < len(areas):
        groups[EVERY] = list(areas)
    return {name: group for name, group in groups.items() if group}
