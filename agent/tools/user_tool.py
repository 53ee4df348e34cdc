"""Define what tools of functions and of classes share: the mark `@tool`, their limits, and the run of a call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from pydantic import Field

from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.settings import ToolSettings
from treadle.agent.tools.signature import UserSignature
from treadle.agent.tools.user_calls import CallThreads, outcome_of
from treadle.core.config import Operational
from treadle.core.errors import ConfigError

_MARK = "__treadle_tool__"
T_Function = TypeVar("T_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ToolMark:
    """Mark that `tool` puts on a function: the name of its tool, None for the method's own name, and its version."""

    name: str | None
    version: int


@overload
def tool(function: T_Function, /) -> T_Function: ...


@overload
def tool(*, name: str | None = None, version: int = 1) -> Callable[[T_Function], T_Function]: ...


def tool(function: Any = None, /, *, name: str | None = None, version: int = 1) -> Any:
    """Mark a method of a class as a tool: `@tool` or `@tool(name="look-up")`; the default name is the method's.

    Increase `version` if its outcomes change; for code in a file such as `my_tools.py`, every edit counts.
    """

    def mark(marked: Any) -> Any:
        setattr(marked, _MARK, ToolMark(name, version))
        return marked

    return mark if function is None else mark(function)


def mark_of(function: Any) -> ToolMark | None:
    """Return the mark of a function; None without one."""
    mark = getattr(function, _MARK, None)
    return mark if isinstance(mark, ToolMark) else None


class UserToolSettings(ToolSettings):
    """Limits of a tool that is implemented by a user's code."""

    time_limit_s: float = Field(default=60.0, gt=0)
    """Seconds that one call may take; then its outcome is `timeout`."""
    max_output_chars: int | None = Field(default=10_000, ge=0)
    """Longest result in characters, cut in its middle; none means no limit."""
    num_threads: Operational[int] = Field(default=8, ge=1)
    """Calls of functions that are not async that run at once in a process."""


def user_schema(name: str, signature: UserSignature) -> ToolSchema:
    """Return the schema of a function under a name. Raises ConfigError if no tool can have the name."""
    try:
        return ToolSchema(name, signature.description, signature.parameters)
    except ValueError as error:
        raise ConfigError(str(error)) from None


async def call_user(
    name: str,
    function: Callable[..., Any],
    signature: UserSignature,
    arguments: Mapping[str, Any],
    threads: CallThreads,
    settings: UserToolSettings,
    deadline: float,
    context: CallContext,
    payload: Mapping[str, Any] | None = None,
) -> ToolOutcome:
    """Convert the arguments, run one call within its limits, and return its outcome. Raises ToolError."""
    try:
        positional, named = signature.arguments(arguments, context)
    except ValueError as error:
        return ToolOutcome("invalid", f"Error: the arguments of {name} do not fit: {error}.")
    return await outcome_of(
        name,
        functools.partial(function, *positional, **named),
        threads,
        time_limit_s=settings.time_limit_s,
        deadline=deadline,
        budget_s=context.budget_s,
        max_output_chars=settings.max_output_chars,
        payload=payload or {},
    )
