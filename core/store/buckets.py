"""Distribute lines over files, to group or sort data that does not fit into memory."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

from treadle.core.store.storage import storage_errors

MAX_BUCKETS = 256
"""Maximum number of buckets, and so of files open at once."""


def bucket_count(num_lines: int, lines_per_bucket: int) -> int:
    """Return the number of buckets for `num_lines` lines, at most MAX_BUCKETS."""
    return max(1, min(MAX_BUCKETS, -(-num_lines // lines_per_bucket)))


def draw(seed: int, *parts: str) -> int:
    """Return a pseudo-random number in [0, 2**64) that depends only on the seed and the parts."""
    text = "\x1f".join([str(seed), *parts])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class Buckets:
    """A fixed number of files of lines in a folder.

    Each file is deleted when it is read. A line must not contain a newline.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._files: dict[int, IO[bytes]] = {}
        self.count = count

    def __enter__(self) -> Self:
        with storage_errors("write", self._folder):
            self._folder.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            # After a failed write, closing the file fails again.
            with contextlib.suppress(OSError):
                file.close()

    def of(self, number: int) -> int:
        """Return the bucket of a number in [0, 2**64); buckets are in the order of the numbers."""
        return number * self.count >> 64

    def add(self, bucket: int, line: bytes) -> None:
        """Append a line to a bucket; raise StorageError if it cannot be written."""
        with storage_errors("write", self._folder):
            file = self._files.get(bucket)
            if file is None:
                file = self._files[bucket] = (self._folder / f"{bucket:03d}").open("wb")
            file.write(line)
            file.write(b"\n")

    def lines(self, bucket: int) -> list[bytes]:
        """Return all lines of a bucket in the order they were added, and delete the bucket."""
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
