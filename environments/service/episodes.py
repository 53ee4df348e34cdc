"""Adapt Treadle's environments to the interface of the service: each episode becomes an instance."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from pydantic import ValidationError

from treadle.agent.contract import (
    Call,
    EpisodeOptions,
    Message,
    ModelTurn,
    Observation,
    Outcome,
    StepContext,
    Task,
    call_id,
)
from treadle.agent.tools.schema import ToolSchema
from treadle.core.chat_turns import well_formed
from treadle.core.errors import ConfigError
from treadle.core.seeds import derive_seed
from treadle.environments.custom.instance_class import InstanceClassType
from treadle.environments.registry import environment_type
from treadle.environments.service.errors import RequestUnfit
from treadle.environments.service.hosting import EnvironmentHost, TaskRow
from treadle.environments.service.wire import Action, ActionCall
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.types import EnvironmentRuntime, Resources

_SUCCESS_REWARD = 1.0
"""Least reward of a solved task, if the environment does not say whether it is solved."""


@contextlib.asynccontextmanager
async def open_host(settings: EnvironmentSettings) -> AsyncIterator[EnvironmentHost]:
    """Open an environment to be served. Raises ConfigError, ToolError and EndpointUnavailable."""
    kind = environment_type(settings)
    if isinstance(kind, InstanceClassType):
        yield kind.host(settings)
        return
    async with kind.open(settings, Resources()) as runtime:
        yield EpisodeHost(settings, runtime)


def check_servable(settings: EnvironmentSettings) -> None:
    """Raise ConfigError for an environment that the service cannot hold."""
    traits = environment_type(settings).traits(settings)
    if settings.role_names:
        raise ConfigError(
            f"{settings.type} asks models ({', '.join(settings.role_names)}), which a served environment has not"
        )
    if not traits.brings_tasks:
        raise ConfigError(f"{settings.type} has no tasks of its own, so there is nothing to serve")


@dataclass(frozen=True, slots=True)
class EpisodeHost:
    """Open environment whose episodes are served; see `EnvironmentHost`."""

    settings: EnvironmentSettings
    runtime: EnvironmentRuntime

    async def tasks(self, split: str, seed: int, params: Mapping[str, Any]) -> list[TaskRow]:
        """See `EnvironmentHost`; the id of a task is the `question_key` of its row. `params` are ignored."""
        rows = environment_type(self.settings).tasks(self.settings, split, seed)
        return [_task_row(row, self.settings.type) async for row in rows]

    def instance(self, task: Task, instance_id: str) -> EpisodeInstance:
        """See `EnvironmentHost`."""
        return EpisodeInstance(self.runtime, self.settings, task, instance_id)


def _task_row(row: Mapping[str, Any], dataset: str) -> TaskRow:
    payload = row.get("payload") or {}
    content = orjson.dumps(
        [row["question"], row.get("choices"), row.get("answers"), payload], option=orjson.OPT_SORT_KEYS
    )
    return {
        "question_key": str(row.get("id") or hashlib.sha256(content).hexdigest()[:16]),
        "question": row["question"],
        "choices": list(row.get("choices") or ()),
        "answers": list(row.get("answers") or ()),
        "dataset": dataset,
        "domain": row.get("domain") or "",
        "payload": payload if isinstance(payload, str) else orjson.dumps(payload).decode(),
    }


class EpisodeInstance:
    """One episode; see `HeldInstance`."""

    __slots__ = ("_dialect", "_episode", "_id", "_rewards", "_schemas", "_settings", "_task", "_is_over", "_turn")

    def __init__(
        self, runtime: EnvironmentRuntime, settings: EnvironmentSettings, task: Task, instance_id: str
    ) -> None:
        self._episode = runtime.episode()
        self._dialect = settings.turn_dialect
        self._settings = settings
        self._task = task
        self._id = instance_id
        self._schemas: tuple[ToolSchema, ...] = ()
        self._rewards: list[float] = []
        self._turn = 0
        self._is_over = False

    async def start(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """See `HeldInstance`; the seed of the episode derives from the task's key and `params.seed` (0 by default)."""
        seed = params.get("seed", 0)
        if not isinstance(seed, int):
            raise RequestUnfit("params.seed must be a whole number")
        of_task = derive_seed("service", self._task.key)
        options = EpisodeOptions(seed=derive_seed("service", self._task.key, seed), group_seed=of_task)
        initial = await self._episode.reset(self._task, options)
        self._schemas = tuple(initial.tools)
        info: dict[str, Any] = {"instance_id": self._id, "task_id": self._task.key}
        if self._schemas:
            info["tools"] = [schema.as_openai() for schema in self._schemas]
        return _state(_system_and_user(initial.messages, self._settings.type), info=info)

    async def step(self, action: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """See `HeldInstance`."""
        if self._is_over:
            raise RequestUnfit("the episode is over; evaluate it and release the instance")
        turn = self._turn_of(action)
        observation = await self._episode.step(turn, StepContext(math.inf, seed=self._turn))
        self._turn += 1
        # Only an explicit `max_turns` applies: callers limit turns themselves, and the type's default is for rollouts.
        at_limit = self._settings.max_turns is not None and self._turn >= self._settings.max_turns
        self._is_over = observation.status is not None or at_limit
        self._schemas += observation.tools
        if observation.reward is not None:
            self._rewards.append(observation.reward)
        info: dict[str, Any] = {"status": observation.status or ("max_turns" if at_limit else "running")}
        if observation.truncated or (at_limit and observation.status is None):
            info["truncated"] = True
        if observation.tools:
            info["tools"] = [schema.as_openai() for schema in observation.tools]
        if len(observation.messages) > 1:
            # The interface has one message, which does not separate results of calls from what follows them.
            info["messages"] = [_listed(message, turn, action) for message in observation.messages]
        given = [call.get("id") for call in action.get("tool_calls") or ()]
        message = _one_message(turn, observation, given)
        return _state([message], await self._reward(observation, params), self._is_over, info)

    async def evaluate(self, messages: Mapping[str, Any], params: Mapping[str, Any]) -> float:
        """See `HeldInstance`; `params.sparse` asks for 1 if the task is solved, and else 0."""
        return _score(await self._outcome(), params, self._settings.type)

    async def get_info(self, messages: Mapping[str, Any], params: Mapping[str, Any]) -> str:
        """See `HeldInstance`; one line of JSON per tool."""
        return "\n".join(orjson.dumps(schema.as_openai()).decode() for schema in self._schemas)

    async def close(self) -> None:
        """See `HeldInstance`."""
        await self._episode.close()

    def _turn_of(self, action: Mapping[str, Any]) -> ModelTurn:
        try:
            parsed = Action.model_validate(action)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(map(str, ("messages", *first["loc"])))
            raise RequestUnfit(f"{place}: {first['msg']}") from None
        text = well_formed(parsed.content or "")
        turn = self._dialect.read(text, self._turn, "end_of_turn", is_empty=not text)
        if self._dialect.is_stopped(text):
            turn = replace(turn, ended="stop")
        return replace(turn, calls=_calls(parsed.tool_calls, self._turn)) if parsed.tool_calls else turn

    async def _outcome(self) -> Outcome | None:
        outcome = await self._episode.outcome()
        if outcome is not None and (outcome.reward is not None or outcome.success is not None):
            return outcome
        return Outcome(math.fsum(self._rewards)) if self._rewards else None

    async def _reward(self, observation: Observation, params: Mapping[str, Any]) -> float:
        """Return the reward of a step; with `params.sparse` 0 until the episode ends, then the score from `evaluate`.

        A step without a reward gets 0: the interface cannot express that there is no reward.
        """
        if params.get("sparse"):
            return _score(await self._outcome(), params, self._settings.type) if self._is_over else 0.0
        return 0.0 if observation.reward is None else observation.reward


def _score(outcome: Outcome | None, params: Mapping[str, Any], kind: str) -> float:
    if outcome is None:
        raise ValueError(f"{kind} gives no score for this episode")
    if not params.get("sparse"):
        return float(bool(outcome.success)) if outcome.reward is None else outcome.reward
    if outcome.success is not None:
        return float(outcome.success)
    return float(outcome.reward is not None and outcome.reward >= _SUCCESS_REWARD)


def _state(
    messages: list[dict[str, Any]],
    reward: float = 0.0,
    is_terminated: bool = False,
    info: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    return {"state": messages, "reward": reward, "is_terminated": is_terminated, "info": dict(info or {})}


def _system_and_user(messages: Sequence[Mapping[str, str]], kind: str) -> list[dict[str, Any]]:
    """Return the two messages of the first state: the system messages joined, empty without any, and the user's."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    if len(others) != 1 or others[0]["role"] != "user":
        raise ValueError(f"an episode of {kind} begins with other messages than those of system and user")
    user = {"role": "user", "content": others[0]["content"]}
    return [{"role": "system", "content": "\n\n".join(system)}, user]


def _one_message(turn: ModelTurn, observation: Observation, ids: Sequence[str | None]) -> dict[str, Any]:
    """Return an observation as one message; if calls have results, `tool_calls` also lists each call with its result.

    `ids` are the ids that the caller gave its calls.
    """
    text = "\n\n".join(message.text for message in observation.messages)
    results = {message.call: message.text for message in observation.messages if message.call}
    if not results:
        return {"role": "user", "content": text}
    calls = [
        {
            "id": (ids[index] if index < len(ids) else None) or call.id,
            "index": index,
            "type": "function",
            "name": call.tool,
            "arguments": orjson.dumps(call.arguments).decode(),
            "result": results.get(call.id, ""),
        }
        for index, call in enumerate(turn.calls)
    ]
    return {"role": "tool", "content": text, "tool_calls": calls}


def _listed(message: Message, turn: ModelTurn, action: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of an observation as JSON data; a result has the id that the caller gave its call."""
    if not message.call:
        return {"role": "user", "content": message.text}
    sent = action.get("tool_calls") or ()
    given = {call.id: one.get("id") for call, one in zip(turn.calls, sent, strict=False)}
    return {"role": "tool", "content": message.text, "tool_call_id": given.get(message.call) or message.call}


def _calls(given: Sequence[ActionCall], turn: int) -> tuple[Call, ...]:
    numbers: Counter[str] = Counter()
    found = []
    for one in given:
        name = one.function.name if one.function is not None else one.name
        arguments = one.function.arguments if one.function is not None else one.arguments
        if not name:
            raise RequestUnfit("messages.tool_calls: a call has no name")
        parsed, error = _arguments(arguments)
        found.append(Call(call_id(turn, name, numbers[name]), name, parsed, error))
        numbers[name] += 1
    return tuple(found)


def _arguments(given: str | Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    if not isinstance(given, str):
        return given, ""
    try:
        value = orjson.loads(given or "{}")
    except orjson.JSONDecodeError:
        return {}, "the arguments are not JSON"
    return (value, "") if isinstance(value, dict) else ({}, "the arguments are not a JSON object")
