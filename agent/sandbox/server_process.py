"""Control one server in a sandbox from the host: its streams, its end, and the reason for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from treadle.agent.sandbox.bubblewrap import Command
from treadle.agent.sandbox.guardian import GuardedProcess, Guardian, ProcessStatus
from treadle.agent.sandbox.process import Capture
from treadle.agent.sandbox.servers import ServerLauncher
from treadle.agent.sandbox.usage import UsageWatch
from treadle.core.errors import SandboxError

_GRACE_S = 2.5
"""Time to exit after the input was closed; a little more than the guest gives."""
_KILLED_S = 10.0
_FORCED_S = 5.0
_ERROR_BYTES = 2048


class _ErrorTail(asyncio.Protocol):
    """Reader of standard error that keeps the last bytes and counts all bytes."""

    def __init__(self, count: Callable[[int], None]) -> None:
        self.tail = b""
        self._count = count

    def data_received(self, data: bytes) -> None:
        self.tail = (self.tail + data[-_ERROR_BYTES:])[-_ERROR_BYTES:]
        self._count(len(data))


def _identity(protocol: asyncio.BaseProtocol) -> asyncio.BaseProtocol:
    return protocol


class _Input(asyncio.Protocol):
    """Asyncio protocol of the server's standard input: records whether it has room, and whether it is closed."""

    def __init__(self) -> None:
        self.has_ended = False
        self.writable = asyncio.Event()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended = True
        self.writable.set()


class ServerProcess:
    """Started server. `kill` and `close` can be called in any state.

    Attributes:
        output: Its standard output.
    """

    def __init__(self, guardian: Guardian, guarded: GuardedProcess, command: Command, line_bytes: int) -> None:
        self.output = asyncio.StreamReader(limit=line_bytes)
        self._guardian = guardian
        self._guarded = guarded
        self._command = command
        self._status = Capture()
        self._lifeline: Capture | None = None
        self._info: Capture | None = None
        self._errors: _ErrorTail | None = None
        self._input: asyncio.WriteTransport | None = None
        self._input_state = _Input()
        self._transports: list[asyncio.BaseTransport] = []
        self._pidfd: int | None = None

    @classmethod
    async def start(
        cls, guardian: Guardian, launcher: ServerLauncher, line_bytes: int, count: Callable[[int], None]
    ) -> ServerProcess:
        """Start a server; raise SandboxError. `count` gets the number of bytes that it writes to standard error."""
        try:
            with launcher.command() as command:
                guarded = guardian.start(
                    command.arguments,
                    env=command.environment,
                    cwd=Path("/"),
                    descriptors=command.descriptors,
                    cgroup=command.cgroup,
                )
        except OSError as error:
            raise SandboxError(f"cannot start: {error}") from error
        server = cls(guardian, guarded, command, line_bytes)
        try:
            await server._connect(count)
        except BaseException:
            await asyncio.shield(server.close(grace=False))
            raise
        return server

    async def _connect(self, count: Callable[[int], None]) -> None:
        loop = asyncio.get_running_loop()
        self._errors = _ErrorTail(count)
        pipes: list[tuple[asyncio.BaseProtocol, object]] = [
            (self._status, self._guarded.status_pipe),
            (asyncio.StreamReaderProtocol(self.output), self._guarded.stdout),
            (self._errors, self._guarded.stderr),
        ]
        if self._command.lifeline is not None and self._command.info is not None:
            self._lifeline, self._info = Capture(), Capture()
            pipes.append((self._lifeline, os.fdopen(self._command.lifeline, "rb", 0)))
            pipes.append((self._info, os.fdopen(self._command.info, "rb", 0)))
        for protocol, pipe in pipes:
            transport, _ = await loop.connect_read_pipe(partial(_identity, protocol), pipe)
            self._transports.append(transport)
        self._input, _ = await loop.connect_write_pipe(lambda: self._input_state, self._guarded.stdin)

    @property
    def has_ended(self) -> bool:
        """Whether no process of the sandbox is left."""
        return self._status.ended.done() and (self._lifeline is None or self._lifeline.ended.done())

    async def write(self, data: bytes) -> None:
        """Write to standard input, when it has room. Raises BrokenPipeError if the input is closed."""
        await self._input_state.writable.wait()
        if self._input is None or self._input.is_closing():
            raise BrokenPipeError("the server's input is closed")
        self._input.write(data)

    async def watch(self, usage: UsageWatch, memory_bytes: int) -> str:
        """Wait until the server's processes exceed the limit of a resource; return the resource.

        Never returns without namespaces.
        """
        if self._info is None or (first := await self._first_pid(self._info)) is None:
            return await asyncio.Future()
        with usage.watching(first, memory_bytes) as excess:
            return await excess

    async def _first_pid(self, info: Capture) -> int | None:
        """Return the host's id of the sandbox's first process, and keep a pidfd of it; None if it was never started."""
        while True:
            try:
                pid = int(json.loads(info.text())["child-pid"])
                break
            except ValueError:
                if info.ended.done():
                    return None
            info.first_byte.clear()
            more = asyncio.ensure_future(info.first_byte.wait())
            await asyncio.wait({more, info.ended}, return_when=asyncio.FIRST_COMPLETED)
            more.cancel()
        if self._pidfd is None:
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(pid)
        return pid

    async def ending(self) -> str:
        """Wait for the end and return a description of it, such as `ended with exit code 1`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._status.ended), _GRACE_S)
        status = ProcessStatus.read(self._status.text())
        if status.error is not None:
            return f"cannot start: {status.error}"
        if status.oom:
            return "was killed: it held too much memory"
        if not self._status.ended.done():
            return "closed its output"
        if status.code is None:
            return "was lost: the process that starts sandboxes was killed or replaced"
        code = status.code if status.code >= 0 else 128 - status.code
        return f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"

    def errors(self) -> str:
        """Return the last part of what the server wrote to standard error."""
        return "" if self._errors is None else self._errors.tail.decode("utf-8", "replace")

    def kill(self) -> None:
        """Kill all processes without waiting."""
        if self._pidfd is not None:
            # The kernel ends the others with the sandbox's first process.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        else:
            self._guardian.kill(self._guarded)

    async def close(self, *, grace: bool = True) -> None:
        """Close the input and wait for the server's end; kill it after a short grace.

        Afterwards no process of the sandbox is left. Raises SandboxError if one cannot be ended.
        """
        if self._input is None:
            self._guarded.stdin.close()
        elif grace:
            self._input.close()
        else:
            self._abort_input()
        try:
            if not grace or not await self._has_ended_within(_GRACE_S):
                self.kill()
            if not await self._has_ended_within(_KILLED_S):
                self._guardian.kill(self._guarded)
                await self._has_ended_within(_FORCED_S)
                if not self.has_ended and self._guardian.is_stalled():
                    self._guardian.abandon()
                    await self._has_ended_within(_FORCED_S)
        finally:
            for transport in self._transports:
                transport.close()
            self._abort_input()
            if self._pidfd is not None:
                os.close(self._pidfd)
                self._pidfd = None
        if not self.has_ended:
            pid = ProcessStatus.read(self._status.text()).pid
            raise SandboxError(f"process {pid} was killed and is still there; see `ps -o stat {pid}`")

    def _abort_input(self) -> None:
        # A pipe that has ended cannot be aborted.
        if self._input is not None and not self._input_state.has_ended:
            self._input.abort()

    async def _has_ended_within(self, seconds: float) -> bool:
        ends = [self._status.ended, *([self._lifeline.ended] if self._lifeline is not None else [])]
        await asyncio.wait(ends, timeout=seconds)
        return self.has_ended
