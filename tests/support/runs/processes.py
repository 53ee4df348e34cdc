"""Processes of tests: stop one, kill it alone, and list what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


def until(condition: Callable[[], bool], what: str, limit_s: float = 60.0, pause_s: float = 0.005) -> None:
    """Wait for a condition that must become true; fail with `what` after a limit that only a bug reaches."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s:g} s: {what}")
        time.sleep(pause_s)


@dataclass(frozen=True, slots=True)
class Seen:
    """A process at one moment; its start time distinguishes it from a later one with the same number."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    start: int
    name: str

    def lives(self) -> bool:
        """Return whether this same process still exists and is not a zombie."""
        now = look(self.pid)
        return now is not None and now.start == self.start and now.state not in "ZX"


def look(pid: int) -> Seen | None:
    """Return the kernel's record of a process; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    name, _, rest = text.partition(" (")[2].rpartition(") ")
    fields = rest.split()
    return Seen(pid, int(fields[1]), int(fields[2]), int(fields[3]), fields[0], int(fields[19]), name)


def family(pid: int) -> list[Seen]:
    """All descendants of a process, and what else runs in the session that it leads; without itself."""
    all_seen = everyone()
    members = {pid}
    while True:
        more = {seen.pid for seen in all_seen if seen.parent in members or seen.session in members} - members
        if not more:
            return [seen for seen in all_seen if seen.pid in members and seen.pid != pid]
        members |= more


def everyone() -> list[Seen]:
    """All processes."""
    return [seen for entry in Path("/proc").iterdir() if entry.name.isdigit() and (seen := look(int(entry.name)))]


def remaining(of: list[Seen], but: int = 0) -> list[Seen]:
    """Return which of these processes are alive, and of all in their groups and sessions by now, except `but`.

    Groups and sessions of the caller do not count.
    """
    groups = {number for seen in of for number in (seen.group, seen.session)} - {0, os.getpgid(0), os.getsid(0)}
    known = {(seen.pid, seen.start) for seen in of}
    found = [seen for seen in everyone() if {seen.group, seen.session} & groups or (seen.pid, seen.start) in known]
    return [seen for seen in found if seen.pid != but and seen.state not in "ZX"]


def freeze(process: subprocess.Popen[bytes]) -> bool:
    """Stop a process at an arbitrary instruction; False if it has ended."""
    if process.poll() is not None:
        return False
    os.kill(process.pid, signal.SIGSTOP)
    told = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return told is not None and told.si_code == os.CLD_STOPPED


def thaw(process: subprocess.Popen[bytes]) -> None:
    """Resume a stopped process."""
    os.kill(process.pid, signal.SIGCONT)


def stand_still(pid: int, seconds: float) -> None:
    """Stop a process with SIGSTOP for a while, counted from when it has stopped, and let it go on."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: (seen := look(pid)) is not None and seen.state == "T", f"process {pid} stands still")
    wait_out(seconds)
    os.kill(pid, signal.SIGCONT)


def wait_out(time_s: float) -> None:
    """Wait until a time limit of others is certainly over."""
    began = time.monotonic()
    until(lambda: time.monotonic() - began > time_s, "the time is over", pause_s=0.1)


def kill_alone(process: subprocess.Popen[bytes]) -> list[Seen] | None:
    """SIGKILL one process and nothing below it; return its children, or None if it had ended before.

    It is frozen first, so that its children are known exactly when it is killed.
    """
    if not freeze(process):
        process.wait()
        return None
    orphans = family(process.pid)
    process.kill()
    process.wait()
    return orphans


def end_family(process: subprocess.Popen[bytes]) -> None:
    """After a failed test: end a process and all that it started."""
    members = family(process.pid)
    process.kill()
    process.wait()
    for seen in members:
        if seen.lives():
            with suppress(ProcessLookupError):
                os.kill(seen.pid, signal.SIGKILL)
