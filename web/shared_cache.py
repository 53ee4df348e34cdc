"""Cache of web searches and pages in one SQLite file, which all processes of a service share.

Entries are JSON. An entry with more results replaces one with fewer, never the other way round.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

from treadle.core.errors import StorageError

T_Result = TypeVar("T_Result")
EntryKind = Literal["search", "page"]

_BUSY_TIMEOUT_S = 10.0
_PRUNE_EVERY = 64
"""Number of writes of a process after which it removes the oldest entries beyond the limits."""
_CREATE = """
CREATE TABLE IF NOT EXISTS entries (
    kind TEXT NOT NULL, key TEXT NOT NULL, num_results INTEGER NOT NULL, stored_at REAL NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID
"""
_CREATE_INDEX = "CREATE INDEX IF NOT EXISTS entries_by_time ON entries (kind, stored_at)"
_PUT = """
INSERT INTO entries VALUES (:kind, :key, :num_results, :stored_at, :value)
ON CONFLICT (kind, key) DO UPDATE SET
    num_results = excluded.num_results, stored_at = excluded.stored_at, value = excluded.value
WHERE excluded.num_results >= num_results OR stored_at < :expired_at
"""
_PRUNE = """
DELETE FROM entries WHERE kind = :kind AND stored_at < (
    SELECT stored_at FROM entries WHERE kind = :kind ORDER BY stored_at DESC LIMIT 1 OFFSET :most
)
"""


class SharedCache:
    """Entries by kind and key. Several processes may have the file open; used on one event loop in each."""

    def __init__(
        self, path: Path, *, max_entries: dict[EntryKind, int], clock: Callable[[], float] = time.time
    ) -> None:
        """Prepare the cache in the file `path`; `max_entries` limits each kind, `clock` is replaced in tests."""
        self._path = path
        self._max_entries = max_entries
        self._clock = clock
        self._num_writes = 0
        # One thread has the connection: SQLite serialises the statements of a process anyway.
        self._thread = ThreadPoolExecutor(1, "web-cache")
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Open the file, or create it. Raises StorageError."""
        await self._run(self._open)

    async def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            await self._run(self._connection.close)
        self._thread.shutdown()

    async def get(
        self, kind: EntryKind, key: str, *, num_results: int = 0, max_age_s: float | None = None
    ) -> bytes | None:
        """Return the entry if it was requested with at least `num_results` results and is not too old, else None.

        Raises StorageError.
        """
        found = await self._run(lambda: self._row(kind, key))
        if found is None or found[0] < num_results:
            return None
        if max_age_s is not None and self._clock() - found[1] > max_age_s:
            return None
        return found[2]

    async def put(
        self, kind: EntryKind, key: str, value: bytes, *, num_results: int = 0, max_age_s: float = 0.0
    ) -> None:
        """Store an entry, unless one with more results is at most `max_age_s` seconds old. Raises StorageError."""
        await self._run(lambda: self._put(kind, key, value, num_results, max_age_s))

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(
            self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        # Readers and a writer of other processes do not wait for each other. A crash of the machine may lose an entry.
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", _CREATE, _CREATE_INDEX):
            self._connection.execute(statement)

    def _row(self, kind: EntryKind, key: str) -> tuple[int, float, bytes] | None:
        assert self._connection is not None, "open() comes first"
        found = self._connection.execute(
            "SELECT num_results, stored_at, value FROM entries WHERE kind = ? AND key = ?", (kind, key)
        ).fetchone()
        return None if found is None else (int(found[0]), float(found[1]), bytes(found[2]))

    def _put(self, kind: EntryKind, key: str, value: bytes, num_results: int, max_age_s: float) -> None:
        assert self._connection is not None, "open() comes first"
        now = self._clock()
        row = {"kind": kind, "key": key, "num_results": num_results, "stored_at": now, "value": value}
        self._connection.execute(_PUT, {**row, "expired_at": now - max_age_s})
        self._num_writes += 1
        if self._num_writes % _PRUNE_EVERY == 0:
            for one, most in self._max_entries.items():
                self._connection.execute(_PRUNE, {"kind": one, "most": most - 1})

    async def _run(self, work: Callable[[], T_Result]) -> T_Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (sqlite3.Error, OSError) as error:
            raise StorageError(
                f"the cache of the web in {self._path} cannot be used: {error}; free space, or remove the file if it "
                "is damaged"
            ) from error
