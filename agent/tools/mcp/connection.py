"""Hold one connection to an MCP server: handshake, tool list, calls, and the reason for its end.

The client package binds a connection to one task, so each connection has a task of its own. A fault of the server ends
the connection and is never the result of a call: all calls in progress then raise ToolError.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from treadle.agent.tools.mcp.results import label
from treadle.core.errors import ToolError

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult, Tool

_log = logging.getLogger(__name__)

PING_S = 10.0
"""Time in which a server has to answer a ping when a call has reached its limit."""
MAX_PAGES = 100
_CLOSE_S = 30.0
T = TypeVar("T")


class Lose(Protocol):
    """Function that ends a connection; see `Connection.lose`."""

    def __call__(self, reason: str, *, may_pass: bool = True) -> None:
        """End the connection."""
        ...


class InvalidCall(Exception):
    """Error for a call that the server answers with a JSON-RPC error, or by asking for input of a user."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.message, self.code = message, code


class Transport(Protocol):
    """Transport to a server, such as HTTP or the standard streams of a process."""

    def connect(self, lose: Lose) -> AbstractAsyncContextManager[Any]:
        """Return the client package's transport; it calls `lose` with the reason why the connection has ended."""
        ...

    def explain(self, problem: str) -> str:
        """Return a problem together with what the transport knows about its cause, without secrets."""
        ...

    def answered(self) -> None:
        """Note that the server has answered a request."""
        ...


class Connection:
    """Connection to a server: `open`, calls, `close`.

    Attributes:
        facts: Name and version of the server, and the protocol version; known once it is open.
    """

    def __init__(self, entry: str, transport: Transport) -> None:
        self.facts: dict[str, str] = {}
        self._entry = entry
        self._transport = transport
        self._client: Client | None = None
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._may_change = False
        self._may_pass = True

    @property
    def is_lost(self) -> bool:
        """Whether no call can succeed any more."""
        return self._lost.done()

    async def open(self, timeout_s: float) -> list[Tool]:
        """Connect and return the tools that the server lists. Raises ToolError."""
        opened: asyncio.Future[list[Tool]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(opened))
        try:
            await _first(opened, self._lost, timeout_s=timeout_s)
            if not opened.done():
                self.lose(f"is not ready within {timeout_s:g} s (start_timeout_s)")
                raise self._error()
            return opened.result()
        except BaseException:
            opened.cancel()
            await asyncio.shield(self.close())
            raise

    async def _run(self, opened: asyncio.Future[list[Tool]]) -> None:
        from mcp import Client
        from mcp_types import Implementation

        ours = Implementation(name="treadle", version=version("treadle"))
        try:
            async with Client(
                self._transport.connect(self.lose), cache=None, client_info=ours, message_handler=self._note
            ) as client:
                self._client = client
                server = client.server_info
                named = "" if server is None else label(f"{server.name} {server.version}".strip())
                self.facts = {"server": named or "unnamed", "protocol": client.protocol_version}
                tools = await self._list_tools()
                if not opened.done():
                    opened.set_result(tools)
                await _first(closing := asyncio.ensure_future(self._closing.wait()), self._lost)
                closing.cancel()
        except Exception as error:  # noqa: BLE001 - whatever the client package makes of a server's messages
            self.lose(f"cannot be used: {_reason(error)}")
        finally:
            self.lose("was closed")

    def lose(self, reason: str, *, may_pass: bool = True) -> None:
        """End the connection; `reason` continues a message that begins with "the MCP server". The first reason counts.

        `may_pass` is whether a retry can help.
        """
        if not self._lost.done():
            self._may_pass = may_pass
            self._lost.set_result(self._transport.explain(reason))

    def _error(self) -> ToolError:
        error = ToolError(f"environment.tools.{self._entry}: the MCP server {self._lost.result()}")
        error.retryable = self._may_pass
        return error

    async def _note(self, message: object) -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._may_change = True

    async def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """Call a tool. Raises InvalidCall, and ToolError if the server is out of order."""
        from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult, InputRequiredResult
        from pydantic import TypeAdapter

        assert self._client is not None
        # Not `call_tool`, which checks a declared schema of results; here, results are text for the model.
        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
        adapter: TypeAdapter[Any] = TypeAdapter(CallToolResult | InputRequiredResult)
        result = await self._answer(self._client.session.send_request(request, adapter))
        if not isinstance(result, CallToolResult):
            raise InvalidCall("The tool asks for input of a user, which it cannot have here.", 0)
        return result

    async def changed_tools(self) -> list[Tool] | None:
        """Return the tools that the server lists now; None if their list cannot have changed.

        It may have changed if the server has announced a change, and always if it has declared at the handshake that it
        announces changes, since an announcement can arrive after the result of the call that caused it. Raises
        ToolError.
        """
        assert self._client is not None
        declared = self._client.server_capabilities.tools
        if not self._may_change and not (declared is not None and declared.list_changed):
            return None
        self._may_change = False
        try:
            async with asyncio.timeout(PING_S):
                return await self._answer(self._list_tools())
        except (TimeoutError, InvalidCall):
            self.lose("does not list its tools after a call")
            raise self._error() from None

    async def _list_tools(self) -> list[Tool]:
        from mcp_types import PaginatedRequestParams

        assert self._client is not None
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._client.session.list_tools(
                params=None if cursor is None else PaginatedRequestParams(cursor=cursor)
            )
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
        return tools

    async def is_answering(self) -> bool:
        """Return whether the server answers a ping; if not, the connection is lost."""
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        assert self._client is not None
        session = self._client.session
        protocol = self._client.protocol_version
        # The newest protocol has no ping; this request is as small.
        ping = session.send_discover(protocol) if protocol in MODERN_PROTOCOL_VERSIONS else session.send_ping()
        try:
            async with asyncio.timeout(PING_S):
                await self._answer(ping)
        except TimeoutError:
            self.lose(f"answers neither the call nor a ping within {PING_S:g} s")
            return False
        except InvalidCall:
            return True
        except ToolError:
            return False
        return True

    async def _answer(self, request: Coroutine[Any, Any, T]) -> T:
        """Return what a request returns. Raises InvalidCall, and ToolError if the connection is lost meanwhile."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, REQUEST_TIMEOUT

        task = asyncio.create_task(request)
        try:
            await _first(task, self._lost)
            if self._lost.done():
                raise self._error()
            result = task.result()
        except MCPError as error:
            # The transport reports its faults as errors of the server, just before it ends the connection.
            await asyncio.sleep(0)
            if error.error.code in (CONNECTION_CLOSED, PARSE_ERROR, REQUEST_TIMEOUT):
                self.lose(f"gave no usable answer: {label(error.error.message)}")
            if self._lost.done():
                raise self._error() from None
            raise InvalidCall(error.error.message, error.error.code) from None
        except (ToolError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - an answer that does not fit the protocol
            self.lose(f"gave an answer that cannot be used: {_reason(error)}")
            raise self._error() from None
        finally:
            task.cancel()
        self._transport.answered()
        return result

    async def close(self) -> None:
        """End the connection and the server that was started for it. No process of the server is left afterwards."""
        self._closing.set()
        if self._task is None:
            return
        if self._client is None:  # Still in the handshake.
            self._task.cancel()
        done, _ = await asyncio.wait({self._task}, timeout=_CLOSE_S)
        if not done:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_CLOSE_S)
            _log.warning("environment.tools.%s: the MCP server's connection did not close in time", self._entry)
        with contextlib.suppress(asyncio.CancelledError, Exception):
            self._task.result()


async def _first(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Wait until the first of some futures is done, or for `timeout_s`."""
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def _reason(error: BaseException) -> str:
    """Return the cause of an error of the client package in a few words."""
    from pydantic import ValidationError

    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValidationError):
        return "a message does not fit the protocol: " + label(
            "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:2])
        )
    return label(str(error) or type(error).__name__)
