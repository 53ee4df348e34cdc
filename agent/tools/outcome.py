"""What a tool gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

OutcomeStatus = Literal["ok", "empty", "error", "timeout", "invalid", "refused"]
"""`invalid`: the argument cannot be used (an empty query). `refused`: over the tool's limit, not executed."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """Outcome of one tool call. `text` is what the agent sees between the result tags, cut to the tool's limit."""

    status: OutcomeStatus
    text: str
    seconds: float = 0.0
    cached: bool = False


class Tool(Protocol):
    """A tool of the environment. `name` is also its tag. Used by many rollouts at once on one event loop.

    Usage: `async with tool:` around all calls. `call` never raises for anything the agent did; it raises
    `ToolError` (retryable or not) only when the tool itself is out of order.
    """

    name: str

    async def __aenter__(self) -> Tool: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def call(self, argument: str, *, deadline: float) -> ToolOutcome:
        """Run one call; `deadline` is in the event loop's clock and bounds it together with the tool's own limit."""
        ...
