"""Detect that a file or folder in use was moved, deleted or replaced.

The check is made before anything is written below the path. Otherwise a root that was renamed during a run would be
created again, empty, under its old name.
"""

from __future__ import annotations

import os
from pathlib import Path

from treadle.core.errors import StorageError

Identity = tuple[int, int]
"""Device and inode number."""


def file_identity(place: Path | int) -> Identity | None:
    """Return the identity of the file at a path or descriptor; None if there is none. Raises OSError."""
    try:
        facts = os.stat(place)
    except FileNotFoundError:
        return None
    return facts.st_dev, facts.st_ino


class WatchedPath:
    """A path with the identity of the file or folder that it first led to."""

    def __init__(self, path: Path, what: str) -> None:
        """Watch a path; `what` is its name in messages."""
        self._path, self._what = path, what
        self._seen: Identity | None = None

    def check(self) -> None:
        """Raise StorageError if the path leads to something else than before; raise OSError if the check fails."""
        # Read before the look-up: another thread may store a newer identity than the one seen here.
        seen = self._seen
        now = file_identity(self._path)
        if seen is None:
            self._seen = self._seen or now
        elif now != seen:
            raise moved(self._what, self._path)


def moved(what: str, path: Path) -> StorageError:
    """Return the error for a file or folder that is no longer at its path."""
    return StorageError(
        f"{what} {path} was moved, renamed, deleted or replaced while it was in use; nothing more is written there. "
        "Put it back, or give its new path (--root, --run), then run the same command again"
    )
