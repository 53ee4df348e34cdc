"""Define the figures of scored rollouts: how each is computed, named and shown.

Documented in docs/behaviour/metrics.md; efficiency and the behaviour figures follow ET-Agent (arXiv 2601.06860).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from treadle.environments.diagnosis.facts import ENDED
from treadle.environments.planning import parts as planning_parts
from treadle.environments.scorers.answer import AnswerScorer
from treadle.eval.figures.attempts import is_over_attempts
from treadle.eval.figures.response_lengths import QUANTILES
from treadle.eval.scored_rollout import ScoredRollout, is_redundant

PER_THOUSAND = 1_000
"""Factor of `reasoning_length`: correctness per token is small, so it is given per thousand tokens, as published."""

Place = Literal["headline", "behaviour", "detail"]

Term = Callable[[ScoredRollout], tuple[float, float] | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a data set: sum of numerators divided by sum of denominators, and how it is shown.

    Reports and the page take titles, units and placement from here, so that they show the same figures.
    """

    title: str
    heading: str
    """Short title above a narrow column."""
    term: Term
    """Numerator and denominator of one rollout. None if undecided: the verdict, the tokenizer or the votes are missing.
    A denominator of 0 means that the rollout does not count in this figure."""
    bounds: tuple[float, float] | None = None
    """Bounds of the value; a figure with bounds is a share. None for numbers without an upper bound."""
    requires_figure: str = ""
    """Name of another figure: if that figure has no value and some rollouts are undecided, this figure has none
    either."""
    needs: tuple[Literal["calls", "votes"], ...] = ()
    """What the figure needs, tool calls or votes: without any in a model's rollouts, the figure is meaningless."""
    of: Literal["answers", "rewards"] | None = None
    """Data sets that have the figure: those scored by gold answers, or by their environment; None for all."""
    of_calls: bool = False
    """Whether a data set scored by its environment has the figure only if its rollouts made calls: an environment may
    have no tools."""
    per_pass: bool = False
    """Whether it is an amount per right answer: the denominators count these, so rollouts with 0 count, too."""
    is_money: bool = False
    """Whether it is an amount in the currency of the prices."""
    place: Place = "detail"
    """Table in which the figure is a column. The table of all figures has every one."""
    note: str = ""
    """Explanation below the table of all figures."""


def efficiency(score: float, calls_requested: int) -> float:
    """Return score / calls_requested, or the score without calls: correctness per call, within [0, score]."""
    return score / max(calls_requested, 1)


def successful_execution(score: float, failed_calls: int) -> float:
    """Return score / max(failed_calls, 1), as published: the first failed call costs nothing. Within [0, score]."""
    return score / max(failed_calls, 1)


def strict_successful_execution(score: float, failed_calls: int) -> float:
    """Return score / (1 + failed_calls): every failed call costs. At most `successful_execution`."""
    return score / (1 + failed_calls)


def reasoning_length(score: float, reasoning_tokens: int) -> float:
    """Return correctness per thousand tokens of reasoning, 1000 · P / max(L, 1); more is better."""
    return PER_THOUSAND * score / max(reasoning_tokens, 1)


_SHARE = (0.0, 1.0)


def _once(value: float | None) -> tuple[float, float] | None:
    return None if value is None else (value, 1.0)


def _mean(value: Callable[[ScoredRollout], float | None]) -> Term:
    """Build a term in which every rollout with a value counts once."""
    return lambda rollout: _once(value(rollout))


def _mean_if_counted(value: Callable[[ScoredRollout], float]) -> Term:
    """Build a term of a token count; rollouts without token counts are undecided."""
    return lambda rollout: (value(rollout), 1.0) if rollout.has_known_tokens else None


def _mean_by_score(value: Callable[[ScoredRollout, float], float]) -> Term:
    """Build a term that is computed from the score P of a rollout; rollouts without a score are undecided."""
    return lambda rollout: None if rollout.score is None else (value(rollout, rollout.score), 1.0)


def _reasoning_length(rollout: ScoredRollout) -> float | None:
    if rollout.score is None or rollout.reasoning_tokens is None:
        return None
    return reasoning_length(rollout.score, rollout.reasoning_tokens)


def _ended(rollout: ScoredRollout) -> float:
    """Return 1 for a non-empty answer, else 0; for a rollout with a reward, 1 if it ended with its task."""
    return float(rollout.status in ENDED if rollout.is_reward else rollout.is_valid_answer)


def _reward(rollout: ScoredRollout) -> float | None:
    """Return the reward, None without one. A lost rollout has none: 0 could be better than the rewards of others."""
    return rollout.score if rollout.is_reward else None


def _conciseness(rollout: ScoredRollout) -> tuple[float, float] | None:
    """Return the conciseness term; None without votes, or if there are calls but no majority of votes.

    A rollout without calls is concise.
    """
    if rollout.votes is None:
        return None
    redundant = rollout.calls_requested > 0 and is_redundant(rollout.votes)
    return None if redundant is None else (float(not redundant), 1.0)


def _conciseness_with_calls(rollout: ScoredRollout) -> tuple[float, float] | None:
    return _conciseness(rollout) if rollout.calls_requested else (0.0, 0.0)


def _per_pass(value: Callable[[ScoredRollout], float | None]) -> Term:
    """Build a term of an amount per right answer; undecided without a verdict or without the amount."""

    def term(rollout: ScoredRollout) -> tuple[float, float] | None:
        amount = value(rollout)
        return None if rollout.correct is None or amount is None else (amount, float(rollout.correct))

    return term


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
        "ended": Figure("ended with an answer", "ended", _mean(_ended), _SHARE, place="headline"),
        "score": Figure(
            "correctness", "P", _mean_by_score(lambda _, score: score), _SHARE, of="answers", place="headline"
        ),
        "reward": Figure("reward", "reward", _mean(_reward), of="rewards", place="headline"),
        "efficiency": Figure(
            "efficiency",
            "efficiency",
            _mean_by_score(lambda rollout, score: efficiency(score, rollout.calls_requested)),
            _SHARE,
            needs=("calls",),
            of="answers",
            place="headline",
        ),
        "conciseness": Figure(
            "conciseness",
            "concise",
            _conciseness,
            _SHARE,
            requires_figure="conciseness_tool_users",
            needs=("calls", "votes"),
            of="answers",
            place="behaviour",
        ),
        "conciseness_tool_users": Figure(
            "conciseness with calls",
            "with calls",
            _conciseness_with_calls,
            _SHARE,
            needs=("calls", "votes"),
            of="answers",
            place="behaviour",
        ),
        "successful_execution": Figure(
            "successful execution",
            "success",
            _mean_by_score(lambda rollout, score: successful_execution(score, rollout.failed_calls)),
            _SHARE,
            needs=("calls",),
            of="answers",
            place="behaviour",
        ),
        "successful_execution_strict": Figure(
            "successful execution, strict",
            "strict",
            _mean_by_score(lambda rollout, score: strict_successful_execution(score, rollout.failed_calls)),
            _SHARE,
            needs=("calls",),
            of="answers",
            place="behaviour",
        ),
        "call_success": Figure(
            "calls without failure", "ran well", _call_success, _SHARE, of_calls=True, place="behaviour"
        ),
        "reasoning_length": Figure(
            "correctness per 1,000 tokens", "P/1000", _mean(_reasoning_length), of="answers", place="behaviour"
        ),
        "num_turns": Figure("turns", "turns", _mean(lambda rollout: rollout.num_turns), place="headline"),
        "truncated": Figure(
            "truncated", "truncated", _mean(lambda rollout: float(rollout.truncated)), _SHARE, of="rewards"
        ),
        "calls_requested": Figure(
            "calls", "calls", _mean(lambda rollout: rollout.calls_requested), of_calls=True, place="headline"
        ),
        "tool_use": Figure(
            "rollouts with calls",
            "tool use",
            _mean(lambda rollout: float(rollout.calls_requested > 0)),
            _SHARE,
            of_calls=True,
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
        "calls_of_pass": Figure(
            "calls per right answer",
            "calls/right",
            _per_pass(lambda rollout: rollout.calls_requested),
            of_calls=True,
            per_pass=True,
        ),
        "tokens_of_pass": Figure(
            "sampled tokens per right answer",
            "tokens/right",
            _per_pass(lambda rollout: rollout.completion_tokens if rollout.has_known_tokens else None),
            per_pass=True,
        ),
        "cost": Figure("cost", "cost", _mean(lambda rollout: rollout.cost), is_money=True),
        "cost_of_pass": Figure(
            "cost of pass", "cost/right", _per_pass(lambda rollout: rollout.cost), per_pass=True, is_money=True
        ),
    }
)
"""Figures of single rollouts by name, in the order in which they are shown. All rollouts count, also those without a
verdict if the figure does not need one."""


JUDGED = "judge:"
"""Prefix of the names of figures for numbers that judges give; the name of the number follows."""

CALLS_OF, SUCCESS_OF = "calls:", "call_success:"
"""Prefixes of the names of figures for a single tool; the name of the tool follows."""


def _calls_of(tool: str) -> Figure:
    return Figure(f"calls of {tool}", tool, _mean(lambda rollout: rollout.calls_of(tool).requested), of_calls=True)


def _success_of(tool: str) -> Figure:
    def term(rollout: ScoredRollout) -> tuple[float, float]:
        calls = rollout.calls_of(tool)
        return calls.executed - calls.failed, calls.executed

    return Figure(f"calls of {tool} without failure", f"{tool} ran well", term, _SHARE, of_calls=True)


PART = "part:"
"""Prefix of the names of figures for parts of a score that a user's scorer declares; the name of the part follows.
Figures for parts of shipped scorers have no prefix."""


def _mean_of_part(name: str) -> Term:
    """Build the term of a figure for this part of a score; rollouts whose score has no such part do not count."""

    def term(rollout: ScoredRollout) -> tuple[float, float]:
        value = rollout.part(name)
        return (0.0, 0.0) if value is None else (value, 1.0)

    return term


def _part_of(name: str) -> Figure:
    return Figure(name, name, _mean_of_part(name))


def _part_of_answers(name: str, line: str) -> Figure:
    title, _, note = line.partition(": ")
    return Figure(title, name, _mean_of_part(name), _SHARE, note=note)


PARTS: Mapping[str, Figure] = MappingProxyType(
    {name: _part_of_answers(name, line) for name, line in AnswerScorer.PARTS.items()}
)
"""Figures of the parts that the shipped scorers declare, in their order; they follow the main figures."""

PLANNING = "planning:"
"""Prefix of the names of figures of planning agents, because a user's environment may have parts of the same names."""


def _part_of_planning(name: str) -> Figure:
    title, _, note = planning_parts.PARTS.get(name, name).partition(": ")
    return Figure(title, title, _mean_of_part(name), note=note)


def _judged(part: str) -> Figure:
    return Figure(f"{part}, by judges", part, _mean(lambda rollout: rollout.judge_parts.get(part)), _SHARE)


_OF_ONE = {
    CALLS_OF: _calls_of,
    SUCCESS_OF: _success_of,
    PART: _part_of,
    PLANNING: _part_of_planning,
    JUDGED: _judged,
}
_AFTER = {"calls_requested": CALLS_OF, "call_success": SUCCESS_OF}
"""Figure over all calls -> prefix of the figures of single tools, which are shown after it."""

MAIN_FIGURES = ("score", "reward")
"""Figures that rate the rollouts of a data set; each data set has exactly one of them."""


def figure_of(name: str) -> Figure | None:
    """Return a figure of single rollouts by name; None for any other name, such as pass@k.

    These are `FIGURES`, and figures of a part, a tool or a judge.
    """
    of_one = next((make for prefix, make in _OF_ONE.items() if name.startswith(prefix)), None)
    return (FIGURES.get(name) or PARTS.get(name)) if of_one is None else of_one(name.partition(":")[2])


def figures_of(rollouts: Iterable[ScoredRollout], tools: Sequence[str] = ()) -> list[str]:
    """Return the names of the figures that a data set has, given the rollouts of a model on it.

    Each of `tools` has its own figures, even if the model did not call it, and so has each number of the judges.
    """
    given = list(rollouts)
    is_of_rewards = any(rollout.is_reward for rollout in given)
    has_calls = not is_of_rewards or any(rollout.calls_requested for rollout in given)
    other = "answers" if is_of_rewards else "rewards"
    has_costs = any(rollout.cost is not None for rollout in given)
    names = [
        name
        for name, figure in FIGURES.items()
        if figure.of != other and (has_calls or not figure.of_calls) and (has_costs or not figure.is_money)
    ]
    of_tools = {name: [f"{_AFTER[name]}{tool}" for tool in tools] for name in names if name in _AFTER}
    found = [one for name in names for one in (name, *of_tools.get(name, ()))]
    place = max(found.index(name) for name in MAIN_FIGURES if name in found) + 1
    judged = sorted({part for rollout in given for part in rollout.judge_parts})
    return [*found[:place], *_part_figures(given), *found[place:], *(f"{JUDGED}{part}" for part in judged)]


def _part_figures(rollouts: Iterable[ScoredRollout]) -> list[str]:
    """Return the figures of all parts of the rollouts' scores: those of shipped scorers and planning agents first."""
    given = {tuple(name for name, _ in rollout.parts) for rollout in rollouts}
    names = {name for one in given for name in one}
    planning = {name for one in given if planning_parts.is_planning(one) for name in one}
    of_planning = [name for name in planning_parts.PARTS if name in planning]
    others = sorted(names - PARTS.keys() - set(of_planning))
    return [
        *(name for name in PARTS if name in names),
        *(f"{PLANNING}{name}" for name in of_planning),
        *(f"{PART}{name}" for name in others),
    ]


def notes_of(names: Iterable[str]) -> dict[str, str]:
    """Return title -> explanation of the figures among these names that have one."""
    figures = (figure_of(name) for name in names)
    return {figure.title: figure.note for figure in figures if figure is not None and figure.note}


def is_figure(name: str) -> bool:
    """Return whether a name in the summary is a figure, such as one of a tool or pass@k, not a rollout count."""
    return figure_of(name) is not None or is_over_attempts(name) or name in QUANTILES


def figures_in(place: Place) -> tuple[str, ...]:
    """Return the names of the figures of one table, in order."""
    return tuple(name for name, figure in FIGURES.items() if figure.place == place)


def title_of(name: str) -> str:
    """Return the title of a figure."""
    figure = figure_of(name)
    return QUANTILES.get(name, name) if figure is None else figure.title


def heading_of(name: str) -> str:
    """Return the short title of a figure for a narrow column."""
    figure = figure_of(name)
    return QUANTILES.get(name, name) if figure is None else figure.heading


def is_share(name: str) -> bool:
    """Return whether all values of a figure lie between 0 and 1."""
    return bounds_of(name) is not None


def is_per_pass(name: str) -> bool:
    """Return whether a figure is an amount per right answer, which has no mean over data sets."""
    return name in FIGURES and FIGURES[name].per_pass


def is_money(name: str) -> bool:
    """Return whether a figure is an amount in the currency of the prices."""
    return name in FIGURES and FIGURES[name].is_money


def needs(name: str, what: Literal["calls", "votes"]) -> bool:
    """Return whether a figure is meaningful only with at least one of `what`: tool calls, or votes on redundancy."""
    return name in FIGURES and what in FIGURES[name].needs


def is_meaningful(name: str, num_calls: float) -> bool:
    """Return whether a figure is meaningful given the number of requested calls."""
    return num_calls > 0 or not needs(name, "calls")


def bounds_of(name: str) -> tuple[float, float] | None:
    """Return the bounds of a figure by name, or None. Raise KeyError if there is no such figure."""
    if is_over_attempts(name):
        return _SHARE
    if name in QUANTILES:
        return None
    if (figure := figure_of(name)) is None:
        raise KeyError(name)
    return figure.bounds
