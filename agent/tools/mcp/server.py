"""Keep one MCP server connected: start it again when it is lost, and adopt its changed lists of tools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from treadle.agent.tools.mcp.connection import Connection, Transport
from treadle.agent.tools.mcp.listing import ToolList, tool_list, warn_of_changes
from treadle.agent.tools.mcp.settings import McpServerSettings
from treadle.core.errors import ToolError

if TYPE_CHECKING:
    from mcp_types import Tool

_log = logging.getLogger(__name__)


class McpServer:
    """Server with its current connection.

    Attributes:
        tools: Tools that it lists now.
        problems: One line for each tool that cannot be offered.
    """

    def __init__(
        self,
        entry: str,
        settings: McpServerSettings,
        make_transport: Callable[[], Transport],
        *,
        restarts: bool,
        known: ToolList | None = None,
    ) -> None:
        self.tools = ToolList({})
        self.problems: list[str] = []
        self._entry = entry
        self._settings = settings
        self._make_transport = make_transport
        self._restarts = restarts
        self._known = known
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def connection(self) -> Connection:
        """Return the connection; start the server if there is none, or again if it was lost. Raises ToolError."""
        async with self._lock:
            current = self._connection
            if current is not None and not current.is_lost:
                return current
            if self._is_closed or (current is not None and not self._restarts):
                error = ToolError(f"environment.tools.{self._entry}: the MCP server of this episode was lost")
                error.retryable = True
                raise error
            if current is not None:
                await current.close()
            started = Connection(self._entry, self._make_transport())
            listed = await started.open(self._settings.start_timeout_s)
            self._connection = started
            self._take(listed)
            return started

    async def refresh(self, connection: Connection) -> None:
        """Adopt a changed list of tools. Raises ToolError."""
        listed = None if connection.is_lost else await connection.changed_tools()
        if listed is not None:
            self._take(listed, during=True)

    def _take(self, listed: Sequence[Tool], *, during: bool = False) -> None:
        tools, problems = tool_list(self._entry, listed, self._settings)
        for problem in problems if during or self._known is not None else ():
            if problem not in self.problems:
                _log.warning("environment.tools.%s: %s", self._entry, problem)
        self.problems = problems
        if self._known is not None and not during:
            warn_of_changes(self._entry, self._known.data(), tools.data(), "since the server was first started")
        self.tools = tools
        if self._known is None:
            self._known = tools

    async def close(self) -> None:
        """Stop the server; it is not started again."""
        self._is_closed = True
        if self._connection is not None:
            await self._connection.close()
