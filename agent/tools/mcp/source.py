"""Offer the tools of an MCP server to episodes, restart it when it is lost, and record its tool lists."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import orjson

from treadle.agent.tools.mcp.connection import InvalidCall, Transport
from treadle.agent.tools.mcp.listing import ToolList, refuse, warn_of_changes
from treadle.agent.tools.mcp.results import error_outcome, outcome_of
from treadle.agent.tools.mcp.server import McpServer
from treadle.agent.tools.mcp.settings import McpServerSettings
from treadle.agent.tools.mcp.transports import open_transports
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.settings import ToolResources
from treadle.agent.tools.source import ToolResume
from treadle.core.config import digest_json, semantic_dump
from treadle.core.errors import ToolError
from treadle.core.work_clock import work_clock

if TYPE_CHECKING:
    from treadle.agent.contract import Outcome, Task
    from treadle.agent.tools.schema import ToolSchema

TIMEOUT_TEXT = "The tool did not answer within {:g} s."
STORE = "mcp_tools"
_KEY_CHARS = 32


class McpSource:
    """Source of the tools of one server; see `treadle.agent.tools.source.ToolSource`."""

    def __init__(self, entry: str, settings: McpServerSettings, resources: ToolResources) -> None:
        self.resume: ToolResume = "restart" if settings.per_episode else "stateless"
        self._entry = entry
        self._settings = settings
        self._resources = resources
        self._stack = AsyncExitStack()
        self._make_transport: Callable[[], Transport] | None = None
        self._server: McpServer | None = None
        self._tools = ToolList({})
        self._facts: dict[str, str] = {}

    async def __aenter__(self) -> McpSource:
        """Start the server and list its tools. Raises ToolError, and ConfigError if its token is not set."""
        if importlib.util.find_spec("mcp") is None:
            raise ToolError(f"environment.tools.{self._entry} needs the MCP client: pip install 'treadle[tools]'")
        _quiet_client_package()
        try:
            self._make_transport = await open_transports(self._entry, self._settings, self._stack)
            server = McpServer(self._entry, self._settings, self._make_transport, restarts=True)
            self._stack.push_async_callback(server.close)
            connection = await server.connection()
            refuse(self._entry, server.problems)
            self._tools = server.tools
            self._facts = connection.facts | {"tools": ", ".join(self._tools), "tools_sha256": self._tools.digest()}
            await self._record()
            if self._settings.per_episode:
                await server.close()
            else:
                self._server = server
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop the server."""
        await self._stack.aclose()

    async def _record(self) -> None:
        """Record the tool list in the run; warn if it differs from the first one of the run."""
        if self._resources.store is None:
            return
        store = self._resources.store(STORE)
        data = orjson.dumps(self._tools.data())
        await asyncio.to_thread(store.add, self._tools.digest()[:_KEY_CHARS], data)
        # Servers of two environments may have the same name, but differ in what they run or offer.
        settings = {name: value for name, value in semantic_dump(self._settings).items() if name != "code_sha256"}
        server = ["first list", self._entry, settings]
        first = await asyncio.to_thread(store.add, digest_json(server)[:_KEY_CHARS], data)
        warn_of_changes(self._entry, orjson.loads(first), self._tools.data(), "since the run began")

    @property
    def schemas(self) -> Sequence[ToolSchema]:
        """The tools that the server listed when it was first started."""
        return tuple(self._tools.values())

    def facts(self) -> dict[str, str]:
        """Return name and version of the server, protocol version, names of the tools, and digest of their schemas."""
        return dict(self._facts)

    async def episode(self, task: Task, seed: int) -> McpTools:
        """Return the tools of one rollout. Raises ToolError."""
        if self._server is not None:
            return McpTools(self._server, self._settings, owns_server=False)
        assert self._make_transport is not None
        server = McpServer(self._entry, self._settings, self._make_transport, restarts=False, known=self._tools)
        with work_clock().hold():
            await server.connection()
        return McpTools(server, self._settings, owns_server=True)


class McpTools:
    """Tools of a server for one episode; see `treadle.agent.tools.source.EpisodeTools`."""

    def __init__(self, server: McpServer, settings: McpServerSettings, *, owns_server: bool) -> None:
        self._server = server
        self._settings = settings
        self._owns_server = owns_server

    @property
    def schemas(self) -> Sequence[ToolSchema]:
        """The tools that the server lists now."""
        return tuple(self._server.tools.values())

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, deadline: float, context: CallContext
    ) -> ToolOutcome:
        """Call a tool of the server.

        A call that reaches its time limit has the outcome `timeout` if the server still answers a ping. Otherwise the
        server is stopped. Raises ToolError if the server is out of order; a shared one is started again for the next
        call.
        """
        settings, clock = self._settings, work_clock()
        with clock.hold():
            connection = await self._server.connection()
        limit_s = settings.timeout_s if context.budget_s is None else min(settings.timeout_s, context.budget_s)
        until = clock.time() + limit_s
        if context.budget_s is None:
            until = min(until, deadline)
        loop = asyncio.get_running_loop()
        started = loop.time()
        at_server = self._server.tools.server_names.get(name, name)
        limit = clock.limit(until, connection.is_answering)
        try:
            async with limit:
                result = await connection.call(at_server, _encodable(arguments))
            outcome = await asyncio.to_thread(outcome_of, result, settings.max_output_chars)
        except InvalidCall as error:
            outcome = error_outcome(error.message, error.code, settings.max_output_chars)
        except TimeoutError:
            outcome = ToolOutcome("timeout", TIMEOUT_TEXT.format(limit_s))
        seconds = loop.time() - started
        with clock.hold():
            await self._server.refresh(connection)
        return ToolOutcome(outcome.status, outcome.text, seconds, note=outcome.note)

    async def outcome(self) -> Outcome | None:
        """Return None: servers report no outcome of an episode."""
        return None

    async def close(self) -> None:
        """Stop the server if it was started for this episode alone."""
        if self._owns_server:
            await self._server.close()


def _encodable(value: Any) -> Any:
    """Return JSON-able data without lone surrogates, which no message can carry."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_encodable(key): _encodable(one) for key, one in value.items()}
    return [_encodable(one) for one in value] if isinstance(value, (list, tuple)) else value


def _quiet_client_package() -> None:
    """Keep the package from logging messages of servers with tracebacks; what matters is raised as an error."""
    for name in ("mcp", "client", "httpx2"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
