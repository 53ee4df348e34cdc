"""Sample the memory and the number of files of running sandboxes, because no resource limit adds up their processes.

The memory of a sandbox is the anonymous part of the proportional set sizes of its processes, the scratch directory, and
an allowance for open pipes and sockets. There is no other memory, since anonymous shared memory is refused
(`system_calls`). The sandbox's first process is not counted, because it runs no code of the program. One thread per
pool takes the samples. It starts 50 ms after the program, when most programs have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

Excess = Literal["memory", "files", "folder"]

INTERVAL_S = 0.05
MAX_FILES = 16384
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_USUAL_DESCRIPTORS = 16
"""Number of descriptors per process that are not counted as pipes or sockets: most are ordinary files."""


@dataclass(frozen=True, slots=True)
class SandboxUsage:
    """Memory and files of a sandbox. Far below the limit, `memory_bytes` may count shared pages twice."""

    memory_bytes: int
    files: int


class Watch(Protocol):
    """Watch of running sandboxes."""

    def watching(self, first: int, memory_bytes: int) -> contextlib.AbstractContextManager[asyncio.Future[Excess]]:
        """Watch the sandbox with this first process; the future gets the resource whose limit the sandbox exceeds."""
        ...


class UsageWatch:
    """Thread that samples all watched sandboxes every 50 ms; it sleeps while no sandbox is watched."""

    def __init__(self) -> None:
        self._watched: dict[asyncio.Future[Excess], tuple[int, int]] = {}
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def watching(self, first: int, memory_bytes: int) -> Iterator[asyncio.Future[Excess]]:
        """Watch the sandbox with this first process; the future gets the resource whose limit the sandbox exceeds.

        Call this, and `close`, on an event loop.
        """
        loop = asyncio.get_running_loop()
        excess: asyncio.Future[Excess] = loop.create_future()
        timer = loop.call_later(INTERVAL_S, self._add, excess, first, memory_bytes)
        try:
            yield excess
        finally:
            timer.cancel()
            excess.cancel()
            self._watched.pop(excess, None)

    def close(self) -> None:
        """Stop the thread, if it was started."""
        self._closed.set()
        with self._changed:
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _add(self, excess: asyncio.Future[Excess], first: int, memory_bytes: int) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="sandbox-usage", daemon=True)
            self._thread.start()
        with self._changed:
            self._watched[excess] = first, memory_bytes
            self._changed.notify()

    def _watch(self) -> None:
        while not self._closed.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._watched or self._closed.is_set())
            for excess, (first, memory_bytes) in list(self._watched.items()):
                usage = usage_of(first, memory_bytes)
                if found := _excess(usage, memory_bytes):
                    # The loop may close in the meantime.
                    with contextlib.suppress(RuntimeError):
                        excess.get_loop().call_soon_threadsafe(_set_excess, excess, found)
            self._closed.wait(INTERVAL_S)


def _set_excess(excess: asyncio.Future[Excess], found: Excess) -> None:
    if not excess.done():
        excess.set_result(found)


def _excess(usage: SandboxUsage, memory_bytes: int) -> Excess | None:
    if usage.memory_bytes > memory_bytes:
        return "memory"
    return "files" if usage.files > MAX_FILES else None


def usage_of(first: int, limit_bytes: int) -> SandboxUsage:
    """Return the usage of the sandbox with this first process; zeros if the sandbox has ended."""
    scratch_bytes, files = _scratch(first)
    pids = list(descendants(first))[1:]
    held_bytes = scratch_bytes + sum(map(_descriptor_bytes, pids))
    # Resident sizes are cheaper to read, and without swap they are never less than the proportional sizes.
    upper_bound = held_bytes + sum(map(_resident_bytes, pids))
    if upper_bound <= limit_bytes and not _has_swap():
        return SandboxUsage(upper_bound, files)
    return SandboxUsage(held_bytes + sum(map(_anonymous_bytes, pids)), files)


def descendants(pid: int) -> Iterator[int]:
    """Yield a process and its descendants, as far as the kernel shows them."""
    yield pid
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in _read(f"/proc/{pid}/task/{task}/children").split():
                yield from descendants(int(child))


def _scratch(first: int) -> tuple[int, int]:
    """Return the size of the scratch directory in bytes, and its number of files, folders and links."""
    try:
        system = os.statvfs(f"/proc/{first}/root/scratch")
    except OSError:
        return 0, 0
    return (system.f_blocks - system.f_bfree) * system.f_frsize, system.f_files - system.f_ffree


def _descriptor_bytes(pid: int) -> int:
    """Return how many bytes the pipes and sockets of a process can buffer; see `_USUAL_DESCRIPTORS`."""
    try:
        number = os.stat(f"/proc/{pid}/fd").st_size or len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0
    return max(0, number - _USUAL_DESCRIPTORS) * _buffer_bytes()


@functools.cache
def _buffer_bytes() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(_read("/proc/sys/net/core/wmem_default"))
    return 212_992


def _resident_bytes(pid: int) -> int:
    try:
        return int(_read(f"/proc/{pid}/statm").split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _anonymous_bytes(pid: int) -> int:
    """Return a process's proportional share of memory that no file backs, including swapped-out pages."""
    try:
        lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    except OSError:
        return _private_bytes(pid)
    sizes = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    return sizes.get("Pss_Anon", sizes.get("Pss", 0)) + sizes.get("SwapPss", 0)


def _private_bytes(pid: int) -> int:
    """Return a process's anonymous memory if `smaps_rollup` is missing; each process that shares a page counts it."""
    try:
        _, resident, shared = _read(f"/proc/{pid}/statm").split(maxsplit=3)[:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


def _has_swap() -> bool:
    with contextlib.suppress(OSError):
        return len(_read("/proc/swaps").splitlines()) > 1
    return False


def _read(path: str) -> str:
    return Path(path).read_text()
