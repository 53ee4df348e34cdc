"""Run a peer's script in a process group of its own and measure it, or kill it after a given number of responses."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import repeats

_HERE = Path(__file__).parent
_POLL_S = 0.003
_LIMIT_S = 300.0


class PeerFailed(Exception):
    """Error of a peer that fails or does not end; the message is its last line of output."""


@dataclass(frozen=True, slots=True)
class PeerOutcome:
    """Resources used by one process, and its output.

    `cpu_s` is user and system time with its children, `peak_mib` the peak memory of its largest process. `items` are
    the items of its output; None if it was killed.
    """

    cpu_s: float
    wall_s: float
    peak_mib: float
    items: list[int] | None


@dataclass(frozen=True, slots=True)
class PeerJob:
    """One peer with one piece of work, in a folder of its own."""

    python: str
    script: Path
    kind: str
    num_items: int
    in_flight: int
    folder: Path

    def command(self, url: str, *, resume: bool) -> list[str]:
        """Return its command line."""
        numbers = [str(self.num_items), str(self.in_flight)]
        return [
            self.python,
            str(self.script),
            self.kind,
            url,
            *numbers,
            str(self.folder),
            "resume" if resume else "new",
        ]


@dataclass(frozen=True, slots=True)
class PeerServer:
    """The server that all peers use."""

    url: str
    log: Path

    def num_answers(self) -> int:
        """Return the number of responses sent so far."""
        return self.log.stat().st_size // repeats.LINE_BYTES if self.log.exists() else 0

    def answers(self, start: int, stop: int | None = None) -> list[repeats.Call]:
        """Return a slice of the responses sent."""
        return repeats.calls_of(self.log.read_bytes())[start:stop]


@contextlib.contextmanager
def serving(folder: Path, delay_s: float) -> Iterator[PeerServer]:
    """Run the server in a process of its own for the duration of a block."""
    command = [sys.executable, str(_HERE / "server.py"), str(folder / "answers.log"), "--delay", str(delay_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdin is not None
        yield PeerServer(f"http://127.0.0.1:{int(child.stdout.readline())}/v1", folder / "answers.log")
        child.stdin.close()


def run(job: PeerJob, server: PeerServer, *, resume: bool = False, kill_at: int | None = None) -> PeerOutcome:
    """Run a job to its end, or kill its process group once the server has sent `kill_at` responses in total.

    Raise PeerFailed if it fails, or does not end in time.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    output = job.folder / "output.txt"
    started = time.perf_counter()
    with output.open("w+b") as sink:
        child = subprocess.Popen(
            job.command(server.url, resume=resume),
            env=_environment(job.folder),
            cwd=job.folder,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
        try:
            killed, status, usage = _wait(child.pid, server, kill_at)
        finally:  # helpers that outlived their parent, or all processes after Ctrl-C
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        wall_s = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
    if not killed and child.returncode:
        hung = child.returncode == -signal.SIGKILL
        what = "resumed, it " if resume else "it "
        raise PeerFailed(what + (f"does not end within {_LIMIT_S:g} s" if hung else f"fails: {_last_line(output)}"))
    if kill_at is not None and not killed:
        raise PeerFailed("it ended before half of the answers were sent")
    items = None if killed else json.loads(_last_line(output, '{"items"'))["items"]
    return PeerOutcome(usage.ru_utime + usage.ru_stime, wall_s, usage.ru_maxrss / 1024, items)


def _wait(pid: int, server: PeerServer, kill_at: int | None) -> tuple[bool, int, resource.struct_rusage]:
    """Wait for a process, and kill its group when due.

    Return whether it was killed because of `kill_at`, its exit status and its resource usage.
    """
    deadline, killed = time.monotonic() + _LIMIT_S, False
    while True:
        # wait4 also returns the resource usage of the process and its children.
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return killed, status, usage
        due = kill_at is not None and server.num_answers() >= kill_at
        if not killed and (due or time.monotonic() > deadline):
            os.killpg(pid, signal.SIGKILL)
            killed = due
        time.sleep(_POLL_S)


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a peer: its own home, no network beyond this machine, no API keys."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    nowhere = "http://127.0.0.1:9"  # the discard port: connections fail at once
    proxies = {"HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere, "NO_PROXY": "127.0.0.1,localhost"}
    return kept | proxies | {"HOME": str(folder), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "OPENAI_API_KEY": "none"}


def _last_line(output: Path, start: str = "") -> str:
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines()]
    found = [line for line in lines if line and line.startswith(start)]
    if not found:
        raise PeerFailed("it said nothing" if not lines else lines[-1][:200])
    return found[-1][:200] if not start else found[-1]
