"""Run rollouts: one question, one environment and one model, turn by turn until a status ends the rollout.

This module depends on no stage, tool or file. Each model answer and observation is cached before it is used, so an
interrupted rollout resumes without repeating model or tool calls. Infrastructure failures (endpoint down, tool out of
order) are raised, and the rollout stays pending. Anything the agent does ends in a status. Normative:
docs/behaviour/agent.md.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from treadle.agent.call_cache import CallCache, answer_unit, call_unit
from treadle.agent.dialect import RESULT, Dialect, Segment
from treadle.agent.environment import (
    CallRecord,
    Environment,
    ModelTurn,
    Observation,
    Question,
    StepContext,
    TurnEnd,
)
from treadle.agent.model_types import ModelBinding
from treadle.agent.prompt_strategy import make_prompt_strategy
from treadle.agent.transcript import Codec, Prefix, Transcript, cut
from treadle.core.errors import ContextTooLong, DeadlineExceeded
from treadle.core.llm.types import Completion
from treadle.core.seeds import derive_seed
from treadle.core.work_clock import work_clock
from treadle.web.pages.control_tokens import without_tokens

STATUSES = (
    "answered",
    "no_answer",
    "filtered",
    "limit",
    "max_turns",
    "context_full",
    "length",
    "timeout",
    "budget",
    "failed",
)
"""Statuses of a rollout. `failed` is set by the stage, for pending rollouts that the user accepts as lost."""


_ALLOCATIONS_PER_COLLECTION = 10_000


@dataclass(slots=True)
class Usage:
    """Cost of a rollout. The last five fields are volatile. `notes` counts odd answers by kind."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    wasted_tokens: int = 0
    num_requests: int = 0
    num_retries: int = 0
    model_seconds: float = 0.0
    tool_seconds: float = 0.0
    endpoint: str = ""
    notes: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Trajectory:
    """Finished rollout. In text mode and over the chat route the id lists are empty and segments have offsets 0."""

    status: str
    text: str
    segments: list[Segment]
    prompt_ids: list[int]
    output_ids: list[int]
    token_origin: list[int]
    calls: list[CallRecord]
    num_turns: int
    usage: Usage = field(default_factory=Usage)

    def prefix(self, num_segments: int, codec: Codec | None, dialect: Dialect) -> Prefix:
        """Return the first `num_segments` segments as a prefix to continue from.

        The next context is identical, id for id, to that of an uninterrupted rollout.
        """
        return cut(self.segments, self.output_ids, self.token_origin, self.calls, num_segments, dialect, codec)


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Make garbage collections of cycles rarer while many rollouts are in flight.

    Each collection walks the ids of all rollouts; with the default threshold that takes a twelfth of the CPU time.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@dataclass(frozen=True, slots=True)
class RolloutEngine(ModelBinding):
    """Engine that runs any number of concurrent rollouts with one model, its tokenizer, sampling and limits."""

    async def roll_out(
        self,
        environment: Environment,
        question: Question,
        *,
        seed: int,
        deadline: float,
        cache: CallCache,
        prefix: Prefix | None = None,
    ) -> Trajectory:
        """Run one rollout to its end, from the start or from a prefix.

        `deadline` is a time of the work clock (`treadle.core.work_clock`). Raises ToolError and ModelError
        (EndpointUnavailable and others not caused by the agent). The rollout is then pending, and its cache lets it
        resume later.
        """
        try:
            rollout = await self.begin(environment, question, seed=seed, deadline=deadline, cache=cache, prefix=prefix)
            while await rollout.advance():
                pass
            return rollout.finish()
        finally:
            await environment.close()

    async def begin(
        self,
        environment: Environment,
        question: Question,
        *,
        seed: int,
        deadline: float,
        cache: CallCache,
        prefix: Prefix | None = None,
    ) -> Rollout:
        """Reset the environment for a rollout that is run turn by turn. The caller closes the environment."""
        messages = await environment.reset(question, prefix.calls if prefix else ())
        return Rollout(self, environment, messages, seed, deadline, cache, question.key, prefix)

    def without_spelled_tokens(self, observation: Observation) -> Observation:
        """Break up spellings of the tokenizer's added tokens in results from the web.

        Spelled control tokens are encoded as plain text anyway, but other added tokens, such as Qwen's `<tool_call>`,
        would be matched as a whole.
        """
        tokenizer = self.codec or self.renderer
        if tokenizer is None or not any(call.sources for call in observation.calls):
            return observation
        tag = self.dialect.by_name[RESULT]
        blocks: list[str] = []
        for block in observation.blocks:
            before, opening, rest = block.partition(tag.opening)
            inner, closing, after = rest.rpartition(tag.closing)
            blocks.append(before + opening + without_tokens(inner, tokenizer.added_tokens) + closing + after)
        return replace(observation, blocks=tuple(blocks))


class Rollout:
    """Rollout in progress; see `RolloutEngine.begin`."""

    def __init__(
        self,
        engine: RolloutEngine,
        environment: Environment,
        messages: Sequence[Mapping[str, str]],
        seed: int,
        deadline: float,
        cache: CallCache,
        session: str,
        prefix: Prefix | None,
    ) -> None:
        self._engine = engine
        self._environment = environment
        self._seed = seed
        self._deadline = deadline
        self._cache = cache
        self._session = session
        self._transcript = Transcript(engine.dialect, engine.codec, prefix)
        self._prompt_strategy = make_prompt_strategy(engine, messages, self._transcript)
        self._calls = list(prefix.calls) if prefix else []
        self._turn = prefix.turn if prefix else 0
        self._pending = prefix is not None and prefix.pending
        self._turns_before = self._turn + self._pending
        self._usage = Usage()
        self._status: str | None = None

    async def advance(self) -> bool:
        """Run the next turn, or the pending reaction to the last one; return whether the rollout continues."""
        try:
            if self._pending:
                self._pending = False
                self._status = await self._react("stop")
            elif self._turn >= self._engine.limits.max_turns:
                self._status = "max_turns"
            else:
                self._status = await self._take_turn()
        except DeadlineExceeded:
            self._status = "timeout"
        except ContextTooLong:
            self._status = "context_full"
        self._turn += 1
        return self._status is None

    def prefix(self) -> Prefix:
        """Return the rollout so far as a prefix for another rollout; call it between turns only."""
        prefix = self._transcript.prefix(self._calls, self._turn)
        return replace(prefix, pending=self._pending)

    def finish(self) -> Trajectory:
        """Return the trajectory of a rollout that has ended."""
        if self._status is None:
            raise RuntimeError("finish() was called before the rollout ended")
        return self._finish(self._status)

    async def _take_turn(self) -> str | None:
        max_new_tokens, limit_status = self._prompt_strategy.max_new_tokens()
        if max_new_tokens < 1:
            return limit_status
        completion = await self._generate(max_new_tokens)
        was_added = self._prompt_strategy.add_completion(completion)
        ended: TurnEnd = "end_of_turn"
        if self._transcript.is_at_stop:
            ended = "stop"
        elif completion.finish_reason == "content_filter":
            ended = "filtered"
        elif completion.finish_reason == "length":
            # The window or the budget truncated the turn, unless it reached `sampling.max_tokens`.
            ended = "length" if max_new_tokens >= self._engine.sampling.max_tokens else limit_status
        return await self._react(ended, is_empty=not was_added)

    async def _generate(self, max_tokens: int) -> Completion:
        unit = answer_unit(self._turn)
        known = self._cache.get(unit)
        if known is not None:
            completion = Completion.from_json(known)
        else:
            self._check_deadline()
            completion = await self._prompt_strategy.ask(
                max_tokens, derive_seed(self._seed, self._turn), session=self._session, deadline=self._deadline
            )
            self._cache.append(unit, completion.to_json())
        usage = self._usage
        usage.prompt_tokens += completion.prompt_tokens
        usage.completion_tokens += completion.completion_tokens
        usage.num_requests += 1
        usage.num_retries += completion.retries
        usage.model_seconds += completion.seconds
        usage.endpoint = completion.endpoint
        for note in completion.notes:
            usage.notes[note] = usage.notes.get(note, 0) + 1
        return completion

    async def _react(self, ended: TurnEnd, *, is_empty: bool = False) -> str | None:
        """Apply the environment's reaction to the turn; return a status if it ends the rollout."""
        unit = call_unit(self._turn)
        known = self._cache.get(unit)
        if known is not None:
            observation = Observation.from_json(known)
            self._environment.replay(observation)
        else:
            observation = await self._environment.step(
                ModelTurn(self._transcript.open_text, self._turn, ended, is_empty),
                StepContext(self._deadline, self._transcript.log(), derive_seed(self._seed, self._turn, "tool")),
            )
            observation = self._engine.without_spelled_tokens(observation)
            # Other observations follow from the cached completion.
            if observation.calls or observation.blocks:
                self._cache.append(unit, observation.to_json())
        self._calls += observation.calls
        self._usage.tool_seconds += sum(call.seconds for call in observation.calls)
        for block in observation.blocks:
            self._transcript.append_block(block)
        if ended == "stop" and not observation.blocks:
            self._transcript.close_span()
        return observation.status

    def _check_deadline(self) -> None:
        if work_clock().time() >= self._deadline:
            raise DeadlineExceeded("the rollout's time limit is reached")

    def _finish(self, status: str) -> Trajectory:
        self._usage.wasted_tokens = self._transcript.wasted_tokens
        if self._transcript.markers_restored:
            self._usage.notes["marker_restored"] = self._transcript.markers_restored
        return Trajectory(
            status=status,
            text=self._transcript.text,
            segments=self._transcript.segments(),
            prompt_ids=self._prompt_strategy.prompt_ids.tolist(),
            output_ids=self._transcript.ids.tolist(),
            token_origin=list(self._transcript.origins),
            calls=self._calls,
            num_turns=self._turns_before + self._usage.num_requests,
            usage=self._usage,
        )
