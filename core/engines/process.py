"""Start, watch and stop child processes that end with their run, through the supervisor."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import orjson

from treadle.core.engines.cache import Notify
from treadle.core.errors import EngineError
from treadle.core.steady_loop import SteadyClock

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)?")
_TAIL_BYTES = 16_384
_PROGRESS_S = 10.0
_POLL_S = 0.25
PROBE_S = 60.0
"""Longest time that a server gets to answer one request of a check."""


class Child:
    """Engine process under its supervisor, created by `start_child`. `stop` may be called at any time, also twice."""

    def __init__(self, name: str, pid: int, log_path: Path, supervisor: subprocess.Popen[bytes], grace_s: float):
        self.name = name
        """Name of the child in messages."""
        self.pid = pid
        """Process id of the engine itself; also the id of its process group."""
        self.log_path = log_path
        """File with everything that the engine printed."""
        self.supervisor_pid = supervisor.pid
        """Process id of its supervisor, which stops it on SIGTERM."""
        self._supervisor = supervisor
        self._grace_s = grace_s

    def poll(self) -> int | None:
        """Return the child's exit code, or None while it runs; 128 + n if signal n ended it."""
        return self._supervisor.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until the child ends; return its exit code, or None if `timeout_s` passes first."""
        try:
            return self._supervisor.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def wait_until(
        self,
        is_ready: Callable[[float], bool],
        limit_s: float,
        notify: Notify,
        limit: str = "",
        failure: Callable[[str], EngineError] | None = None,
    ) -> None:
        """Wait until `is_ready`, which gets the seconds left, returns True; raise EngineError if the child does not.

        `limit` names the setting of the limit in the message; `failure` makes the error from what happened.
        """
        failure = failure or self.failure
        # Time during which this process was stopped does not count: the child may have been stopped with it.
        clock = SteadyClock(max_step_s=2 * PROBE_S)
        started = said = clock.time()
        while True:
            ready = is_ready(limit_s - (clock.time() - started))
            # After the request: another program may answer at the address of one that has ended.
            if (code := self.wait(0 if ready else _POLL_S)) is not None:
                raise failure(f"ended with code {code} before it was ready")
            if ready:
                return
            now = clock.time()
            if now - started > limit_s:
                raise failure(f"was not ready within {limit_s:g} s{limit}")
            if now - said > _PROGRESS_S:
                said = now
                notify(f"  {self.name} is still starting after {now - started:.0f} s")

    def keep(self) -> None:
        """Let the child outlive this process; call it only once a record exists by which the child can be stopped."""
        pipe = self._supervisor.stdin
        if pipe is not None:
            self._supervisor.stdin = None
            with contextlib.suppress(BrokenPipeError), pipe:  # It may have ended.
                pipe.write(b"k")

    def stop(self) -> int:
        """Stop the child and its descendants: SIGTERM, then SIGKILL after the grace period; return the exit code."""
        if self._supervisor.stdin is None:
            self._supervisor.terminate()
        elif not self._supervisor.stdin.closed:
            self._supervisor.stdin.close()
        code = self.wait(self._grace_s + 10.0)
        if code is None:
            # The engine ends with its supervisor (parent-death signal); only a stuck kernel call leads here.
            self._supervisor.kill()
            code = self._supervisor.wait()
        return code

    def failure(self, what: str) -> EngineError:
        """Return the error for this child: what happened, the path of its log, and the log's last lines."""
        return EngineError(f"{self.name} {what}; log: {self.log_path}\n{log_tail(self.log_path)}")


def start_child(
    argv: Sequence[str],
    *,
    name: str,
    log_path: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    grace_s: float = 5.0,
) -> Child:
    """Start a command that cannot outlive this process, even if this one is killed by SIGKILL; see also `Child.keep`.

    `env` is the whole environment of the command (default: ours). Without `cwd` it runs in an empty folder, where no
    stray file can be imported instead of a module. Standard output and error are appended to `log_path`. Raise
    EngineError if the command cannot be started.
    """
    folder = cwd or empty_folder()
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            supervisor = _spawn(argv, env, folder, log, grace_s)
    except OSError as error:
        raise EngineError(f"cannot start {name}: {error}") from error
    if supervisor.stdout is None:
        raise AssertionError("the supervisor's output is a pipe")
    line = supervisor.stdout.readline()
    supervisor.stdout.close()
    answer = orjson.loads(line) if line else {"error": f"its supervisor ended with code {supervisor.wait()}"}
    if "pid" not in answer:
        supervisor.wait()
        raise EngineError(f"cannot start {name} ({argv[0]}): {answer['error']}")
    return Child(name, int(answer["pid"]), log_path, supervisor, grace_s)


def _spawn(
    argv: Sequence[str], env: Mapping[str, str] | None, cwd: Path, log: IO[bytes], grace_s: float
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-S", "-E", "-I", str(_SUPERVISOR), str(grace_s), str(os.getpid()), *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        cwd=cwd,
        env=None if env is None else dict(env),
        start_new_session=True,
    )


def empty_folder() -> Path:
    """Return an empty folder of this user to run engines in; all of them share it."""
    folder = Path(tempfile.gettempdir()) / f"treadle-empty-{os.getuid()}"
    folder.mkdir(mode=0o500, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid() or any(folder.iterdir()):
        return Path(tempfile.mkdtemp(prefix="treadle-empty-"))
    return folder


def log_tail(path: Path, lines: int = 20) -> str:
    """Return the last lines of a log, without terminal sequences and with other control characters escaped."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return "(no log)"
    kept = [line.rpartition("\r")[2] if not line.endswith("\r") else line[:-1] for line in text.split("\n")]
    shown = [printable(line)[:400] for line in kept if line.strip()]
    return "\n".join(shown[-lines:]) or "(the log is empty)"


def printable(text: str) -> str:
    """Remove terminal sequences, and escape other characters that a terminal would interpret."""
    plain = _ESCAPES.sub("", text)
    return "".join(char if char.isprintable() or char == "\t" else ascii(char)[1:-1] for char in plain)
