"""Play an episode of an environment class: text and messages of the user's code become observations."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from treadle.agent.contract import (
    CallRecord,
    EpisodeDiverged,
    EpisodeOptions,
    InitialState,
    Message,
    ModelTurn,
    Observation,
    Outcome,
    Role,
    StepContext,
    Task,
)
from treadle.agent.outcome_values import as_number, as_outcome, require_finite
from treadle.agent.role import RoleModel
from treadle.core.chat_turns import well_formed
from treadle.core.errors import ConfigError, DeadlineExceeded, ToolError
from treadle.core.untrusted.concealment import user_code
from treadle.core.work_clock import work_clock
from treadle.environments.custom.base import Done, Environment
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.tools.calls import CallLimits, EpisodeCalls


class CustomEpisode:
    """Episode of one instance; see `treadle.agent.contract.Episode`."""

    def __init__(
        self,
        environment: Environment,
        settings: EnvironmentSettings,
        shared: Any,
        models: Mapping[str, RoleModel],
        calls: EpisodeCalls,
    ) -> None:
        self._environment = environment
        self._settings = settings
        self._shared = shared
        self._models = models
        self._calls = calls
        self._payload: Mapping[str, Any] = {}

    async def reset(self, task: Task, options: EpisodeOptions) -> InitialState:
        """Prepare the instance and ask it for its first messages; raise ToolError if it takes too long."""
        environment = self._environment
        environment.prepare(task, self._settings, self._shared, options.seed, options.group_seed)
        environment.connect(options.cache, self._models, self._calls)
        limits = {name: tool.max_calls for name, tool in self._settings.tools.items()}
        schemas = await self._calls.begin(task, options, CallLimits(limits.get))
        self._payload = task.payload
        async with self._limit("reset"):
            first = await environment.reset(task)
        tools = (*schemas, *environment.schemas)
        if twice := [name for name, count in Counter(tool.name for tool in tools).items() if count > 1]:
            raise ConfigError(
                f"{type(environment).__name__}.schemas and environment.tools both have a tool named {twice[0]!r}; "
                "rename one of them"
            )
        if not isinstance(first, str):
            return InitialState(_first_messages(first, type(environment).__name__), tools)
        system = [{"role": "system", "content": environment.system}] if environment.system else []
        messages = [*system, {"role": "user", "content": well_formed(first)}]
        return InitialState(messages, tools)

    async def step(self, turn: ModelTurn, context: StepContext) -> Observation:
        """Let the instance react to a turn; end the rollout if the model's server withheld the turn (`filtered`).

        Raises DeadlineExceeded if it does not react in time.
        """
        if turn.ended == "filtered":
            return Observation(status="filtered")
        self._environment._deadline = context.deadline
        self._environment._step = context
        name = type(self._environment).__name__
        try:
            async with work_clock().limit(None if math.isinf(context.deadline) else context.deadline):
                with user_code(self._environment, self._payload):
                    reaction = await self._environment.step(turn)
        except TimeoutError as error:
            if work_clock().time() < context.deadline:
                raise
            raise DeadlineExceeded(f"{name}.step did not react before the rollout's time limit") from error
        observation = _storable(_observation(reaction, name))
        ran = self._environment._take_ran()
        if ran.calls or ran.tools:
            done = {call.id for call in ran.calls}
            others = [call for call in _answered(turn, observation.messages) if call.id not in done]
            calls = observation.calls or (*ran.calls, *others)
            return replace(observation, calls=calls, tools=(*observation.tools, *ran.tools))
        return observation if observation.calls else replace(observation, calls=_answered(turn, observation.messages))

    async def replay(self, turn: ModelTurn, observation: Observation, context: StepContext) -> None:
        """Restore the state after a recorded turn as `resume` says; raise EpisodeDiverged on failure or `restart`."""
        if self._environment.resume == "restart":
            raise EpisodeDiverged("the state of the episode was lost")
        if self._environment.resume == "replay":
            await self._calls.replay(turn, observation, context)
        if self._environment.resume == "reenact":
            self._calls.recorded = {call.id: call for call in observation.calls}
            again = await self.step(turn, context)
            if again != observation:
                raise EpisodeDiverged("the environment reacted to a recorded turn in another way")

    async def outcome(self) -> Outcome | None:
        """Return the outcome from the environment, else from its tools; raise ToolError if it takes too long."""
        source = f"{type(self._environment).__name__}.outcome"
        async with self._limit("outcome"):
            outcome = as_outcome(await self._environment.outcome(), source)
        if outcome is None:
            return await self._calls.outcome()
        require_finite(outcome.reward, f"{source} returned a reward of")
        return outcome

    async def close(self) -> None:
        """Close the instance and its tools."""
        try:
            with user_code(self._environment, self._payload):
                await self._environment.close()
        finally:
            await self._calls.close()

    @contextlib.asynccontextmanager
    async def _limit(self, method: str) -> AsyncIterator[None]:
        """Run a method of the instance that has no deadline of its own; raise ToolError after `rollout_time_s`."""
        limit_s = self._settings.rollout_time_s
        deadline = work_clock().time() + limit_s
        try:
            async with work_clock().limit(deadline):
                with user_code(self._environment, self._payload):
                    yield
        except TimeoutError as error:
            if work_clock().time() < deadline:
                raise
            raise ToolError(
                f"{type(self._environment).__name__}.{method} did not return within environment.rollout_time_s = "
                f"{limit_s:g} s"
            ) from error


def _first_messages(first: Any, name: str) -> list[dict[str, str]]:
    messages = list(first) if isinstance(first, Sequence) else []
    if not messages or not all(isinstance(one, Mapping) and _is_message(one) for one in messages):
        raise TypeError(
            f"{name}.reset returned a value of type {type(first).__name__}; return text, or a list of messages "
            '{"role": …, "content": …}'
        )
    return [{key: well_formed(value) for key, value in message.items()} for message in messages]


def _is_message(message: Mapping[str, Any]) -> bool:
    return {"role", "content"} <= message.keys() and all(isinstance(value, str) for value in message.values())


def _answered(turn: ModelTurn, messages: Sequence[Message]) -> tuple[CallRecord, ...]:
    """Return records of a turn's calls that messages answer: calls whose id a message has.

    If there are messages, but without ids of calls, these are all calls of the turn.

    The records have no times: the class runs its calls itself, and a repeated turn must give equal records.
    """
    ids = {message.call for message in messages if message.call}
    return tuple(
        CallRecord(call.tool, call.text, "ok", turn.number, id=call.id)
        for call in turn.calls
        if call.id in ids or (messages and not ids)
    )


def _storable(observation: Observation) -> Observation:
    """Replace lone surrogates in messages, which can be neither sent nor stored, with U+FFFD."""
    messages = tuple([Message(well_formed(one.text), one.role, one.call) for one in observation.messages])
    return observation if messages == observation.messages else replace(observation, messages=messages)


def _observation(reaction: Any, name: str) -> Observation:
    if isinstance(reaction, Done):
        messages = (_checked(Message(reaction.text), name),) if reaction.text else ()
        return Observation((), messages, "finished", _turn_reward(reaction.reward, name), bool(reaction.truncated))
    if isinstance(reaction, str):
        return Observation(messages=(Message(reaction),))
    if isinstance(reaction, Message):
        return Observation(messages=(_checked(reaction, name),))
    if isinstance(reaction, Observation):
        return reaction
    if isinstance(reaction, Sequence) and reaction and all(isinstance(one, Message) for one in reaction):
        return Observation(messages=tuple(_checked(one, name) for one in reaction))
    if inspect.iscoroutine(reaction):
        reaction.close()
        raise TypeError(f"{name}.step returned a coroutine; await it, as in `return await self.run_calls(turn)`")
    given = "None" if reaction is None else f"a value of type {type(reaction).__name__}"
    raise TypeError(f"{name}.step returned {given}; return text, Message, a list of Message, or Done")


def _checked(message: Message, name: str) -> Message:
    """Return a message after a check of its text and role: only the model writes messages of the role `assistant`."""
    if not isinstance(message.text, str):
        raise TypeError(f"{name}.step returned a message whose text is of type {type(message.text).__name__}")
    if message.role not in get_args(Role):
        raise ValueError(f"{name}.step returned a message of role {message.role!r}; use {', '.join(get_args(Role))}")
    return message


def _turn_reward(value: Any, name: str) -> float | None:
    reward = None if value is None else as_number(value, f"{name}.step returned Done with a reward", "give a number")
    require_finite(reward, f"{name}.step returned Done with a reward of")
    return reward
