"""Read the replies of an environment service. A missing value is an error or stays unknown; none is made up."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.core.chat_turns import well_formed
from treadle.core.errors import ToolError
from treadle.core.llm.failures import excerpt

_ROLES = frozenset({"system", "user", "tool", "assistant"})
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LOST_CODES = frozenset({"instance_not_found", "env_error", "env_crashed", "env_timeout", "reply_dropped", "internal"})
_BUSY_CODES = frozenset({"capacity", "shutting_down"})
_BUSY_STATUSES = frozenset({408, 425, 429, 502, 503})


class ServiceRefused(ToolError):
    """A request that the service refuses and would refuse again: a wrong key, address, type or parameter."""


class ServiceUnavailable(ToolError):
    """A service that is down, full or stopping, after all retries."""

    retryable = True


class InstanceLost(ToolError):
    """An instance that failed or no longer exists; its episode can be repeated on a new instance."""

    retryable = True


class ReplyUnusable(ToolError):
    """A reply that does not fit the interface."""

    retryable = True


@dataclass(frozen=True, slots=True)
class ServiceMessage:
    """One message of a state. `calls` has id and result of each native call; the ids are those of the request."""

    role: str
    text: str
    calls: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class ServiceState:
    """State of an instance after it was made or acted on."""

    messages: Sequence[ServiceMessage]
    is_terminated: bool
    info: Mapping[str, Any]


def data_of(place: str, status: int, body: bytes, *, is_of_instance: bool) -> Any:
    """Return the data of a successful reply. Raises ServiceRefused, ServiceUnavailable, InstanceLost or ReplyUnusable.

    `place` names the request in messages; `is_of_instance` is true if the request creates or addresses an instance.
    """
    try:
        reply = orjson.loads(body)
    except orjson.JSONDecodeError:
        reply = None
    if status == 200 and isinstance(reply, dict) and isinstance(reply.get("success"), bool) and "error" not in reply:
        if "data" not in reply:
            raise ReplyUnusable(f"{place}: the reply has no data")
        return reply["data"]
    error = reply.get("error") if isinstance(reply, dict) else None
    if isinstance(error, dict):
        raise _structured(place, status, error)
    said = f"{place}: HTTP {status}: {_detail(reply, body)}"
    if status == 200:
        raise ReplyUnusable(f"{place}: the reply does not fit the interface: {excerpt(body)}")
    if status in _BUSY_STATUSES:
        raise ServiceUnavailable(said)
    # AgentEvolver's service has no codes that distinguish wrong requests, lost instances and environment errors.
    if status in (400, 404, 409) or status >= 500:
        raise InstanceLost(said) if is_of_instance else ServiceRefused(said)
    raise ServiceRefused(said)


def _structured(place: str, status: int, error: Mapping[str, Any]) -> ToolError:
    code = str(error.get("code", ""))
    said = f"{place}: {excerpt(code.encode())}: {excerpt(str(error.get('message', '')).encode('utf-8', 'replace'))}"
    if code in _BUSY_CODES or status == 429:
        return ServiceUnavailable(said)
    return InstanceLost(said) if code in _LOST_CODES else ServiceRefused(said)


def _detail(reply: Any, body: bytes) -> str:
    """Return the last line of an error's detail: AgentEvolver's service sends a traceback with terminal colours."""
    detail = reply.get("detail") if isinstance(reply, dict) else None
    if not isinstance(detail, str):
        return excerpt(body if detail is None else orjson.dumps(detail))
    lines = [line for line in _COLOURS.sub("", detail).splitlines() if line.strip()]
    return excerpt(lines[-1].encode("utf-8", "replace")) if lines else "(empty)"


def task_ids(place: str, data: Any) -> list[str]:
    """Return the task ids in the data of `get_env_profile`, numbers as text. Raises ReplyUnusable."""
    if not isinstance(data, list) or not all(isinstance(one, (str, int)) for one in data):
        raise ReplyUnusable(f"{place}: the profile is no list of ids")
    return [str(one) for one in data]


def state_of(place: str, data: Any, *, is_first: bool) -> ServiceState:
    """Return a state. The first state of an instance may lack `is_terminated`. Raises ReplyUnusable."""
    if not isinstance(data, dict) or not isinstance(data.get("state"), list) or not data["state"]:
        raise ReplyUnusable(f"{place}: the state has no messages")
    messages = [_message(place, one) for one in data["state"]]
    ended, info = data.get("is_terminated", False if is_first else None), data.get("info")
    if not isinstance(ended, bool):
        raise ReplyUnusable(f"{place}: the state does not say whether the episode has ended")
    if is_first and (messages[-1].role != "user" or any(one.role not in ("system", "user") for one in messages)):
        raise ReplyUnusable(f"{place}: the first state has other messages than of system and user, the user's last")
    return ServiceState(messages, ended, info if isinstance(info, dict) else {})


def _message(place: str, one: Any) -> ServiceMessage:
    if not isinstance(one, dict) or one.get("role") not in _ROLES or not isinstance(one.get("content"), str):
        raise ReplyUnusable(f"{place}: a message of the state has no role or no text")
    calls = one.get("tool_calls") or ()
    results = [
        (str(call.get("id", "")), well_formed(call["result"]))
        for call in calls
        if isinstance(call, dict) and isinstance(call.get("result"), str)
    ]
    return ServiceMessage(one["role"], well_formed(one["content"]), results)


def score_of(place: str, data: Any, *, sparse: bool) -> float:
    """Return a score; a sparse one is 0 or 1. Raises ReplyUnusable for any other data."""
    if isinstance(data, dict):
        raise ReplyUnusable(f"{place}: the score is a table; set environment.sparse = true")
    if isinstance(data, bool) or not isinstance(data, (int, float)) or not math.isfinite(data):
        raise ReplyUnusable(f"{place}: the score is no number")
    if sparse and data not in (0, 1):
        raise ReplyUnusable(f"{place}: the score is {data:g}, though 0 or 1 was asked for")
    return float(data)
