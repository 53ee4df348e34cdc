"""Measure the folder that a sandbox can write, and end programs that fill it beyond its limit.

No quota of the kernel applies to a folder of an ordinary user, so it is sampled while a program runs. Its content is
hostile: no link in it is followed, and it is never entered deeper than `MAX_DEPTH`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from treadle.agent.sandbox.usage import INTERVAL_S, MAX_FILES, Excess, UsageWatch, descendants

MAX_DEPTH = 64
_BLOCK_BYTES = 512
_RESERVE_FILES = 1024
RESERVE_BYTES = 64 * 1024 * 1024
"""Free space of the host's disk below which programs are ended."""
_LOAD_SHARE = 0.1
"""Largest share of time spent on sampling one folder; large folders are sampled less often."""
FolderExcess = Literal["folder", "files"]


@dataclass(frozen=True, slots=True)
class FolderUsage:
    """Size of a folder in bytes of the disk, its number of entries, and whether it is nested too deeply."""

    num_bytes: int = 0
    num_files: int = 0
    is_too_deep: bool = False

    def excess(self, limit: FolderUsage) -> FolderExcess | None:
        """Return the limit that is exceeded, or None."""
        if self.num_bytes > limit.num_bytes:
            return "folder"
        return "files" if self.num_files > limit.num_files or self.is_too_deep else None


def folder_limit(num_bytes: int, used: FolderUsage) -> FolderUsage:
    """Return the limits of a program's folder: at least what is `used`, so that a program can still delete files."""
    return FolderUsage(max(num_bytes, used.num_bytes), max(MAX_FILES, used.num_files))


def usage_of_folder(folder: Path, first: int | None = None) -> FolderUsage:
    """Return the usage of a folder; entries that vanish in the meantime are left out.

    Files without a name that the process `first` or its descendants hold open are included.
    """
    found = [0, 0, 0]
    with contextlib.suppress(OSError):
        _add(os.fspath(folder), None, 1, found)
    if first is not None:
        with contextlib.suppress(OSError):
            found[0] += _nameless_bytes(first, os.stat(folder).st_dev)
    return FolderUsage(found[0], found[1], found[2] > MAX_DEPTH)


def _nameless_bytes(first: int, device: int) -> int:
    """Return the size of the removed files on a device that the process `first` or its descendants hold open."""
    sizes = {}
    for pid in descendants(first):
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    file = os.stat(f"/proc/{pid}/fd/{name}")
                    if file.st_dev == device and not file.st_nlink:
                        sizes[file.st_ino] = file.st_blocks * _BLOCK_BYTES
    return sum(sizes.values())


def _add(name: str, parent: int | None, depth: int, found: list[int]) -> None:
    """Add the content of a folder to `found`: bytes, entries and greatest depth."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    place, folder, closed = os.open(name, os.O_PATH | flags, dir_fd=parent), -1, None
    path = f"/proc/self/fd/{place}"
    try:
        mode = stat.S_IMODE(os.fstat(place).st_mode)
        if os.geteuid() != 0 and mode & 0o500 != 0o500:
            # Programs in the sandbox, which run as this user, have removed the access rights.
            os.chmod(path, mode | 0o500)
            closed = mode
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        found[2] = max(found[2], depth)
        if depth > MAX_DEPTH:
            return
        with os.scandir(folder) as entries:
            for entry in entries:
                found[1] += 1
                with contextlib.suppress(OSError):
                    found[0] += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        _add(entry.name, folder, depth + 1, found)
    finally:
        if closed is not None:
            os.chmod(path, closed)
        os.close(place)
        if folder >= 0:
            os.close(folder)


def is_disk_full(folder: Path) -> bool:
    """Return whether a folder's disk has less than `RESERVE_BYTES`, or too few files, left; True without the folder."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return True
    return disk.f_bavail * disk.f_frsize < RESERVE_BYTES or disk.f_files > 0 and disk.f_favail < _RESERVE_FILES


class FolderWatch:
    """Watch of a sandbox that also samples its writable folder; see `UsageWatch`."""

    def __init__(self, usage: UsageWatch, folder: Path, limit: FolderUsage) -> None:
        self._usage = usage
        self._folder = folder
        self._limit = limit

    @contextlib.contextmanager
    def watching(self, first: int, memory_bytes: int) -> Iterator[asyncio.Future[Excess]]:
        """Watch one sandbox; the future gets the resource whose limit it exceeds."""
        with self._usage.watching(first, memory_bytes) as excess:
            sampling = asyncio.ensure_future(self._sample(excess, first))
            try:
                yield excess
            finally:
                sampling.cancel()

    async def _sample(self, excess: asyncio.Future[Excess], first: int) -> None:
        pause_s = INTERVAL_S
        while True:
            await asyncio.sleep(pause_s)
            started = time.monotonic()
            found = (await asyncio.to_thread(usage_of_folder, self._folder, first)).excess(self._limit)
            if found is None and is_disk_full(self._folder):
                found = "folder"
            if found is not None and not excess.done():
                excess.set_result(found)
                return
            pause_s = max(INTERVAL_S, (time.monotonic() - started) / _LOAD_SHARE)
