"""Measure the folder that a sandbox can write, and end programs that fill it beyond its limit.

No quota of the kernel applies to a folder of an ordinary user, so it is sampled while a program runs. Its content is
hostile: no link in it is followed, and it is never entered deeper than `MAX_DEPTH`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from treadle.agent.sandbox.usage import INTERVAL_S, MAX_FILES, Excess, UsageWatch

MAX_DEPTH = 64
_BLOCK_BYTES = 512
_LOAD_SHARE = 0.1
"""Most of the time that sampling one folder takes: large folders are sampled less often."""
FolderExcess = Literal["folder", "files"]


@dataclass(frozen=True, slots=True)
class FolderUsage:
    """Size of a folder in bytes of the disk, its number of entries, and whether it is nested too deeply."""

    num_bytes: int = 0
    num_files: int = 0
    is_too_deep: bool = False

    def excess(self, limit: FolderUsage) -> FolderExcess | None:
        """Return which limit is exceeded."""
        if self.num_bytes > limit.num_bytes:
            return "folder"
        return "files" if self.num_files > limit.num_files or self.is_too_deep else None


def folder_limit(num_bytes: int, used: FolderUsage) -> FolderUsage:
    """Return the limits of a program; one that begins above them may still delete."""
    return FolderUsage(max(num_bytes, used.num_bytes), max(MAX_FILES, used.num_files))


def usage_of_folder(folder: Path) -> FolderUsage:
    """Return the usage of a folder; what vanishes or cannot be read meanwhile is left out."""
    found = [0, 0, 0]
    with contextlib.suppress(OSError):
        _add(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC), 1, found)
    return FolderUsage(found[0], found[1], found[2] > MAX_DEPTH)


def _add(folder: int, depth: int, found: list[int]) -> None:
    """Add what is in an open folder to bytes, entries and depth; close the folder."""
    try:
        found[2] = max(found[2], depth)
        if depth > MAX_DEPTH:
            return
        with os.scandir(folder) as entries:
            for entry in entries:
                found[1] += 1
                with contextlib.suppress(OSError):
                    found[0] += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                        _add(os.open(entry.name, flags, dir_fd=folder), depth + 1, found)
    finally:
        os.close(folder)


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
            sampling = asyncio.ensure_future(self._sample(excess))
            try:
                yield excess
            finally:
                sampling.cancel()

    async def _sample(self, excess: asyncio.Future[Excess]) -> None:
        pause_s = INTERVAL_S
        while True:
            await asyncio.sleep(pause_s)
            started = time.monotonic()
            found = (await asyncio.to_thread(usage_of_folder, self._folder)).excess(self._limit)
            if found is not None and not excess.done():
                excess.set_result(found)
                return
            pause_s = max(INTERVAL_S, (time.monotonic() - started) / _LOAD_SHARE)
