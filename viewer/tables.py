"""Read single rows of artifacts by number: key columns are in memory, other columns are read by row group on demand."""

from __future__ import annotations

import contextlib
import io
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from treadle.core.errors import ArtifactError, StorageError
from treadle.core.runs.records import StageRecord
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.core.store.roots import Storage
from treadle.core.tables import TABLES

_MAX_CACHED_BYTES = 256 * 1024 * 1024


@contextlib.contextmanager
def collect_problem(problems: list[str]) -> Iterator[None]:
    """Append an error about one table to `problems`, so that the others can still be shown."""
    try:
        yield
    except (ArtifactError, StorageError) as error:
        problems.append(str(error))


def read_log(storage: Storage, record: StageRecord, kind: str, columns: tuple[str, ...]) -> pa.Table | None:
    """Return columns of a stage's telemetry log; None if it never existed or was deleted. Raises ArtifactError."""
    file = record.telemetry.get(kind)
    return None if file is None else _read_log(storage, file, columns)


@lru_cache(maxsize=4)
def _read_log(storage: Storage, file: str, columns: tuple[str, ...]) -> pa.Table | None:
    content = storage.get(file)
    if content is None:
        return None
    try:
        return pq.ParquetFile(io.BytesIO(content)).read(columns=list(columns), use_threads=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise ArtifactError(f"{file} cannot be read: {error}") from error


class RowGroupCache:
    """LRU cache of row groups: up to 256 MiB, but at least one."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[Any, ...], pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, reader: ArtifactReader, place: tuple[str, int], columns: tuple[str, ...]) -> pa.Table:
        """Return a row group. Raise ArtifactError if it cannot be read."""
        key = (reader.kind, reader.digest, place, columns)
        with self._lock:
            if key in self._tables:
                self._tables.move_to_end(key)
                return self._tables[key]
        table = reader.row_group(place, columns)
        with self._lock:
            self._tables[key] = table
            while len(self._tables) > 1 and sum(one.nbytes for one in self._tables.values()) > _MAX_CACHED_BYTES:
                self._tables.popitem(last=False)
        return table


class StoredTable:
    """A committed table with rows addressed by number, from 0."""

    def __init__(self, reader: ArtifactReader, groups: RowGroupCache) -> None:
        self.reader = reader
        self._groups = groups
        self._places: list[tuple[str, int]] = []
        self._ends: list[int] = []

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Return some columns of all rows. Raise ArtifactError."""
        tables, places = [], []
        for place, table in self.reader.row_groups(names):
            tables.append(table)
            places.append(place)
        self._places, self._ends = places, np.cumsum([table.num_rows for table in tables]).tolist()
        if not tables:
            schema = TABLES[self.reader.kind].schema
            return pa.schema([schema.field(name) for name in names]).empty_table()
        return pa.concat_tables(tables)

    def row(self, number: int, names: Sequence[str]) -> dict[str, Any]:
        """Return columns of one row, as far as the table has them. `columns` must have been called before.

        Raise ArtifactError if it cannot be read.
        """
        index = int(np.searchsorted(self._ends, number, "right"))
        start = self._ends[index - 1] if index else 0
        table = self._groups.get(self.reader, self._places[index], tuple(names))
        row: dict[str, Any] = table.slice(number - start, 1).to_pylist()[0]
        return row


class KeyedTable:
    """A committed table with rows found by the value of one column, usually its key."""

    def __init__(self, reader: ArtifactReader, key: str, groups: RowGroupCache, columns: Sequence[str] = ()) -> None:
        """Read the key column and `columns` into memory. Raise ArtifactError."""
        self.digest = reader.digest
        self._stored = StoredTable(reader, groups)
        self.facts = self._stored.columns([key, *columns])
        self.keys: pa.ChunkedArray = self.facts[key]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Key -> row number."""
        return {key: number for number, key in enumerate(self.keys.to_pylist())}

    def row(self, key: str, names: Sequence[str]) -> dict[str, Any] | None:
        """Return columns of the row of a key, or None if there is none."""
        number = self.numbers.get(key)
        return None if number is None else self._stored.row(number, names)

    def rows(self, key: str, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return columns of all rows with this key (there may be several); raise ArtifactError if one is unreadable."""
        numbers = np.flatnonzero(pc.equal(self.keys, key).to_numpy())
        return [self._stored.row(number, names) for number in numbers.tolist()]
