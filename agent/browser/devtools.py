"""Speak Chromium's DevTools protocol over a pair of pipes: commands with replies, and events of each session.

Protocol: https://chromedevtools.github.io/devtools-protocol/, messages of JSON that end with a zero byte. It is used
without a driver such as playwright, which would have to run in the sandbox's network namespace to reach the browser.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

import orjson

Event = dict[str, Any]
Listener = Callable[[str, Event], None]
"""Function that gets the name of an event and its parameters."""


class BrowserLost(Exception):
    """Error for a browser, page or connection that ended before the reply."""


class CommandFailed(Exception):
    """Error for a command that the browser refused; the message is the browser's."""


class Connection(Protocol):
    """Pipes to and from a browser; `treadle.agent.sandbox.server_process.ServerProcess` implements this protocol."""

    output: asyncio.StreamReader

    def write(self, data: bytes) -> Awaitable[None]:
        """Write to the browser."""
        ...


class DevTools:
    """Client of one browser. Use it in the event loop in which it was made."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[Event]] = {}
        self._listeners: dict[str, Listener] = {}
        self._is_lost = False
        self._reading = asyncio.create_task(self._read())

    async def call(self, command: str, session: str = "", **parameters: Any) -> Event:
        """Send a command and return its result. Raises BrowserLost and CommandFailed."""
        if self._is_lost:
            raise BrowserLost("the browser has ended")
        number = next(self._numbers)
        message: Event = {"id": number, "method": command, "params": parameters}
        if session:
            message["sessionId"] = session
        reply: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        try:
            await self._connection.write(orjson.dumps(message) + b"\0")
            return await reply
        except OSError as error:
            raise BrowserLost(str(error)) from None
        finally:
            del self._replies[number]

    @contextlib.contextmanager
    def listening(self, session: str, listener: Listener) -> Iterator[None]:
        """Call `listener` for each event of a session, for the duration of the block."""
        self._listeners[session] = listener
        try:
            yield
        finally:
            del self._listeners[session]

    async def close(self) -> None:
        """Stop reading, and fail the commands that wait for a reply. The browser is not closed."""
        self._lose()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while True:
                data = await self._connection.output.readuntil(b"\0")
                self._take(orjson.loads(data[:-1]))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError):
            # After an unreadable message, replies can no longer be matched with their commands.
            self._lose()

    def _take(self, message: Event) -> None:
        reply = self._replies.get(message.get("id", 0))
        if reply is not None and not reply.done():
            if "error" in message:
                reply.set_exception(CommandFailed(str(message["error"].get("message", ""))[:500]))
            else:
                reply.set_result(message.get("result", {}))
        elif "method" in message:
            listener = self._listeners.get(message.get("sessionId", ""))
            if listener is not None:
                listener(message["method"], message.get("params", {}))

    def _lose(self) -> None:
        self._is_lost = True
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(BrowserLost("the browser has ended"))
