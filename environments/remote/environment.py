"""Play an episode on an instance of an environment service."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson

from treadle.agent.contract import Call, CallRecord, Message, ModelTurn, Observation, Outcome, Task
from treadle.agent.dialects.base import REASONING, TOOL_CALL
from treadle.agent.tools.outcome import clip
from treadle.agent.tools.schema import ToolSchema
from treadle.core.errors import ToolError
from treadle.environments.custom.base import Environment
from treadle.environments.objectives import objective_of
from treadle.environments.remote.client import ServiceClient
from treadle.environments.remote.replies import ReplyUnusable, ServiceMessage, ServiceState
from treadle.environments.remote.settings import ServiceSettings
from treadle.environments.types import Resources

_log = logging.getLogger(__name__)

_UNFIT_FOR_IDS = re.compile(r"[^\w.:-]", re.ASCII)
"""Characters that services may refuse in ids, or that do not suit names of folders."""
_SOLVED = 1.0
"""Least score of a solved task."""


class ServiceEnvironment(Environment):
    """One instance of a service.

    Its id begins with the key of the task and the seed of the rollout; the `request_id` of a step is this id and the
    number of the turn. A resumed rollout creates an instance with a new id, so the service cannot mistake its steps for
    those of the earlier instance.
    """

    _settings: ServiceSettings
    _instance: str = ""
    _num_turns: int = 0

    @classmethod
    def open_shared(cls, settings: ServiceSettings, resources: Resources) -> AbstractAsyncContextManager[ServiceClient]:
        """Connect to the service."""
        return ServiceClient(settings)

    @classmethod
    async def tasks(cls, settings: ServiceSettings, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the tasks of a split with their ids; the service gives their texts only when an instance is made."""
        names = {str(ours): theirs for ours, theirs in settings.splits.items()}
        async with ServiceClient(settings) as client:
            ids = await client.profile(names.get(split, split))
        for name in ids:
            yield {"question": f"Task {name}", "id": name, "payload": {"task_id": name}}

    def prepare(self, task: Task, settings: Any, shared: Any, seed: int, group_seed: int) -> None:
        """See `Environment`."""
        super().prepare(task, settings, shared, seed, group_seed)
        self._settings = settings

    async def reset(self, task: Task) -> Sequence[Mapping[str, str]]:
        """Create an instance; return its first messages."""
        client: ServiceClient = self.shared
        self._num_turns = 0
        # The id is always new: an earlier process may have acted on an instance for the same task and seed.
        key = _UNFIT_FOR_IDS.sub("_", task.key[:32])
        self._instance = f"{key}-{self._seed:x}-{uuid.uuid4().hex[:12]}"
        state = await client.create(str(task.payload["task_id"]), self._instance, {"seed": self._seed})
        if state.is_terminated:
            raise ReplyUnusable("the environment service made an instance that has ended already")
        self.schemas = self._tools(state)  # type: ignore[misc]  # a class variable that `reset` may set
        shown = [{"role": one.role, "content": one.text} for one in state.messages if one.text or one.role == "user"]
        if objective_of(task.payload) is None:
            return shown
        return [*shown[:-1], {"role": "user", "content": task.text}]

    async def step(self, turn: ModelTurn) -> Observation:
        """Act on the instance; do not send a turn that was cut off by the context window or the token budget."""
        if turn.ended in ("context_full", "budget"):
            return Observation(status=turn.ended)
        client: ServiceClient = self.shared
        state = await client.step(self._instance, f"{self._instance}.{turn.number}", self._action(turn))
        self._num_turns += 1
        messages = self._messages(state)
        texts = {message.call: message.text for message in messages if message.call}
        records = [
            CallRecord(call.tool, call.text, "invalid" if call.error else "ok", turn.number, texts[call.id], id=call.id)
            for call in turn.calls
            if call.id in texts
        ]
        return Observation(
            tuple(records),
            tuple(messages),
            "finished" if state.is_terminated else None,
            truncated=state.info.get("truncated") is True,
            tools=tuple(self._tools(state)),
        )

    async def outcome(self) -> Outcome | None:
        """Return the score of the instance; None if the model made no turn.

        None also for a task that exploration made from the service's task: the service can score only its own.
        """
        if not self._num_turns or objective_of(self.task.payload) is not None:
            return None
        client: ServiceClient = self.shared
        score = await client.evaluate(self._instance)
        return Outcome(score, score >= _SOLVED)

    async def close(self) -> None:
        """End the instance; if the request fails, the service ends the instance later, when it is idle."""
        if not self._instance:
            return
        client: ServiceClient = self.shared
        try:
            await client.release(self._instance)
        except (ToolError, TimeoutError) as error:
            _log.warning("instance %s was not released: %s", self._instance, error)

    def _action(self, turn: ModelTurn) -> dict[str, Any]:
        if self._settings.tool_calls == "text":
            return {"role": "assistant", "content": turn.text}
        segments = self._settings.turn_dialect.segments(turn.text)
        said = "".join(one.text for one in segments if one.kind not in (TOOL_CALL, REASONING)).strip()
        if not turn.calls:
            return {"role": "assistant", "content": said}
        return {"role": "assistant", "content": said, "tool_calls": [_sent(*one) for one in enumerate(turn.calls)]}

    def _messages(self, state: ServiceState) -> list[Message]:
        found: list[Message] = []
        for one in _listed(state):
            if self._settings.tool_calls == "native" and one.calls:
                found += [self._settings.turn_dialect.result(self._cut(text), call) for call, text in one.calls]
            elif one.text or not state.is_terminated:
                found.append(Message(self._cut(one.text)))
        return found

    def _cut(self, text: str) -> str:
        return clip(text, self._settings.max_message_chars)

    def _tools(self, state: ServiceState) -> list[ToolSchema]:
        given = state.info.get("tools") if self._settings.tool_calls == "native" else None
        try:
            functions = [one["function"] for one in given or ()]
            return [ToolSchema(one["name"], one.get("description", ""), one["parameters"]) for one in functions]
        except (KeyError, TypeError, ValueError) as error:
            raise ReplyUnusable(f"the environment service describes a tool that cannot be read: {error!r}") from None


def _sent(index: int, call: Call) -> dict[str, Any]:
    # Arguments that could not be read stay unreadable at the service.
    arguments = call.error if call.error else orjson.dumps(call.arguments).decode()
    return {"id": call.id, "index": index, "type": "function", "name": call.tool, "arguments": arguments, "result": ""}


def _listed(state: ServiceState) -> Sequence[ServiceMessage]:
    """Return the messages of a state one by one.

    Treadle's service joins them to one message in `state`, and lists them in `info`.
    """
    given = state.info.get("messages")
    if not isinstance(given, list):
        return state.messages
    return [
        ServiceMessage("tool", "", [(one["tool_call_id"], one["content"])])
        if one.get("tool_call_id")
        else ServiceMessage("user", one["content"])
        for one in given
    ]
