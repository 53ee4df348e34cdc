"""Score finished rollouts by the scorers of a run, in the stage `scores` and in reinforcement learning."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Protocol, Self

import orjson

from treadle.agent.contract import Outcome, Task
from treadle.agent.jobs.runner import cause_of
from treadle.agent.outcome_values import as_number
from treadle.core.answers.extraction import BY_CANDIDATE
from treadle.core.answers.score import Score
from treadle.environments.mixture import Environments
from treadle.environments.registry import traits_of
from treadle.environments.scorers.answer import AnswerScorer, AnswerTools
from treadle.environments.scorers.base import STATUS, Scorer, Stores, no_verdict
from treadle.environments.scorers.environment import ENVIRONMENT, EnvironmentScorer
from treadle.environments.scorers.outcome import LARGEST_SCORE, SUCCESS_SCORE, OutcomeScorer
from treadle.environments.scorers.registry import reads_all, scorer_named
from treadle.environments.scorers.user_loop import ScorerCall, UserLoop
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.stored_rollout import StoredRollout

ANSWERED = "answered"
FAILED = "failed"
"""Status of a rollout that infrastructure, not the policy, ended."""

_MAX_ERROR_CHARS = 500
_MAX_DETAIL_CHARS = 4_000_000

_log = logging.getLogger(__name__)


class FinishedRollout(Protocol):
    """Parts of a rollout that scoring reads; `stored` is called only for scorers that read the whole rollout."""

    @property
    def task(self) -> Task:
        """The task, with gold answers, and with payload if the run has scorers that read it."""
        ...

    @property
    def status(self) -> str:
        """How it ended."""
        ...

    @property
    def prediction(self) -> str:
        """Its answer; empty if there is none."""
        ...

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the episode, as the tools reported it."""
        ...

    def stored(self) -> StoredRollout:
        """Return the whole rollout."""
        ...


@dataclass(frozen=True, slots=True)
class NamedScorer:
    """A scorer with its name in rows and messages."""

    name: str
    scorer: Scorer


class OpenScorers:
    """The scorers of a run. Safe to use from several threads, outside of event loops."""

    def __init__(
        self,
        entries: Mapping[str, Scorer],
        environments: Environments = MappingProxyType({}),
        tools: AnswerTools | None = None,
        store: Stores | None = None,
    ) -> None:
        """Use the entries of the table `scorers`; `environments` are those that score their own tasks, by name.

        `store` returns a store by its name, such as one of the run, for scorers that read pictures of rollouts, or
        keep replies of models.
        """
        self._entries = entries
        self._tools = tools or AnswerTools()
        self._environments = {name: _scorer_of_type(one, entries) for name, one in environments.items()}
        of_types = {one.name: one.scorer for one in self._environments.values() if one.name != ENVIRONMENT}
        of_users = {name: scorer for name, scorer in {**entries, **of_types}.items() if reads_all(scorer)}
        if store is not None:
            for scorer in of_users.values():
                scorer.use_stores(store)
        self._users = UserLoop(of_users)
        self.reads_all = bool(of_users) or bool(environments)
        """Whether some scorers read the whole rollout and its task, payload included."""

    def __enter__(self) -> Self:
        """Return this object; scorers are opened when they are first needed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users.close()

    def scorer_of(self, task: Task) -> NamedScorer:
        """Return the scorer of a task: the one it names, else its environment's or its domain's.

        Raises ConfigError if no scorer has that name.
        """
        environment = self._environments.get(task.environment)
        if environment is None:
            return NamedScorer(task.rule, scorer_named(task.rule, self._entries))
        if task.scorer is not None:
            named = scorer_named(task.scorer, self._entries)
            if not named.NEEDS_ANSWERS:
                return NamedScorer(task.scorer, named)
        return environment

    def scores(
        self, rollouts: Sequence[FinishedRollout], run: Callable[..., Iterable[Score]] | None = None
    ) -> list[Score]:
        """Return the verdicts on rollouts, in their order; an error of a user's code leaves a rollout without one.

        Raises EndpointUnavailable if a scorer cannot reach its service.

        `run` is a replacement of `map` for comparisons of answers, such as that of a pool of threads.
        """
        found = []
        for rollout, result in zip(rollouts, self.results(rollouts, run), strict=True):
            if isinstance(result, Exception):
                name = self.scorer_of(rollout.task).name
                _log.warning("a rollout of task %s could not be scored by %s: %s", rollout.task.key, name, result)
                result = no_verdict(cause_of(result)[:_MAX_ERROR_CHARS], name)
            found.append(result)
        return found

    def results(
        self, rollouts: Sequence[FinishedRollout], run: Callable[..., Iterable[Score]] | None = None
    ) -> list[Score | Exception]:
        """Return verdicts like `scores`; if a scorer raised an exception, return it in place of the verdict."""
        named = [self.scorer_of(rollout.task) for rollout in rollouts]
        whole = [
            number
            for number, (one, rollout) in enumerate(zip(named, rollouts, strict=True))
            if reads_all(one.scorer) and is_decided(one.scorer, rollout) is None
        ]
        calls = [
            ScorerCall(named[number].name, named[number].scorer, rollouts[number].task, rollouts[number].stored)
            for number in whole
        ]
        found: dict[int, Score | Exception] = {}
        if calls:
            returned = self._users.results(calls)
            found = {number: _checked(call, value) for number, call, value in zip(whole, calls, returned, strict=True)}
        others = [number for number in range(len(rollouts)) if number not in found]
        compared = (run or map)(
            self._compared, (named[one].scorer for one in others), (rollouts[one] for one in others)
        )
        found |= dict(zip(others, compared, strict=True))
        return [found[number] for number in range(len(rollouts))]

    def rule_score(self, rollout: FinishedRollout) -> Score:
        """Return the verdict on a rollout whose scorer runs no code of users."""
        return self._compared(self.scorer_of(rollout.task).scorer, rollout)

    def _compared(self, scorer: Scorer, rollout: FinishedRollout) -> Score:
        if (decided := is_decided(scorer, rollout)) is not None:
            return decided
        if isinstance(scorer, OutcomeScorer):
            return scorer.verdict(rollout.outcome)
        assert isinstance(scorer, AnswerScorer), "scorers of other kinds run in a loop of their own"
        task = rollout.task
        return scorer.compare(rollout.prediction, task.answers, task.choices, self._tools)


def _scorer_of_type(environment: EnvironmentSettings, entries: Mapping[str, Scorer]) -> NamedScorer:
    """Return the scorer of tasks that name none: the one that their type names, else the environment itself."""
    name = traits_of(environment).scorer
    if name is None:
        return NamedScorer(ENVIRONMENT, EnvironmentScorer().of(environment))
    return NamedScorer(name, scorer_named(name, entries))


def has_given(status: str, outcome: Outcome | None) -> bool:
    """Return whether a rollout gave an answer: at its end, or as a candidate that is taken as the answer."""
    if status == ANSWERED:
        return True
    return status != FAILED and outcome is not None and outcome.parts.get(BY_CANDIDATE, 0.0) > 0


def is_decided(scorer: Scorer, rollout: FinishedRollout) -> Score | None:
    """Return the verdict on a rollout that is wrong because of its status; None if the scorer decides."""
    is_wrong = rollout.status == FAILED
    if scorer.READS == "answer" and rollout.status != ANSWERED:
        is_wrong = is_wrong or not rollout.prediction or not has_given(rollout.status, rollout.outcome)
    if not is_wrong:
        return None
    # Parts of an answer that was not given are 0; the parts of a lost rollout are unknown.
    return Score(0.0, False, STATUS, parts=dict.fromkeys(scorer.PARTS, 0.0) if scorer.READS == "answer" else {})


def _checked(call: ScorerCall, value: Any) -> Score | Exception:
    """Return the score from a scorer's value, without a verdict if that cannot be used; pass on exceptions."""
    if isinstance(value, Exception) or isinstance(call.scorer, EnvironmentScorer):
        verdict: Score | Exception = value
        return verdict
    try:
        return _verdict(call.scorer.label(call.name), call.scorer, value)
    except (TypeError, ValueError) as error:
        return no_verdict(str(error), call.scorer.label(call.name))


def _verdict(name: str, scorer: Scorer, value: Any) -> Score:
    if value is None:
        return no_verdict(f"scorer {name} gave no score", name)
    given = value if isinstance(value, Score) else Score(_number(name, "score", value))
    parts = {}
    for part, number in given.parts.items():
        if part not in scorer.PARTS:
            raise ValueError(f"scorer {name} gave a part that its PARTS do not declare; known: {_names(scorer.PARTS)}")
        parts[part] = _number(name, part, number)
        if part in AnswerScorer.PARTS and not 0 <= parts[part] <= 1:
            raise ValueError(f"scorer {name} gave {parts[part]:g} as {part}, which is a share; rename the part")
    if given.score is None:
        return no_verdict((given.error or f"scorer {name} gave no score")[:_MAX_ERROR_CHARS], name, parts)
    score = _number(name, "score", given.score)
    if (scorer.SCALE == "binary" and score not in (0, 1)) or (scorer.SCALE == "graded" and not 0 <= score <= 1):
        raise ValueError(f'scorer {name} gave {score:g}, but its SCALE is "{scorer.SCALE}"; set it to "reward"')
    correct = score > SUCCESS_SCORE if given.correct is None else bool(given.correct)
    return Score(score, correct, name, parts=parts, detail=_detail_of(name, given.detail))


def _detail_of(name: str, detail: str) -> str:
    """Return the detail of a verdict; raise ValueError if it is no JSON, or too long."""
    if len(detail) > _MAX_DETAIL_CHARS:
        raise ValueError(
            f"scorer {name} gave a detail of {len(detail):,} characters; give at most {_MAX_DETAIL_CHARS:,}"
        )
    if detail:
        orjson.loads(detail)
    return detail


def _number(name: str, what: str, value: Any) -> float:
    """Return a finite number of bounded size; the message of an error does not quote other values."""
    number = as_number(value, f"scorer {name} gave a {what}", "return a number, Score, or None")
    if not math.isfinite(number) or abs(number) > LARGEST_SCORE:
        raise ValueError(f"scorer {name} gave {number:g} as {what}; give a finite number of at most 1e9")
    return number


def _names(parts: Mapping[str, str]) -> str:
    return ", ".join(parts) or "none"
