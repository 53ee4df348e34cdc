"""Start sandboxes through a guardian process, which kills what is left of them when Treadle ends."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import logging
import os
import select
import socket
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from treadle.core.engines import supervisor

_logger = logging.getLogger(__name__)

_SEND_S = 5.0
"""Seconds after which a guardian that does not read its requests is replaced; this wait blocks the event loop once."""
_CLOSE_S = 10.0
_KILLED_S = 1.0
_WORKER = Path(__file__).with_name("guardian_worker.py")
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class GuardedProcess:
    """A started process. The caller closes the streams; `status_pipe` ends when the process has been reaped."""

    number: int
    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]
    status_pipe: IO[bytes]


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """Status of a process so far, as reported by the guardian."""

    pid: int | None = None
    error: str | None = None
    """Reason why it could not be started."""
    code: int | None = None
    """Exit code as in `subprocess`: -N after signal N."""
    cgroup: bool = False
    """Whether a cgroup limits the total memory of the sandbox's processes."""
    oom: bool = False
    """Whether its cgroup ran out of memory."""

    @classmethod
    def read(cls, text: str) -> ProcessStatus:
        """Parse everything that was read from `GuardedProcess.status_pipe`."""
        facts: dict[str, Any] = {}
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):
                facts |= json.loads(line)
        return cls(**facts)


class Guardian:
    """Parent process of all sandboxes of a pool. It starts with the first one, and again if it was killed or stopped.

    No call waits for it longer than a few seconds.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def __enter__(self) -> Guardian:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        descriptors: Sequence[int] = (),
        cgroup: dict[str, object] | None = None,
        own_nodes: bool = False,
    ) -> GuardedProcess:
        """Start a process in its own session, with `descriptors` as 3 and following; raise OSError.

        A failure to start is reported in its status. `cgroup` has `parent`, the folder in which its cgroup is made, and
        `limits`, file -> text. With `own_nodes` it sees device nodes of its own at `device_nodes.FOLDER`.
        """
        number = next(_numbers)
        request = {"start": number, "argv": list(argv), "env": dict(env), "cwd": str(cwd), "cgroup": cgroup}
        request["own_nodes"] = own_nodes
        stdin, stdout, stderr, status_pipe = _pipes(4)
        child_ends = (stdin[0], stdout[1], stderr[1], status_pipe[1])
        parent_ends = (stdin[1], stdout[0], stderr[0], status_pipe[0])
        try:
            self._send(request, [*child_ends, *descriptors])
        except OSError:
            for end in parent_ends:
                os.close(end)
            raise
        finally:
            for end in child_ends:
                os.close(end)
        streams = (os.fdopen(end, mode, 0) for end, mode in zip(parent_ends, ("wb", "rb", "rb", "rb"), strict=True))
        return GuardedProcess(number, *streams)

    def kill(self, guarded: GuardedProcess) -> None:
        """Send SIGKILL to a process and its group, unless it has ended."""
        # A guardian that has ended has killed the processes that it had started.
        with contextlib.suppress(OSError):
            self._send({"kill": guarded.number}, [], retry=False)

    def is_stalled(self) -> bool:
        """Return whether the guardian leaves requests unread, for example because it was stopped."""
        if self._requests is None:
            return False
        unread_bytes = fcntl.ioctl(self._requests, termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(unread_bytes, sys.byteorder) > 0

    def abandon(self) -> None:
        """Kill the guardian; its processes end with it or when their input closes. The next start makes a new one."""
        process, self._process = self._process, None
        self._close_requests()
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_S)

    def close(self) -> None:
        """End all remaining processes and wait for the guardian to exit; kill it after a time limit."""
        self._close_requests()
        if self._process is not None:
            try:
                self._process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                _logger.warning(
                    "the process that starts sandboxes (%d) did not end within %g s and was killed; "
                    "processes that it started may still run; find them with `ps -u %d -o pid,stat,args`",
                    self._process.pid,
                    _CLOSE_S,
                    os.geteuid(),
                )
        self.abandon()

    def _close_requests(self) -> None:
        if self._requests is not None:
            self._requests.close()
        self._requests = None

    def _send(self, request: dict[str, object], descriptors: list[int], *, retry: bool = True) -> None:
        message = json.dumps(request).encode()
        if self._requests is None:
            self._start_worker()
        try:
            assert self._requests is not None
            socket.send_fds(self._requests, [message], descriptors)
        except (ConnectionError, TimeoutError):
            self.abandon()
            if not retry:
                raise
            self._send(request, descriptors, retry=False)

    def _start_worker(self) -> None:
        self._requests, child_ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.settimeout(_SEND_S)
        folder = str(Path(supervisor.__file__).parent)
        with child_ends:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-I", str(_WORKER), folder, str(os.getpid())],
                stdin=child_ends.fileno(),
                stdout=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )


def finish(guarded: GuardedProcess, data: bytes, timeout_s: float) -> tuple[ProcessStatus, bytes, bytes]:
    """Write a short input, wait for the end, and return status, standard output and standard error; raise OSError.

    Raises TimeoutError after `timeout_s`; the process then runs until its guardian ends.
    """
    with guarded.stdin, guarded.stdout, guarded.stderr, guarded.status_pipe:
        guarded.stdin.write(data)
        text = b""
        while select.select([guarded.status_pipe], [], [], timeout_s)[0]:
            chunk = guarded.status_pipe.read(4096)
            text += chunk
            if not chunk:
                return ProcessStatus.read(text.decode()), guarded.stdout.read(65536), guarded.stderr.read(65536)
        raise TimeoutError(f"not ready within {timeout_s:g} s")


def _pipes(count: int) -> list[tuple[int, int]]:
    """Open a number of pipes; raise OSError, without leaving any open, if descriptors run out."""
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            pipes.append(os.pipe())
    except OSError:
        for end in itertools.chain(*pipes):
            os.close(end)
        raise
    return pipes
