"""The interface of tools."""

from __future__ import annotations

from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.user_tool import tool
from treadle.core.errors import ToolError

__all__ = [
    "CallContext",
    "ToolError",
    "ToolOutcome",
    "ToolSchema",
    "tool",
]
