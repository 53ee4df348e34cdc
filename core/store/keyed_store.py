"""Store values of a run by key, such as web responses, so that later stages get the same values; the first writer wins.

A value is one object, written whole and forced to disk before `add` returns, so a kill leaves no partial value. Several
processes and machines can share a store without coordination.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from treadle.core.errors import StorageError
from treadle.core.store.roots import Storage
from treadle.core.store.storage import LocalStorage

_KEY = re.compile(r"[0-9a-f]{32}")
_FOLDER_DIGITS = 3


class KeyedStore:
    """Values below a folder of the root, each under a key of 32 hex digits; never replaced. Thread-safe."""

    def __init__(self, storage: Storage, prefix: str) -> None:
        """Use the folder with the key `prefix`."""
        self._storage = storage
        self._prefix = prefix
        # On a file system, concurrent writers wait for one lock and are slower together than one alone.
        self.num_writers = 1 if isinstance(storage, LocalStorage) else 8
        """Recommended number of threads per process that call `add` concurrently."""

    @classmethod
    def in_folder(cls, folder: Path, name: str) -> KeyedStore:
        """Return a store in a subfolder of a local folder, which is created with the first value."""
        return cls(LocalStorage(folder), name)

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, or None; raise ValueError for an invalid key, StorageError if reading fails."""
        return self._storage.get(self._object(key))

    def add(self, key: str, value: bytes) -> bytes:
        """Store a value unless the key has one, and return the stored one; raise as `get` does."""
        name = self._object(key)
        if self._storage.put_if(name, value, None):
            return value
        found = self._storage.get(name)
        if found is None:
            raise StorageError(f"{self.location(key)} was deleted while it was being read; run the same command again")
        return found

    def keys(self) -> Iterator[str]:
        """Iterate over all keys in sorted order, skipping other files in the folder."""
        for name in self._storage.keys(self._prefix):
            key = name.rsplit("/", 1)[-1]
            if _KEY.fullmatch(key) and name == self._object(key):
                yield key

    def location(self, key: str = "") -> str:
        """Return the path or URL of the store, or of a value, for display."""
        return self._storage.location(self._object(key) if key else self._prefix)

    def _object(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key[:100]!r} is not a store key; keys are 32 hex digits in lower case")
        return f"{self._prefix}/{key[:_FOLDER_DIGITS]}/{key}"
