"""Which figures of scored rollouts there are: what each is made of, and how it is called and shown.

Documented in docs/behaviour/metrics.md; efficiency and the behaviour figures follow ET-Agent (arXiv 2601.06860).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from treadle.eval.conciseness import is_redundant
from treadle.eval.scored_rollout import ScoredRollout

PER_THOUSAND = 1_000
"""Correctness per token of reasoning is a small number; it is given per thousand tokens, as published."""

PASS_AT = "pass@"
"""The name of pass@k without the k; it is no figure of single rollouts."""

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


def _mean_if_counted(value: Callable[[ScoredRollout], float]) -> Term:
    """The same of numbers of tokens, where they were counted."""
    return lambda rollout: (value(rollout), 1.0) if rollout.has_known_tokens else None


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
            "sampled tokens", "tokens", _mean_if_counted(lambda rollout: rollout.completion_tokens), place="headline"
        ),
        "prompt_tokens": Figure("prompt tokens", "prompts", _mean_if_counted(lambda rollout: rollout.prompt_tokens)),
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
    return name in FIGURES or name.startswith(PASS_AT)


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


def bounds_of(name: str) -> tuple[float, float] | None:
    """Where all values of a figure lie, by its name."""
    return _SHARE if name.startswith(PASS_AT) else FIGURES[name].bounds
