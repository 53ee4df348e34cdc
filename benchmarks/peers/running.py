"""Runs a peer's script in a process group of its own, measures it, or kills it at a given number of answers."""

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
    """A peer ended with an error, or not at all; the message is its last line."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one process took: CPU seconds (user and system, with its children), wall seconds, the memory of its largest
    process in MiB, and the items of its output (None if it was killed)."""

    cpu_s: float
    wall_s: float
    peak_mib: float
    items: list[int] | None


@dataclass(frozen=True, slots=True)
class Job:
    """One peer with one piece of work in a folder of its own."""

    python: str
    script: Path
    kind: str
    num_items: int
    in_flight: int
    folder: Path

    def command(self, url: str, *, resume: bool) -> list[str]:
        """Its command line."""
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
class Server:
    """The server of all peers."""

    url: str
    log: Path

    def num_answers(self) -> int:
        """Answers sent so far."""
        return self.log.stat().st_size // repeats.LINE_BYTES if self.log.exists() else 0

    def answers(self, start: int, stop: int | None = None) -> list[repeats.Call]:
        """Answers sent, by their number."""
        return repeats.calls_of(self.log.read_bytes())[start:stop]


@contextlib.contextmanager
def serving(folder: Path, delay_s: float) -> Iterator[Server]:
    """The server in a process of its own, for the length of a block."""
    command = [sys.executable, str(_HERE / "server.py"), str(folder / "answers.log"), "--delay", str(delay_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdin is not None
        yield Server(f"http://127.0.0.1:{int(child.stdout.readline())}/v1", folder / "answers.log")
        child.stdin.close()


def run(job: Job, server: Server, *, resume: bool = False, kill_at: int | None = None) -> Outcome:
    """Run a job to its end, or to SIGKILL of its process group once the server has sent `kill_at` answers in all.

    Raises PeerFailed.
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
        finally:  # a helper that outlived its parent, or all of them after Ctrl-C
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
    return Outcome(usage.ru_utime + usage.ru_stime, wall_s, usage.ru_maxrss / 1024, items)


def _wait(pid: int, server: Server, kill_at: int | None) -> tuple[bool, int, resource.struct_rusage]:
    """Wait for a process, and kill its group when it is due; whether that was done, its status and what it used."""
    deadline, killed = time.monotonic() + _LIMIT_S, False
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return killed, status, usage
        due = kill_at is not None and server.num_answers() >= kill_at
        if not killed and (due or time.monotonic() > deadline):
            os.killpg(pid, signal.SIGKILL)
            killed = due
        time.sleep(_POLL_S)


def _environment(folder: Path) -> dict[str, str]:
    """The environment of a peer: its own home, no way out of this machine, no keys."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    nowhere = "http://127.0.0.1:9"  # the discard port: what goes there fails at once
    proxies = {"HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere, "NO_PROXY": "127.0.0.1,localhost"}
    return kept | proxies | {"HOME": str(folder), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "OPENAI_API_KEY": "none"}


def _last_line(output: Path, start: str = "") -> str:
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines()]
    found = [line for line in lines if line and line.startswith(start)]
    if not found:
        raise PeerFailed("it said nothing" if not lines else lines[-1][:200])
    return found[-1][:200] if not start else found[-1]
