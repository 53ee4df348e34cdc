"""Define the bodies that go over the wire; docs/behaviour/environment-service.md specifies them.

The server checks with these models what environments return; they are the schemas of its OpenAPI page.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, JsonValue, StringConstraints

_UNFIT_FOR_PATHS = re.compile(r"[/\\\x00-\x1f\x7f]")


def _fit_for_paths(identity: str) -> str:
    if identity in (".", "..") or _UNFIT_FOR_PATHS.search(identity):
        raise ValueError("an id has no slashes and control characters, and is not . or ..")
    return identity


Identifier = Annotated[str, StringConstraints(min_length=1, max_length=256)]
InstanceId = Annotated[Identifier, AfterValidator(_fit_for_paths)]
"""Id of an instance; it must fit as the name of a folder, since environments such as AppWorld's use it as one."""


class Envelope(BaseModel):
    """The body of every POST; the description of a route names the fields that it needs."""

    model_config = ConfigDict(extra="ignore")

    env_type: Annotated[str, StringConstraints(max_length=256)] | None = None
    """Name of a served environment; none means the first one."""
    task_id: Annotated[str, StringConstraints(max_length=1024)] | None = None
    instance_id: InstanceId | None = None
    messages: dict[str, Any] = {}
    """The action: `{"role": "assistant", "content": text, "tool_calls": [...]}`."""
    params: dict[str, Any] = {}
    request_id: Identifier | None = None
    """A step or create with the `request_id` of an earlier one is not carried out again, and gets the stored reply."""


class ToolCall(BaseModel):
    """A call of a tool, with its result in replies of the service."""

    model_config = ConfigDict(extra="ignore")

    id: str = ""
    index: int = 0
    type: str = "function"
    name: str
    arguments: str = "{}"
    """Arguments as JSON text."""
    result: str = ""


class ActionCall(BaseModel):
    """A call in an action: in the form of this interface, or with `function` as chat services send it."""

    model_config = ConfigDict(extra="ignore")

    id: str = ""
    name: str = ""
    arguments: str | dict[str, Any] = "{}"
    function: ActionFunction | None = None


class ActionFunction(BaseModel):
    """Name and arguments of a call as chat services send it."""

    model_config = ConfigDict(extra="ignore")

    name: str
    arguments: str | dict[str, Any] = "{}"


class Action(BaseModel):
    """What the model did: `messages` of a step."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["assistant"]
    content: str | None = None
    tool_calls: list[ActionCall] | None = None


class WireMessage(BaseModel):
    """One message."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "user", "tool", "assistant"]
    content: str
    tool_calls: list[ToolCall] | None = None


class State(BaseModel):
    """State of an instance: the system message and the user's after `create`, one message after `step`."""

    model_config = ConfigDict(extra="forbid")

    state: list[WireMessage]
    reward: FiniteFloat
    is_terminated: bool
    info: dict[str, JsonValue]


class StateReply(BaseModel):
    """Reply of `create` and `step`."""

    success: Literal[True] = True
    data: State


class TaskIdsReply(BaseModel):
    """Reply of `get_env_profile`."""

    success: Literal[True] = True
    data: list[str]


class ScoreReply(BaseModel):
    """Reply of `evaluate`."""

    success: Literal[True] = True
    data: Annotated[FiniteFloat, Field(ge=0, le=1)]


class InfoReply(BaseModel):
    """Reply of `get_info`."""

    success: Literal[True] = True
    data: JsonValue


class ReleaseReply(BaseModel):
    """Reply of `release`; `success` is false for an unknown instance."""

    success: bool
    data: None = None


class ErrorBody(BaseModel):
    """Error of a failed request."""

    code: str
    message: str
    retryable: bool


class ErrorReply(BaseModel):
    """Reply of every status from 400."""

    success: Literal[False] = False
    error: ErrorBody


def checked_state(value: Any, *, is_first: bool) -> dict[str, Any]:
    """Return a state that an environment made, if it fits the interface. Raises ValueError.

    With `is_first` the state must have the system message and the user's, as after `create`, else one message.
    """
    state = State.model_validate(value)
    roles = [message.role for message in state.state]
    if is_first and roles != ["system", "user"]:
        raise ValueError(f"the first state must have a system and a user message; it has {', '.join(roles) or 'none'}")
    if not is_first and len(roles) != 1:
        raise ValueError(f"the state after a step must have one message; it has {len(roles)}")
    found: dict[str, Any] = value
    return found


def checked_score(value: Any) -> float:
    """Return a score from 0 to 1 that an environment gave. Raises ValueError."""
    return ScoreReply(data=value).data
