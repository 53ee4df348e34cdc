"""Lines spread over files, to group or sort what does not fit into memory."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from treadle.core.storage import storage_errors

MOST_BUCKETS = 256
"""So many files are open at once."""


def bucket_count(num_lines: int, lines_per_bucket: int) -> int:
    """Buckets for about so many lines; more lines per bucket where they would be too many files."""
    return max(1, min(MOST_BUCKETS, -(-num_lines // lines_per_bucket)))


def draw(seed: int, *parts: str) -> int:
    """A number in [0, 2**64) from what it is for."""
    text = "\x1f".join([str(seed), *parts])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class Buckets:
    """So many files of lines in a folder, removed as they are read; a line must hold no newline."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._files: dict[int, IO[bytes]] = {}
        self.count = count

    def __enter__(self) -> Self:
        with storage_errors("write", self._folder):
            self._folder.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            # After a failed write closing it fails once more.
            with contextlib.suppress(OSError):
                file.close()

    def of(self, number: int) -> int:
        """The bucket of a number in [0, 2**64); a greater number is never in an earlier one."""
        return number * self.count >> 64

    def add(self, bucket: int, line: bytes) -> None:
        """Append a line; raises StorageError."""
        with storage_errors("write", self._folder):
            file = self._files.get(bucket)
            if file is None:
                file = self._files[bucket] = (self._folder / f"{bucket:03d}").open("wb")
            file.write(line)
            file.write(b"\n")

    def lines(self, bucket: int) -> list[bytes]:
        """All lines of a bucket in the order in which they came; the bucket is then gone."""
        file = self._files.pop(bucket, None)
        if file is None:
            return []
        path = self._folder / f"{bucket:03d}"
        with storage_errors("read", path):
            file.close()
            lines = path.read_bytes().splitlines()
            path.unlink()
        return lines

    def __iter__(self) -> Iterator[list[bytes]]:
        for bucket in range(self.count):
            yield self.lines(bucket)
