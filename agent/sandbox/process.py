"""Control one sandbox from the host: start it, run one program, read its output, kill it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import shutil
import signal
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from treadle.agent.sandbox.bubblewrap import Command, Launcher
from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.sandbox.guardian import GuardedProcess, Guardian, ProcessStatus
from treadle.agent.sandbox.usage import Excess, Watch, descendants
from treadle.core.errors import SandboxError
from treadle.core.steady_loop import wait_for_first

_logger = logging.getLogger(__name__)

_MAX_KEPT_BYTES = 512 * 1024
_DRAIN_S = 0.5
_END_TIMEOUT_S = 10.0
_FORCED_END_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Program:
    """A program for a sandbox.

    Attributes:
        text: Python.
        stdin: Text on its standard input.
        prints_value: Whether the value of an expression at its end is printed, as in an interactive interpreter.
    """

    text: str
    stdin: str = ""
    prints_value: bool = True

    def message(self, cpu_s: int) -> bytes:
        """Return the message by which `guest` receives the program."""
        text, stdin = self.text.encode("utf-8", "replace"), self.stdin.encode("utf-8", "replace")
        return f"{cpu_s} {self.prints_value:d} {len(text)} {len(stdin)}\n".encode() + text + stdin


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Output of a program and how it ended."""

    exit_code: int | None
    """128 + N after signal N; None if the host killed the program."""
    timed_out: bool
    output_exceeded: bool
    excess: Excess | None
    """Resource of which all processes together used too much, if the host killed them for that."""
    stdout: str
    stderr: str
    seconds: float


class Capture(asyncio.Protocol):
    """Pipe reader with bounded memory: keeps the beginning, the end, and the number of bytes in between."""

    def __init__(self, limit_bytes: int = 1 << 62) -> None:
        self.total_bytes = 0
        self.ended = asyncio.get_running_loop().create_future()
        self.output_exceeded = asyncio.Event()
        self.first_byte = asyncio.Event()
        self._limit_bytes = limit_bytes
        self._head = bytearray()
        self._tail = bytearray()

    def data_received(self, data: bytes) -> None:
        """Keep the beginning and the end of the data, and count all of it."""
        self.total_bytes += len(data)
        room = _MAX_KEPT_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * _MAX_KEPT_BYTES:
            del self._tail[:-_MAX_KEPT_BYTES]
        self.first_byte.set()
        if self.total_bytes > self._limit_bytes:
            self.output_exceeded.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the pipe is closed."""
        if not self.ended.done():
            self.ended.set_result(None)

    def take(self) -> bytes:
        """Return all data read so far and clear it."""
        data = bytes(self._head)
        self._head.clear()
        self.total_bytes -= len(data)
        self.first_byte.clear()
        return data

    def text(self) -> str:
        """Return the kept output, decoded, with a note in place of dropped bytes."""
        tail = self._tail[-_MAX_KEPT_BYTES:]
        dropped = self.total_bytes - len(self._head) - len(tail)
        if dropped == 0:
            return (self._head + tail).decode("utf-8", "replace")
        note = f"\n... [{dropped} bytes left out] ...\n"
        return self._head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")


def _start(guardian: Guardian, command: Command, scratch: Path | None) -> GuardedProcess:
    try:
        return guardian.start(
            command.arguments,
            env=command.environment,
            cwd=scratch or Path("/"),
            descriptors=command.descriptors,
            cgroup=command.cgroup,
            own_nodes=command.own_nodes,
        )
    except OSError:
        for end in (command.lifeline, command.info):
            if end is not None:
                os.close(end)
        raise


def _guardian_killed_error() -> SandboxError:
    """Return the error for a sandbox whose guardian ended before it reported an exit code; a retry can succeed."""
    error = SandboxError(
        "a sandbox was lost: the process that starts sandboxes was killed from outside, or it was stopped and replaced"
    )
    error.retryable = True
    return error


def _stuck_process_error(pid: int | None) -> SandboxError:
    """Return the error for a process that still exists after SIGKILL."""
    error = SandboxError(
        f"a sandbox cannot be ended: process {pid} was killed and is still there; "
        f"if `ps -o stat {pid}` says D, it waits for a disk or a network file system of this machine"
    )
    error.retryable = True
    return error


def _identity(capture: Capture) -> Capture:
    return capture


def _first_process(info: int) -> tuple[int, int] | None:
    """Return id and pidfd of the sandbox's first process; None if bubblewrap has not written the id to `info` yet.

    Raises OSError if the kernel has no pidfds.
    """
    os.set_blocking(info, False)
    try:
        written = os.read(info, 4096)
    except BlockingIOError:
        return None
    if not written:
        return None
    pid = int(json.loads(written)["child-pid"])
    return pid, os.pidfd_open(pid)


class SandboxProcess:
    """Started sandbox, which runs at most one program. `kill` and `wait_ended` can be called in any state."""

    def __init__(
        self, guardian: Guardian, guarded: GuardedProcess, settings: SandboxSettings, scratch: Path | None
    ) -> None:
        limit_bytes = settings.max_output_mb * 1024 * 1024
        self._guardian = guardian
        self._guarded = guarded
        self._status_output = Capture()
        self._stdout = Capture(limit_bytes)
        self._stderr = Capture(limit_bytes)
        self._lifeline: Capture | None = None
        self._transports: list[asyncio.ReadTransport] = []
        self._scratch = scratch
        self._input: asyncio.WriteTransport | None = None
        self._info: int | None = None
        self._first_process: tuple[int, int] | None = None
        """Its process id and a pidfd."""
        self._memory_bytes = settings.memory_mb * 1024 * 1024

    @classmethod
    async def start(cls, guardian: Guardian, launcher: Launcher, timeout_s: float, *, eager: bool) -> SandboxProcess:
        """Start a sandbox and wait until it is ready for a program; raise SandboxError.

        For `eager` see `Launcher.command`.
        """
        settings = launcher.settings
        scratch: Path | None = None
        sandbox: SandboxProcess | None = None
        try:
            if launcher.bwrap is None:
                scratch = Path(tempfile.mkdtemp(prefix="treadle-"))
                if settings.kind == "landlock":
                    scratch.chmod(0o755)  # It stays empty. Another user, as who root starts sandboxes, must read it.
            with launcher.command(scratch, eager=eager) as command:
                guarded = _start(guardian, command, scratch)
            sandbox = cls(guardian, guarded, settings, scratch)
            sandbox._info = command.info
            await sandbox._connect(command.lifeline)
            await sandbox._ready(timeout_s)
        except BaseException as error:
            if sandbox is not None:
                await sandbox.discard()
            elif scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)
            if isinstance(error, OSError):
                raise SandboxError(f"cannot start a sandbox: {error}") from error
            raise
        return sandbox

    async def _connect(self, lifeline: int | None) -> None:
        loop = asyncio.get_running_loop()
        streams = self._guarded
        pipes: list[tuple[Capture, object]] = [
            (self._status_output, streams.status_pipe),
            (self._stdout, streams.stdout),
            (self._stderr, streams.stderr),
        ]
        if lifeline is not None:
            self._lifeline = Capture()
            pipes.append((self._lifeline, os.fdopen(lifeline, "rb", 0)))
        for capture, pipe in pipes:
            transport, _ = await loop.connect_read_pipe(partial(_identity, capture), pipe)
            self._transports.append(transport)

    async def _ready(self, timeout_s: float) -> None:
        """Wait for the byte by which the guest reports that it is ready."""
        first = asyncio.ensure_future(self._stdout.first_byte.wait())
        try:
            await asyncio.wait({first, self._stdout.ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            first.cancel()
        if self._stdout.take() != b"R":
            self.kill()
            await self.wait_ended()
            if (problem := self._status.error) is not None:
                raise SandboxError(f"cannot start a sandbox: {problem}")
            reason = self._stderr.text().strip()[-1000:] or f"it was not ready within {timeout_s:g} s"
            raise SandboxError(f"a sandbox did not start: {reason}")
        with contextlib.suppress(OSError):
            self._find_first_process()

    @property
    def _status(self) -> ProcessStatus:
        return ProcessStatus.read(self._status_output.text())

    @property
    def has_cgroup(self) -> bool:
        """Whether a cgroup limits the total memory of the sandbox's processes."""
        return self._status.cgroup

    @property
    def is_alive(self) -> bool:
        """Whether the sandbox still runs and can run a program."""
        return not self._status_output.ended.done() and not self._stdout.ended.done()

    async def run(self, program: Program, usage: Watch, *, time_limit_s: float, cpu_s: int) -> ProgramResult:
        """Run one program until it ends or exceeds a limit; all its processes have ended when this returns."""
        if self._lifeline is None:
            # Without namespaces no usage is sampled: Landlock allows one process only, and kind `none` has no limits.
            return await self._run(program, asyncio.get_running_loop().create_future(), time_limit_s, cpu_s)
        with usage.watching(self._first_pid(), self._memory_bytes) as excess:
            return await self._run(program, excess, time_limit_s, cpu_s)

    def _first_pid(self) -> int:
        """Return the id of the first process; on kernels without pidfds, take the only child of bubblewrap."""
        if self._first_process is not None:
            return self._first_process[0]
        bwrap = self._status.pid or 0
        return next(itertools.islice(descendants(bwrap), 1, None), bwrap)

    async def _run(
        self, program: Program, excess: asyncio.Future[Excess], time_limit_s: float, cpu_s: int
    ) -> ProgramResult:
        output_exceeded = [
            asyncio.ensure_future(capture.output_exceeded.wait()) for capture in (self._stdout, self._stderr)
        ]
        ended = asyncio.ensure_future(self._ended())
        lost = asyncio.ensure_future(self._lost())
        first: set[asyncio.Future[Any]] = {ended, excess, lost, *output_exceeded}
        try:
            await self._send(program.message(cpu_s))
            seconds = await wait_for_first(first, time_limit_s)
            finished, exceeded_output = ended.done(), any(future.done() for future in output_exceeded)
            exceeded: Excess | None = excess.result() if excess.done() and not finished else None
        finally:
            for future in first:
                future.cancel()
            self.kill()
        await self.wait_ended()
        code = self._status.code
        if code is None:
            raise _guardian_killed_error()
        if finished and self._status.oom:
            finished, exceeded = False, "memory"
        return ProgramResult(
            exit_code=code if finished else None,
            timed_out=not finished and not exceeded_output and exceeded is None,
            output_exceeded=exceeded_output,
            excess=exceeded,
            stdout=self._stdout.text(),
            stderr=self._stderr.text(),
            seconds=seconds,
        )

    async def _send(self, data: bytes) -> None:
        stdin = self._guarded.stdin
        transport, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, stdin)
        self._input = transport
        # Keep it open: if standard input closes, the guest assumes that the host has ended, and ends the program.
        transport.write(data)

    async def _lost(self) -> None:
        """Wait until the status pipe closes without an exit code; never return if there is an exit code."""
        await asyncio.shield(self._status_output.ended)
        if self._status.code is not None:
            await asyncio.Future()

    async def _ended(self) -> None:
        """Wait until the program has ended, and with a lifeline (a pipe) also all processes that it started."""
        if self._lifeline is not None:
            await asyncio.shield(self._lifeline.ended)
        await asyncio.shield(self._status_output.ended)

    def kill(self) -> None:
        """Kill all processes of the sandbox without waiting; see `wait_ended`. May be called repeatedly."""
        self._close_input()
        if self._lifeline is None:
            # Kills the session. Programs under Landlock cannot leave it; those of kind `none` can.
            self._guardian.kill(self._guarded)
        elif self._status.code is None:
            self._kill_first_process()

    def _kill_first_process(self) -> None:
        """Kill the sandbox's first process; the kernel then kills the others, and bubblewrap exits.

        If bubblewrap is still setting up the sandbox, kill nothing: the guest will exit because its input is closed.
        """
        try:
            self._find_first_process()
        except OSError:
            self._guardian.kill(self._guarded)
        if self._first_process is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first_process[1], signal.SIGKILL)

    def _find_first_process(self) -> None:
        """Open a pidfd of the first process while it runs, because its id may be reused later."""
        if self._first_process is None and self._info is not None:
            self._first_process = _first_process(self._info)

    def _close_input(self) -> None:
        if self._input is not None:
            if not self._input.is_closing():
                self._input.abort()
        else:
            self._guarded.stdin.close()

    async def wait_ended(self) -> None:
        """Wait until the killed sandbox has ended and its output is read, then free its resources.

        Raises SandboxError if it has not ended after about 20 s.
        """
        try:
            await asyncio.wait_for(self._ended(), _END_TIMEOUT_S)
        except TimeoutError:
            await self._end_by_force()
        stuck = not self._status_output.ended.done()
        await asyncio.wait({self._stdout.ended, self._stderr.ended}, timeout=_DRAIN_S)
        for transport in self._transports:
            transport.close()
        for descriptor in (self._info, self._first_process[1] if self._first_process is not None else None):
            if descriptor is not None:
                os.close(descriptor)
        self._info = self._first_process = None
        if self._scratch is not None:
            await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)
        if stuck:
            raise _stuck_process_error(self._status.pid)

    async def _end_by_force(self) -> None:
        """Ask the guardian to kill the sandbox; kill the guardian too if it does not answer."""
        self._guardian.kill(self._guarded)
        await asyncio.wait({self._status_output.ended}, timeout=_FORCED_END_TIMEOUT_S)
        if not self._status_output.ended.done() and self._guardian.is_stalled():
            self._guardian.abandon()
            await asyncio.wait({self._status_output.ended}, timeout=_FORCED_END_TIMEOUT_S)

    async def discard(self) -> None:
        """Kill the sandbox and wait until it has ended; log a warning if it does not end."""
        self.kill()
        try:
            await self.wait_ended()
        except SandboxError as error:
            _logger.warning("%s", error)
