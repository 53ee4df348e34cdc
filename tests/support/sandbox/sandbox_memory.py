"""Measure the memory of running programs from another process.

For each sandbox: the proportional set size of all its processes, and the size of its scratch directory. For the
machine: the decrease of available memory. The first excludes kernel memory (buffers of pipes and sockets, page
tables), the second includes it, and everything else that the machine does.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

EVERY_S = 0.1
MEBIBYTE = 1 << 20


class MemoryWatch:
    """Looks every EVERY_S, from `with` on, and keeps the most that it saw."""

    def __init__(self) -> None:
        self.most_bytes: dict[str, int] = {}
        """By the name that a program gave to one of its processes."""
        self.least_available_bytes = 0
        """Since `begin`."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def begin(self) -> int:
        """Forget what the machine had available; returns what it has now."""
        self.least_available_bytes = now = available_bytes()
        return now

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            self.least_available_bytes = min(self.least_available_bytes, available_bytes())
            for sandbox in sandboxes():
                held = sum(map(pss_bytes, sandbox)) + scratch_bytes(sandbox[-1])
                for pid in sandbox:
                    name = comm(pid)
                    self.most_bytes[name] = max(held, self.most_bytes.get(name, 0))


def sandboxes() -> Iterator[list[int]]:
    """Yield the processes of each sandbox that this process has, outer ones first."""
    for guardian in children(os.getpid()):
        if "guardian_worker" in cmdline(guardian):
            for first in children(guardian):
                yield below(first)


def below(pid: int) -> list[int]:
    """Return a process and its descendants."""
    return [pid, *(one for child in children(pid) for one in below(child))]


def children(pid: int) -> list[int]:
    """Process ids, from all threads."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def cmdline(pid: int) -> str:
    """Return its command line, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def comm(pid: int) -> str:
    """Return its command name, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def pss_bytes(pid: int) -> int:
    """Return its proportional set size, 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def scratch_bytes(pid: int) -> int:
    """Return the size of the scratch directory of a process inside a sandbox; 0 if it has none of its own."""
    try:
        system = os.statvfs(f"/proc/{pid}/root/scratch")
    except OSError:
        return 0
    return (system.f_blocks - system.f_bfree) * system.f_frsize


def available_bytes() -> int:
    """Return the memory that the kernel reports as available on the whole machine."""
    text = Path("/proc/meminfo").read_text()
    return int(text.partition("MemAvailable:")[2].split()[0]) * 1024
