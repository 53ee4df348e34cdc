"""Run rollouts: one task, one episode of an environment and one model, turn by turn until a status ends the rollout.

This module depends on no stage, tool or file. Each model answer and observation is cached before it is used, so an
interrupted rollout resumes without repeating model or tool calls. Infrastructure failures (endpoint down, tool out of
order) are raised, and the rollout stays pending. Anything the agent does ends in a status. Normative:
docs/behaviour/agent.md.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from treadle.agent.cached_units import OUTCOME_UNIT, answer_unit, call_unit
from treadle.agent.call_cache import CallCache
from treadle.agent.contexts.manager import ContextManager, own_clipper
from treadle.agent.contract import (
    Episode,
    EpisodeOptions,
    InitialState,
    Observation,
    Outcome,
    StepContext,
    Task,
    TurnEnd,
)
from treadle.agent.model_types import CompletionModel, ModelBinding
from treadle.agent.native_chat_prompts import make_prompt_strategy
from treadle.agent.prefix import Prefix
from treadle.agent.role import RoleModel
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.trajectory import TRUNCATED_STATUSES, Trajectory, TurnUsage, Usage, split_by_context
from treadle.agent.transcript import Transcript
from treadle.core.errors import ContextTooLong, DeadlineExceeded
from treadle.core.llm.types import Completion
from treadle.core.seeds import derive_seed
from treadle.core.work_clock import work_clock

_ALLOCATIONS_PER_COLLECTION = 10_000
_NO_OPTIONS = EpisodeOptions()


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
    """Engine that runs any number of concurrent rollouts with one model, its tokenizer, sampling and limits.

    `clipper` is the model that gives the verdicts of the context manager `context_selfclip`; None: the policy itself.
    """

    clipper: RoleModel | None = None

    def with_turns_from(self, model: CompletionModel) -> RolloutEngine:
        """Return the engine with another model for the turns; the model for verdicts on contexts stays the same."""
        return replace(self, model=model, clipper=self.clipper or own_clipper(self))

    async def roll_out(
        self,
        episode: Episode,
        task: Task,
        *,
        seed: int,
        deadline: float,
        cache: CallCache,
        prefix: Prefix | None = None,
        options: EpisodeOptions | None = None,
    ) -> Trajectory:
        """Run one rollout to its end, from the start or from a prefix.

        `deadline` is a time of the work clock (`treadle.core.work_clock`). Raises ToolError and ModelError
        (EndpointUnavailable and others not caused by the agent). The rollout is then pending, and its cache lets it
        resume later. Raises EpisodeDiverged if a resumed episode does not react as recorded.
        """
        try:
            rollout = await self.begin(
                episode, task, seed=seed, deadline=deadline, cache=cache, prefix=prefix, options=options
            )
            while await rollout.advance():
                pass
            return await rollout.finish()
        finally:
            await episode.close()

    async def begin(
        self,
        episode: Episode,
        task: Task,
        *,
        seed: int,
        deadline: float,
        cache: CallCache,
        prefix: Prefix | None = None,
        options: EpisodeOptions | None = None,
    ) -> Rollout:
        """Reset the episode for a rollout that is run turn by turn. The caller closes the episode.

        History, seed and cache of `options` are filled in here.
        """
        tokenizer = self.codec or self.renderer
        given = options or _NO_OPTIONS
        filled = EpisodeOptions(
            prefix.calls if prefix else (),
            given.hint,
            given.additional_calls,
            seed,
            given.group_seed,
            cache,
            tokenizer.added_tokens if tokenizer is not None else frozenset(),
            given.trains_on_hint,
        )
        initial = await episode.reset(task, filled)
        session = f"{task.key} {seed}"
        return Rollout(self, episode, initial, given, seed, deadline, cache, session, prefix)


class Rollout:
    """Rollout in progress; see `RolloutEngine.begin`."""

    def __init__(
        self,
        engine: RolloutEngine,
        episode: Episode,
        initial: InitialState,
        options: EpisodeOptions,
        seed: int,
        deadline: float,
        cache: CallCache,
        session: str,
        prefix: Prefix | None,
    ) -> None:
        self._engine = engine
        self._episode = episode
        self._seed = seed
        self._deadline = deadline
        self._cache = cache
        self._session = session
        self._transcript = Transcript(engine.dialect, engine.codec, prefix, engine.reply_text)
        self._initial = initial
        self._cuts_hint = bool(options.hint) and not options.trains_on_hint
        self._first_messages = with_hint(initial.messages, engine.limits.prompt_hint)
        first = with_hint(self._first_messages, options.hint)
        self._prompt_strategy = make_prompt_strategy(engine, first, initial.tools, self._transcript)
        self._added_tools: list[ToolSchema] = []
        self._calls = list(prefix.calls) if prefix else []
        self._turn = prefix.turn if prefix else 0
        self._pending = prefix is not None and prefix.pending
        self._turns_before = self._turn + self._pending
        self._usage = Usage()
        self._status: str | None = None
        self._context = ContextManager(
            engine,
            engine.clipper or own_clipper(engine),
            self._prompt_strategy,
            self._transcript,
            cache,
            "\n\n".join(one["content"] for one in initial.messages),
            seed,
            session,
            deadline,
            [],
        )
        self._truncated = False
        self._turn_rewards: list[float | None] = []

    @property
    def first_messages(self) -> Sequence[Mapping[str, str]]:
        """Messages before the first turn, without a hint."""
        return self._first_messages

    @property
    def first_tools(self) -> Sequence[ToolSchema]:
        """Tools that the model knows from the start."""
        return self._initial.tools

    async def advance(self) -> bool:
        """Run the next turn, or the pending reaction to the last one; return whether the rollout continues."""
        try:
            if self._pending:
                self._pending = False
                self._status = await self._react("end_of_turn" if self._engine.dialect.ends_every_turn else "stop")
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

    async def finish(self) -> Trajectory:
        """Return the trajectory of a rollout that has ended."""
        if self._status is None:
            raise RuntimeError("finish() was called before the rollout ended")
        return await self._finish(self._status)

    async def _take_turn(self) -> str | None:
        await self._context.prepare(self._turn)
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
        del completion  # its ids are in the transcript, and thousands of reactions may be waited for at once
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
        usage.turns.append(TurnUsage(completion.prompt_tokens, completion.completion_tokens, completion.seconds))
        usage.endpoint = completion.endpoint
        for note in completion.notes:
            usage.notes[note] = usage.notes.get(note, 0) + 1
        return completion

    async def _react(self, ended: TurnEnd, *, is_empty: bool = False) -> str | None:
        """Apply the episode's reaction to the turn; return a status if it ends the rollout."""
        unit = call_unit(self._turn)
        known = self._cache.get(unit)
        turn = self._engine.dialect.read(self._transcript.open_text, self._turn, ended, is_empty=is_empty)
        context = StepContext(
            self._deadline,
            self._transcript.log(),
            derive_seed(self._seed, self._turn, "tool"),
            num_left_out=self._transcript.contexts[-1].num_left_out,
        )
        if known is not None:
            observation = Observation.from_json(known)
            await self._episode.replay(turn, observation, context)
        else:
            observation = await self._episode.step(turn, context)
            if not observation.follows_from_turn:
                self._cache.append(unit, observation.to_json())
        self._calls += observation.calls
        self._turn_rewards.append(observation.reward)
        self._truncated |= observation.truncated
        # Calls of a turn run at once, so the turn waits until the last one ends.
        tool_seconds = max((call.started_s + call.seconds for call in observation.calls), default=0.0)
        self._usage.tool_seconds += tool_seconds
        if self._usage.turns:  # A reaction to the end of a prefix belongs to no request.
            self._usage.turns[-1].tool_seconds += tool_seconds
        self._prompt_strategy.add_messages(observation.messages, observation.tools)
        self._added_tools += observation.tools
        if not observation.messages and (ended == "stop" or self._engine.dialect.ends_every_turn):
            self._transcript.close_span()
        return observation.status

    def _check_deadline(self) -> None:
        if work_clock().time() >= self._deadline:
            raise DeadlineExceeded("the rollout's time limit is reached")

    async def _finish(self, status: str) -> Trajectory:
        outcome = await self._outcome()
        transcript, codec = self._transcript, self._engine.codec
        transcript.seal()
        self._usage.wasted_tokens = transcript.wasted_tokens
        self._usage.prompt_tokens += sum(one.prompt_tokens for one in self._context.verdicts)
        self._usage.completion_tokens += sum(one.completion_tokens for one in self._context.verdicts)
        for note, count in transcript.notes.items():
            self._usage.notes[note] = self._usage.notes.get(note, 0) + count
        unhinted = None
        if codec is not None and self._cuts_hint:
            unhinted = self._engine.prompt_ids(self._first_messages, self._initial.tools)
        segments, samples = split_by_context(transcript, self._prompt_strategy.prompt_ids.tolist(), unhinted)
        return Trajectory(
            status=status,
            text=transcript.text,
            segments=segments,
            samples=samples,
            calls=self._calls,
            num_turns=self._turns_before + self._usage.num_requests,
            usage=self._usage,
            truncated=self._truncated or status in TRUNCATED_STATUSES,
            turn_rewards=self._turn_rewards if any(reward is not None for reward in self._turn_rewards) else [],
            outcome=outcome,
            first_messages=tuple(self._first_messages),
            tools=(*self._initial.tools, *self._added_tools),
            num_added_tools=len(self._added_tools),
        )

    async def _outcome(self) -> Outcome | None:
        """Ask the episode for its outcome once; it is cached, since its live state no longer exists after a resume."""
        known = self._cache.get(OUTCOME_UNIT)
        if known is not None:
            return Outcome(**orjson.loads(known))
        outcome = await self._episode.outcome()
        if outcome is not None:
            self._cache.append(OUTCOME_UNIT, orjson.dumps(outcome))
        return outcome


def with_hint(messages: Sequence[Mapping[str, str]], hint: str) -> Sequence[Mapping[str, str]]:
    """Return the messages with a hint after the text of the last one."""
    if not hint:
        return messages
    *others, last = messages
    return [*others, {**last, "content": f"{last['content']}\n\n{hint}"}]
