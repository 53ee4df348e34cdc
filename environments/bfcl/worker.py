"""Start the program that serves the tasks of `bfcl-eval`, and talk to its processes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from treadle.core.engines.cache import quiet
from treadle.core.engines.environments import engine_environ, python_of
from treadle.core.engines.process import Child, start_child
from treadle.core.errors import DeadlineExceeded, ToolError

ENGINE = "bfcl"
CALL_CPU_S = 30
"""Most processor seconds of one request: arguments such as a large exponent can keep a function busy forever."""
_PROGRAM = "treadle.environments.bfcl.program"
_START_S = 120.0
_MAX_LINE_BYTES = 64 << 20


class WorkerLost(ToolError):
    """The process of an episode ended before it answered; the episode can be repeated in another process."""

    retryable = True


@contextlib.asynccontextmanager
async def open_workers() -> AsyncIterator[Workers]:
    """Run the program that serves `bfcl-eval` for the duration of the block.

    Raises EngineError if `bfcl-eval` is not installed or the program does not start.
    """
    python = python_of(ENGINE)
    with tempfile.TemporaryDirectory(prefix="treadle-bfcl-") as name:
        folder = Path(name)
        address = folder / "socket"
        # The package makes folders for its results when it is imported.
        environ = engine_environ({"BFCL_PROJECT_ROOT": name, "PYTHONDONTWRITEBYTECODE": "1"})
        command = [str(python), "-m", _PROGRAM, str(address), str(CALL_CPU_S)]
        child = await asyncio.to_thread(
            start_child, command, name="bfcl-eval", log_path=folder / "log", env=environ, cwd=folder
        )
        try:
            await asyncio.to_thread(child.wait_until, lambda _: _accepts(address), _START_S, quiet)
            yield Workers(address, child)
        finally:
            await asyncio.to_thread(child.stop)


def _accepts(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(address)) == 0


@dataclass(frozen=True, slots=True)
class Workers:
    """Running program, which forks a process for each connection."""

    address: Path
    child: Child

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Worker]:
        """Connect to a new process for the duration of the block."""
        worker = await self.connect()
        try:
            yield worker
        finally:
            await worker.close()

    async def connect(self) -> Worker:
        """Return a new process; raise WorkerLost if the program has ended."""
        try:
            reader, writer = await asyncio.open_unix_connection(self.address, limit=_MAX_LINE_BYTES)
        except OSError as error:
            raise WorkerLost(f"the processes of bfcl-eval cannot be reached: {error}") from None
        return Worker(reader, writer)


@dataclass(frozen=True, slots=True)
class Worker:
    """Process of one episode or one verdict."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, op: str, **given: Any) -> Mapping[str, Any]:
        """Send a request and return its reply.

        Raises WorkerLost if the process has ended or reports an error, and DeadlineExceeded if the request took more
        than its processor time.
        """
        try:
            self.writer.write(orjson.dumps({"op": op, **given}) + b"\n")
            await self.writer.drain()
            line = await self.reader.readline()
        except (OSError, ValueError) as error:
            raise WorkerLost(f"a process of bfcl-eval does not answer: {error}") from None
        if not line.endswith(b"\n"):
            raise WorkerLost("a process of bfcl-eval ended")
        reply: dict[str, Any] = orjson.loads(line)
        if "ended" in reply:
            raise DeadlineExceeded("a call of bfcl-eval used up its processor time")
        if "error" in reply:
            raise WorkerLost(f"bfcl-eval: {reply['error']}")
        return reply

    async def close(self) -> None:
        """End the process."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()
