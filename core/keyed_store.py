"""What a run keeps by key, first writer wins: what its stages met outside, and must meet again as it was.

A value is one object, put whole and forced to disk before `add` returns, so a kill leaves no half of one, and several
processes and machines can share a store without asking each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from treadle.core.errors import StorageError
from treadle.core.storage import LocalStorage, Storage

_KEY = re.compile(r"[0-9a-f]{32}")
_FOLDER_DIGITS = 3


class KeyedStore:
    """Values below a folder of the root, each under 32 hex digits; none is ever replaced. Safe for threads."""

    def __init__(self, storage: Storage, prefix: str) -> None:
        """`prefix`: key of the folder."""
        self._storage = storage
        self._prefix = prefix
        # On a file system they would wait for one lock, and add less together than one alone.
        self.num_writers = 1 if isinstance(storage, LocalStorage) else 8
        """How many threads of a process should add at once."""

    def get(self, key: str) -> bytes | None:
        """The value of a key, or None; raises ValueError for what is no key, StorageError."""
        return self._storage.get(self._object(key))

    def add(self, key: str, value: bytes) -> bytes:
        """Put a value in force unless there is one, and return the one in force; raises as `get` does."""
        name = self._object(key)
        if self._storage.put_if(name, value, None):
            return value
        found = self._storage.get(name)
        if found is None:
            raise StorageError(f"{self.location(key)} was removed while it was looked up; run the same command again")
        return found

    def keys(self) -> Iterator[str]:
        """All keys, sorted; other files that lie in the folder are passed over."""
        for name in self._storage.keys(self._prefix):
            key = name.rsplit("/", 1)[-1]
            if _KEY.fullmatch(key) and name == self._object(key):
                yield key

    def location(self, key: str = "") -> str:
        """Path or URL of the store, or of a value, for people."""
        return self._storage.location(self._object(key) if key else self._prefix)

    def _object(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key[:100]!r} is no key of a store; keys are 32 hex digits in lower case")
        return f"{self._prefix}/{key[:_FOLDER_DIGITS]}/{key}"
