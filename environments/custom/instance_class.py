"""Make a servable type of environment from a class with one object per episode, such as AgentEvolver's `BaseEnv`.

The class has the methods `__init__(task_id, instance_id, params)`, `get_init_state(params)`, `step(action, params)`,
`evaluate(messages, params)`, `get_info(messages, params)`, `close()`, and the static `get_query_list(split, params)`.
Methods may be coroutines; all others run in one thread, so that they may block.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
from pydantic import JsonValue, create_model

from treadle.agent.contract import Outcome, Task
from treadle.core.errors import ConfigError
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.stored_rollout import StoredRollout
from treadle.environments.types import EnvironmentRuntime, Resources, Traits

_METHODS = ("get_query_list", "get_init_state", "step", "evaluate")


class InstanceClassSettings(EnvironmentSettings):
    """Settings of a class with one object per episode."""

    params: dict[str, JsonValue] = {}
    """Parameters passed with every call; parameters of the request are added, and replace those of the same name."""


def is_instance_class(found: object) -> bool:
    """Return whether this is a class with one object per episode: it has all methods in `_METHODS`."""
    return isinstance(found, type) and all(callable(getattr(found, name, None)) for name in _METHODS)


class InstanceClassType:
    """Type of environment made from a class with one object per episode.

    Only the environment service can hold the objects; rollouts reach them through the service.
    """

    def __init__(self, found: type[Any]) -> None:
        self.name = found.__name__
        self.settings: type[EnvironmentSettings] = create_model(
            f"{found.__name__}Settings", __base__=InstanceClassSettings, __doc__=inspect.getdoc(found)
        )
        self._class = found

    def traits(self, settings: EnvironmentSettings) -> Traits:
        """See `EnvironmentType`."""
        return Traits(brings_tasks=True)

    def tasks(self, settings: EnvironmentSettings, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        """See `EnvironmentType`. Raises ConfigError."""
        raise self._served_only()

    def open(
        self, settings: EnvironmentSettings, resources: Resources
    ) -> contextlib.AbstractAsyncContextManager[EnvironmentRuntime]:
        """See `EnvironmentType`. Raises ConfigError."""
        raise self._served_only()

    def replaying(self, settings: EnvironmentSettings) -> None:
        """See `EnvironmentType`."""

    async def score(self, settings: EnvironmentSettings, task: Task, rollout: StoredRollout) -> Outcome | None:
        """See `EnvironmentType`."""
        return None

    def facts(self, settings: EnvironmentSettings) -> dict[str, str]:
        """See `EnvironmentType`."""
        return {}

    def hidden_information(self, settings: EnvironmentSettings, task: Task) -> None:
        """See `EnvironmentType`."""

    def host(self, settings: EnvironmentSettings) -> InstanceClassHost:
        """Return the host that the service uses; see `treadle.environments.service.hosting.EnvironmentHost`."""
        assert isinstance(settings, InstanceClassSettings)
        return InstanceClassHost(self._class, settings)

    def _served_only(self) -> ConfigError:
        return ConfigError(
            f"{self.name} is a class for the environment service, whose instances need a process each: serve it with "
            '`treadle environment serve`, and set environment.type = "service" here'
        )


class InstanceClassHost:
    """Class whose objects are served; see `EnvironmentHost`."""

    def __init__(self, found: type[Any], settings: InstanceClassSettings) -> None:
        self._class = found
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="instance")

    async def tasks(self, split: str, seed: int, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """See `EnvironmentHost`."""
        ids = await self.call(self._class.get_query_list, split, self.merged(params))
        if isinstance(ids, str | bytes | Mapping) or not hasattr(ids, "__iter__"):
            raise TypeError(f"{self._class.__name__}.get_query_list returned {ids!r:.60}, no list of ids of tasks")
        return [{"question_key": str(one)} for one in ids]

    def instance(self, task: Task, instance_id: str) -> ClassInstance:
        """See `EnvironmentHost`."""
        return ClassInstance(self, self._class, task.key, instance_id)

    def merged(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a call: those of the settings, overridden by those of the request."""
        return {**self._settings.params, **params}

    async def call(self, method: Any, *arguments: Any) -> Any:
        """Call a method and return its result; if it is not a coroutine function, it runs in the host's only thread."""
        if inspect.iscoroutinefunction(method):
            return await method(*arguments)
        found = await asyncio.get_running_loop().run_in_executor(self._thread, method, *arguments)
        return await found if inspect.isawaitable(found) else found


class ClassInstance:
    """One object of the served class; see `HeldInstance`."""

    def __init__(self, host: InstanceClassHost, found: type[Any], task_id: str, instance_id: str) -> None:
        self._host = host
        self._class = found
        self._task_id = task_id
        self._id = instance_id
        self._object: Any = None

    async def start(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """See `HeldInstance`."""
        merged = self._host.merged(params)
        self._object = await self._host.call(self._class, self._task_id, self._id, merged)
        state = self._state(await self._host.call(self._object.get_init_state, merged), "get_init_state")
        state["info"] = {"instance_id": self._id, "task_id": self._task_id, **state["info"]}
        return state

    async def step(self, action: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """See `HeldInstance`."""
        return self._state(await self._host.call(self._object.step, action, self._host.merged(params)), "step")

    async def evaluate(self, messages: Mapping[str, Any], params: Mapping[str, Any]) -> float:
        """See `HeldInstance`."""
        merged = self._host.merged(params)
        score = _plain(await self._host.call(self._object.evaluate, messages, merged))
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise TypeError(f"{self._class.__name__}.evaluate returned {score!r:.60}, no number")
        if merged.get("sparse") and score not in (0, 1):
            raise ValueError(f"{self._class.__name__}.evaluate returned {score} although sparse asks for 0 or 1")
        return float(score)

    async def get_info(self, messages: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
        """See `HeldInstance`."""
        found = getattr(self._object, "get_info", None)
        return None if found is None else _plain(await self._host.call(found, messages, self._host.merged(params)))

    async def close(self) -> None:
        """See `HeldInstance`."""
        if self._object is not None and callable(close := getattr(self._object, "close", None)):
            await self._host.call(close)

    def _state(self, returned: Any, method: str) -> dict[str, Any]:
        """Return a state as JSON data; a missing `reward`, `is_terminated` or `info` becomes 0, false or `{}`.

        Raises TypeError if the returned value is not a state.
        """
        state: dict[str, Any] = found if isinstance(found := _plain(returned), dict) else {}
        messages = state.get("state")
        is_one = isinstance(messages, list) and messages and all(isinstance(one, dict) for one in messages)
        if not is_one or not isinstance(state.get("info") or {}, dict):
            raise TypeError(
                f"{self._class.__name__}.{method} must return a dict with `state` (a list of messages), `reward`, "
                "`is_terminated` and `info`"
            )
        reward = state.get("reward", 0.0)
        # JSON has no NaN: `_plain` has made it null, so it is refused like None.
        if not isinstance(reward, int | float):
            raise TypeError(f"{self._class.__name__}.{method} returned a reward that is no number")
        is_over = bool(state.get("is_terminated"))
        return state | {"reward": float(reward), "is_terminated": is_over, "info": state.get("info") or {}}


def _plain(value: Any) -> Any:
    """Convert a returned value to plain JSON data; it may have numpy's numbers and objects with `model_dump`."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    return orjson.loads(orjson.dumps(value, default=_dumped, option=options))


def _dumped(value: Any) -> Any:
    if callable(dump := getattr(value, "model_dump", None)):
        return dump()
    raise TypeError(f"a {type(value).__name__} is no JSON")
