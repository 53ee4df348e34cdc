"""Run a module of Treadle that handles hostile input as a child process, and exchange frames with it.

The child gets no API keys and its own session. It ends when its pipes close: if the parent is killed,
it ends after the request that it is working on. The module itself limits its memory and confines itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO, Any

import orjson

from treadle.core.steady_loop import TICK_S, SteadyClock
from treadle.core.untrusted.worker_frames import DIED, HEAD, MAX_REPLY_BYTES, REQUEST

START_TIMEOUT_S = 120.0
"""Maximum seconds until a worker is ready. Loading its libraries takes about one, but many on a busy machine."""
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that end a child through no fault of its own: from the OOM killer, a scheduler or a terminal."""
_READ_BYTES = 1 << 20
_EXIT_S = 10.0
"""Seconds that a process gets to exit after it closed its output; on a busy machine the end itself takes a while."""


class WorkerNotStarted(Exception):
    """The process could not be started or did not become ready."""


class PackageMissing(WorkerNotStarted):
    """The process needs a package, which the message names."""


class WorkerEnded(Exception):
    """The process ended before it sent a whole frame."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code

    @property
    def is_kill(self) -> bool:
        """True if the cause is outside of the process and of its input."""
        return -self.code in _FROM_OUTSIDE


class ForkEnded(WorkerEnded):
    """The child that the worker forked for the request ended without a reply; the worker itself continues."""


class WorkerProcess:
    """Process that answers one request after the other, or sends frames. It must be closed.

    Calls from several threads run one after the other, except `kill`, which ends the call in progress.
    """

    def __init__(
        self, module: str, *arguments: str, stdin: int | IO[bytes] = subprocess.PIPE, variables: Mapping[str, str] = {}
    ) -> None:
        """Start the process; raise WorkerNotStarted.

        `variables` are added to an environment without API keys.
        """
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**_environment(), **variables},
                start_new_session=True,  # Only the parent reacts to Ctrl-C or a closed terminal.
            )
        except OSError as error:
            raise WorkerNotStarted(str(error)) from error
        assert self.process.stdout is not None
        self._output = self.process.stdout.fileno()
        self._clock = SteadyClock()  # Stops of this process do not count: the worker may have been stopped with it.
        self._lock = threading.Lock()
        self.num_requests = 0
        self._is_idle = True
        self._is_killed = False

    @property
    def is_usable(self) -> bool:
        """True if the process can take a request. If it cannot, it must be closed."""
        return self._is_idle and not self._is_killed and self.process.poll() is None

    def wait_ready(self) -> dict[str, Any]:
        """Wait for the first reply and return it; raise WorkerNotStarted unless it reports a ready worker."""
        try:
            reply = self.ask(limit_s=START_TIMEOUT_S)
        except TimeoutError:
            raise WorkerNotStarted("it stays silent") from None
        except WorkerEnded as ended:
            raise WorkerNotStarted(str(ended)) from None
        if "failed" in reply:
            raise PackageMissing(str(reply["failed"]))
        if not reply.get("ready"):
            raise WorkerNotStarted("its first reply is malformed")
        return reply

    def ask(self, *parts: bytes, limit_s: float) -> dict[str, Any]:
        """Send the parts of a request and return the reply, or an empty dictionary if that is malformed.

        Raises WorkerEnded, and TimeoutError after killing the process.
        """
        with self._lock:
            self._require_alive()
            self._is_idle = False
            self.num_requests += bool(parts)
            end = self._clock.time() + limit_s
            try:
                self._send(b"".join(HEAD.pack(REQUEST, len(part)) + part for part in parts), end)
                kind, content = self._receive(end, MAX_REPLY_BYTES)
                self._is_idle = True
                if kind == DIED:
                    raise ForkEnded(int(content))
                reply = orjson.loads(content)
            except ValueError:
                reply = None
        return reply if isinstance(reply, dict) else {}

    def receive(self, limit_s: float, max_bytes: int) -> tuple[bytes, bytearray]:
        """Return kind and content of the next frame; raise as `ask` does, and ValueError if it is too long."""
        with self._lock:
            self._require_alive()
            return self._receive(self._clock.time() + limit_s, max_bytes)

    def enlarge_pipe(self) -> None:
        """Enlarge the pipe of its output, so that it can write more before it has to wait for this process to read."""
        # The system refuses a larger pipe to a user who has many pipes.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._output, fcntl.F_SETPIPE_SZ, _READ_BYTES)

    def kill(self) -> None:
        """Send SIGKILL; a process that has already ended keeps its exit code."""
        self._is_killed = True
        self.process.kill()

    def close(self) -> None:
        """Kill the process, wait for it, and close its pipes."""
        self.kill()
        with self._lock:
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()

    def _require_alive(self) -> None:
        # The pipes of a killed process may be closed, and their numbers may be those of other files.
        if self._is_killed:
            raise WorkerEnded(self.process.wait())

    def _send(self, data: bytes, end: float) -> None:
        assert self.process.stdin is not None
        descriptor, left = self.process.stdin.fileno(), memoryview(data)
        os.set_blocking(descriptor, False)
        # If the process has ended, reading its output raises WorkerEnded.
        with contextlib.suppress(BrokenPipeError):
            while left:
                self._wait(descriptor, select.POLLOUT, end)
                left = left[os.write(descriptor, left) :]

    def _receive(self, end: float, max_bytes: int) -> tuple[bytes, bytearray]:
        kind, num_bytes = HEAD.unpack(self._exactly(HEAD.size, end))
        if num_bytes > max_bytes:
            raise ValueError("too long a frame")
        return kind, self._exactly(num_bytes, end)

    def _exactly(self, num_bytes: int, end: float) -> bytearray:
        content, place = bytearray(num_bytes), 0
        view = memoryview(content)
        while place < num_bytes:
            self._wait(self._output, select.POLLIN, end)
            if not (count := os.readv(self._output, [view[place : place + _READ_BYTES]])):
                raise WorkerEnded(self._exit_code())
            place += count
        return content

    def _wait(self, descriptor: int, event: int, end: float) -> None:
        waiting = select.poll()
        waiting.register(descriptor, event)
        is_ready = False
        while not is_ready:
            is_ready = bool(waiting.poll(TICK_S * 1000))
            # A child that sends a byte now and then is late too.
            if self._clock.time() >= end:
                self.kill()
                raise TimeoutError

    def _exit_code(self) -> int:
        try:
            return self.process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.wait()


def _environment() -> dict[str, str]:
    environment = {"PATH": os.environ["PATH"]} if "PATH" in os.environ else {}
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        if given := os.environ.get(name):
            # The process starts in another folder.
            environment[name] = os.pathsep.join(map(os.path.abspath, given.split(os.pathsep)))
    return environment
