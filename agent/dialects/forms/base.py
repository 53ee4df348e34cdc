"""Define what a form of tool calls is: how a family of models writes them, and how calls are read from JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from treadle.agent.tools.schema import NAME_PATTERN, ToolSchema

INVALID_NAME = "invalid"
"""Tool of a call whose name cannot be read."""


@dataclass(frozen=True, slots=True)
class CallText:
    """One complete call in the text of a turn.

    Attributes:
        start: Offset in characters.
        end: Offset of the first character after it.
        name: Name of the tool; `INVALID_NAME` if it cannot be read.
        arguments: Arguments by name; empty if they cannot be read.
        error: What is wrong with the call, for the model; empty if it can be read.
    """

    start: int
    end: int
    name: str
    arguments: Mapping[str, Any]
    error: str = ""


class ToolForm(Protocol):
    """How a family of models writes tool calls."""

    name: str

    @property
    def markers(self) -> re.Pattern[str]:
        """Pattern of what a model would read as a marker of a call or result; results must not spell it."""
        ...

    def find(self, text: str) -> list[CallText]:
        """Return the complete calls in a text, in order."""
        ...

    def begins_call(self, text: str) -> bool:
        """Return whether a text contains the beginning of a call, complete or not."""
        ...

    def is_written_in(self, example: str) -> bool:
        """Return whether `example`, a call as a chat template writes it, has this form."""
        ...


def read_call(start: int, end: int, data: bytes | str, key: str) -> CallText:
    """Read a call from JSON text {"name": …, key: {…}}."""
    try:
        call = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return _invalid(start, end, f"the call is not JSON ({error})", key)
    return call_of(start, end, call, key)


def call_of(start: int, end: int, call: Any, key: str) -> CallText:
    """Read a call from a JSON value {"name": …, key: {…}}; arguments may be an object in JSON text."""
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        return _invalid(start, end, "the call has no valid name of a tool", key)
    arguments = call.get(key, {})
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError as error:
            return CallText(start, end, name, {}, f"the arguments are not JSON ({error}); write a JSON object")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return CallText(start, end, name, {}, "the arguments are not a JSON object")
    try:
        # More can be read than can be written again: nesting over 254 levels.
        orjson.dumps(arguments)
    except TypeError as error:
        return CallText(start, end, name, {}, f"the arguments are not JSON that can be stored ({error})")
    return CallText(start, end, name, arguments)


def _invalid(start: int, end: int, error: str, key: str) -> CallText:
    return CallText(start, end, INVALID_NAME, {}, f'{error}; write {{"name": "…", "{key}": {{…}}}}')


def schemas_text(tools: Sequence[ToolSchema]) -> str:
    """Return schemas as JSON, one tool per line."""
    return "\n".join([orjson.dumps(tool.as_openai()).decode() for tool in tools])
