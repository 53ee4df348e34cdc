"""Connect to an MCP server that runs as a process in the sandbox, over its standard streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from treadle.agent.sandbox.guardian import Guardian
from treadle.agent.sandbox.server_process import ServerProcess
from treadle.agent.sandbox.servers import ServerLauncher
from treadle.agent.sandbox.usage import UsageWatch
from treadle.agent.tools.mcp.connection import Lose
from treadle.agent.tools.mcp.results import label
from treadle.core.errors import SandboxError

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_UNASKED_BYTES = 64 * 1024 * 1024
MAX_UNASKED_MESSAGES = 10_000
"""Most bytes and messages between two answers, standard error included; a server that writes more is killed."""
_MAX_BANNER_BYTES = 64 * 1024
_LABEL_CHARS = 300


class StdioTransport:
    """One process of a server, started by `connect`."""

    def __init__(self, guardian: Guardian, launcher: ServerLauncher, usage: UsageWatch) -> None:
        self._guardian = guardian
        self._launcher = launcher
        self._usage = usage
        self._process: ServerProcess | None = None
        self._lose: Callable[[str], None] = lambda reason: None
        self._is_lost = False
        self._has_spoken = False
        self._num_bytes = 0
        self._num_messages = 0

    def explain(self, problem: str) -> str:
        """Return a problem with the last line that the server wrote to standard error."""
        lines = [] if self._process is None else self._process.errors().strip().splitlines()
        return f"{problem}; its last words: {label(lines[-1])[:_LABEL_CHARS]}" if lines else problem

    def answered(self) -> None:
        """Reset the counts of bytes and messages since the last answer."""
        self._num_bytes = self._num_messages = 0

    @asynccontextmanager
    async def connect(
        self, lose: Lose
    ) -> AsyncIterator[tuple[MemoryObjectReceiveStream[Any], MemoryObjectSendStream[SessionMessage]]]:
        """Start the server and yield the streams of its messages; no process of the server is left afterwards."""
        import anyio

        def lose_once(reason: str) -> None:
            self._is_lost = True
            lose(reason)

        self._lose = lose_once
        try:
            self._process = await ServerProcess.start(self._guardian, self._launcher, MAX_MESSAGE_BYTES, self._count)
        except SandboxError as error:
            lose_once(str(error))
            raise
        arrived, received = anyio.create_memory_object_stream[Any](0)
        sent, leaving = anyio.create_memory_object_stream[Any](0)
        pumps = [
            asyncio.create_task(self._read(self._process, arrived)),
            asyncio.create_task(self._write(self._process, leaving)),
            asyncio.create_task(self._watch(self._process)),
        ]
        try:
            yield received, sent
        finally:
            closing = asyncio.create_task(self._close(self._process, pumps))
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:
                await asyncio.wait({closing})
                raise
            finally:
                for stream in (arrived, received, sent, leaving):
                    stream.close()

    async def _close(self, process: ServerProcess, pumps: list[asyncio.Task[None]]) -> None:
        for pump in pumps[1:]:
            pump.cancel()
        # A server that writes while it exits must not wait for us.
        draining = asyncio.create_task(_drain(process, pumps[0]))
        try:
            await process.close(grace=not self._is_lost)
        except SandboxError as error:
            self._lose(str(error))
        finally:
            draining.cancel()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(draining, *pumps, return_exceptions=True)

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > MAX_UNASKED_BYTES and not self._is_lost:
            self._flood()

    def _flood(self) -> None:
        self._lose("writes without end and was killed")
        if self._process is not None:
            self._process.kill()

    async def _read(self, process: ServerProcess, arrived: MemoryObjectSendStream[Any]) -> None:
        """Pass on the messages of the server until its output ends."""
        import anyio
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while not self._is_lost:
                try:
                    line = await process.output.readline()
                except ValueError:
                    self._lose(f"sent a message of more than {MAX_MESSAGE_BYTES} bytes")
                    return
                if not line:
                    self._lose(await process.ending())
                    return
                self._count(len(line))
                if not line.strip():
                    continue
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    # Some servers greet on standard output before they serve.
                    if self._has_spoken or self._num_bytes > _MAX_BANNER_BYTES:
                        text = label(line[:_LABEL_CHARS].decode("utf-8", "replace"))
                        self._lose(f"wrote to standard output what is no message (it must log to stderr): {text}")
                        return
                    continue
                self._has_spoken = True
                self._num_messages += 1
                if self._num_messages > MAX_UNASKED_MESSAGES:
                    self._flood()
                    return
                await arrived.send(SessionMessage(message))

    async def _write(self, process: ServerProcess, leaving: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Write our messages to the server. Errors are ignored: a server that closes its input ends its output, too."""
        with contextlib.suppress(OSError):
            async for sent in leaving:
                text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.write(text.encode("utf-8", "replace") + b"\n")

    async def _watch(self, process: ServerProcess) -> None:
        what = await process.watch(self._usage, self._launcher.memory_bytes)
        self._lose(f"was killed: it holds too {'much memory (memory_mb)' if what == 'memory' else 'many files'}")
        process.kill()


async def _drain(process: ServerProcess, reading: asyncio.Task[None]) -> None:
    reading.cancel()
    await asyncio.wait({reading})
    while await process.output.read(1 << 16):
        pass
