"""Run one trajectory of a group; record the sampled log-probabilities, and the time that is left for its calls.

The time that a trajectory waits for the model, its siblings or a free sandbox depends on the machine's load and must
not affect a reward. Only the time of its calls counts; the engine's supervisor ends a process that hangs. Normative:
docs/behaviour/group-rollouts.md, part "Infrastructure and time".
"""

from __future__ import annotations

import logging
import math
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from treadle.agent.contract import (
    Episode,
    EpisodeOptions,
    InitialState,
    ModelTurn,
    Observation,
    Outcome,
    StepContext,
    Task,
)
from treadle.agent.jobs.wall_limit import RolloutHangs, wall_limit, within
from treadle.agent.model_types import CompletionModel
from treadle.agent.rollout import Rollout
from treadle.agent.token_ids import ORIGIN_SAMPLED
from treadle.agent.trajectory import Sample
from treadle.core.errors import DeadlineExceeded
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.work_clock import WorkClock, timed_work
from treadle.rl.groups.branching import turn_entropy

T = TypeVar("T")
_log = logging.getLogger(__name__)

CLOSE_S = 60.0
"""Maximum time in seconds in which an episode must close, without time for which infrastructure holds it up."""


class TimedEpisode:
    """Episode whose calls use up a trajectory's time: the recorded duration of each call, without waiting.

    All methods of the environment but `close` may together take `wall_limit_s` seconds, without time for which
    infrastructure holds them up; after that they raise a retryable ToolError.

    Attributes:
        time_left_s: Seconds left.
    """

    def __init__(self, episode: Episode, time_left_s: float, *, wall_limit_s: float = math.inf) -> None:
        self.time_left_s = time_left_s
        self._episode = episode
        self._wall_limit_s = self._wall_left_s = wall_limit(wall_limit_s, time_left_s)
        self._is_closed = False

    async def reset(self, task: Task, options: EpisodeOptions) -> InitialState:
        """Reset the episode; see `Episode`."""
        with timed_work() as clock:
            return await self._limited(clock, self._episode.reset(task, options))

    async def step(self, turn: ModelTurn, context: StepContext) -> Observation:
        """Run one step; see `Episode`.

        Calls run at most for the time that is left; calls that cannot report their duration have that time as their
        deadline.
        """
        left_s = self.time_left_s if context.budget_s is None else min(context.budget_s, self.time_left_s)
        with timed_work() as clock:
            began = clock.time()
            deadline = min(context.deadline, began + left_s)
            step = self._episode.step(turn, replace(context, deadline=deadline, budget_s=left_s))
            observation = await self._limited(clock, step)
            # The work clock stops while infrastructure holds a call up, so it bounds the recorded durations.
            self.time_left_s -= min(sum(call.seconds for call in observation.calls), clock.time() - began)
        return observation

    async def replay(self, turn: ModelTurn, observation: Observation, context: StepContext) -> None:
        """Replay an observation; see `Episode`."""
        with timed_work() as clock:
            await self._limited(clock, self._episode.replay(turn, observation, context))

    async def outcome(self) -> Outcome | None:
        """Return the episode's outcome; see `Episode`."""
        with timed_work() as clock:
            return await self._limited(clock, self._episode.outcome())

    async def close(self) -> None:
        """Close the episode, once; see `Episode`. After `CLOSE_S` seconds of work, give up and log a warning."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with timed_work() as clock:
                await within(clock, CLOSE_S, self._episode.close(), limit_s=CLOSE_S)
        except RolloutHangs:
            _log.warning("an episode did not close within %g s of work, so it was left", CLOSE_S)

    async def _limited(self, clock: WorkClock, work: Coroutine[Any, Any, T]) -> T:
        """Await a method of the episode within the time that is left of the wall limit."""
        began = clock.time()
        try:
            return await within(clock, self._wall_left_s, work, limit_s=self._wall_limit_s)
        finally:
            self._wall_left_s -= clock.time() - began


class Recorder:
    """Completion model of one trajectory that records the position of each completion and its log-probabilities."""

    def __init__(self, model: CompletionModel, episode: TimedEpisode, inherited: Sequence[float]) -> None:
        """Wrap a model; `inherited` holds the log-probabilities of the ids before the branching point, if any."""
        self._model = model
        self._episode = episode
        self._inherited = inherited
        self._num_prompt_ids: int | None = None
        self._answers: list[tuple[int, Completion]] = []

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """Return one completion; raise DeadlineExceeded if calls have used up the trajectory's time."""
        if self._episode.time_left_s <= 0:
            raise DeadlineExceeded("the rollout's time limit is reached")
        if self._num_prompt_ids is None:
            self._num_prompt_ids = len(request.prompt) - len(self._inherited)
        start = len(request.prompt) - self._num_prompt_ids
        completion = await self._model.complete(request, session=session, deadline=deadline)
        self._answers.append((start, completion))
        return completion

    @property
    def last(self) -> Completion | None:
        """The newest completion."""
        return self._answers[-1][1] if self._answers else None

    @property
    def num_turns(self) -> int:
        """Number of completions so far."""
        return len(self._answers)

    @property
    def num_sampled(self) -> int:
        """Number of tokens of all completions so far."""
        return sum(completion.completion_tokens for _, completion in self._answers)

    def logprobs(self, ids: Sequence[int], origins: Sequence[int]) -> list[float]:
        """Return the log-probability of each id after the prompt; 0.0 if it was not sampled."""
        values = [*self._inherited, *[0.0] * (len(ids) - len(self._inherited))]
        for start, completion in self._answers:
            for offset, logprob in enumerate(completion.logprobs or ()):
                if start + offset < len(ids) and origins[start + offset] == ORIGIN_SAMPLED:
                    values[start + offset] = logprob
        return values

    def logprobs_by_turn(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Return the log-probabilities of the ids of each sample of a rollout that did not branch from another one.

        The n-th completion belongs to the n-th turn, regardless of the ids in its request.
        """
        found = []
        answers = iter(self._answers)
        for sample in samples:
            values = [0.0] * len(sample.ids)
            for start, (_, completion) in zip(sample.turn_starts, answers, strict=False):
                for place, logprob in enumerate(completion.logprobs or (), start):
                    if place < len(values) and sample.origins[place] == ORIGIN_SAMPLED:
                        values[place] = logprob
            found.append(values)
        return found


@dataclass(slots=True, kw_only=True)
class GroupSession:
    """One trajectory in progress. `baseline` is the entropy of its first turn, or its parent's baseline."""

    number: int
    parent: int | None
    depth: int
    seed: int
    episode: TimedEpisode
    options: EpisodeOptions
    recorder: Recorder
    rollout: Rollout
    baseline: float | None
    rise: float = 0.0
    num_rounds: int = 0
    is_active: bool = True

    async def advance(self) -> None:
        """Take one turn."""
        self.is_active = await self.rollout.advance()
        self.num_rounds += 1

    async def run_to_end(self) -> None:
        """Take all remaining turns."""
        while self.is_active:
            await self.advance()

    def measure(self, vocab_size: int) -> None:
        """Set `rise` to the entropy of the newest turn above the baseline."""
        assert self.recorder.last is not None
        entropy = turn_entropy(self.recorder.last, vocab_size)
        if self.baseline is None:
            self.baseline = entropy
        self.rise = entropy - self.baseline
