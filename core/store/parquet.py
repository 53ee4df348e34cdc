"""Write rows to parquet files whose bytes depend only on the rows, in bounded memory.

Row groups and parts are cut at the same places however the rows arrive (one by one, in batches, over several attempts),
so equal rows give equal files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from treadle.core.errors import ArtifactError
from treadle.core.store.storage import storage_errors
from treadle.core.tables import NULL_ITEMS, Table

ROW_GROUP_ROWS = 4096
ROW_GROUP_BYTES = 32 * 1024 * 1024
PART_ROW_GROUPS = 64
_CHUNK_ROWS = 256
_VERSION = "treadle.schema_version"
DATA_FOLDER = "data"
"""Folder of the parts: pandas and polars read a folder of parquet files only if it has no other files."""


class TableWriter:
    """A writer of checked rows to `<folder>/<name>` or, in several parts, to `data/part-00000.parquet` and so on.

    A row group ends after 4,096 rows or 32 MiB of text and numbers, a part after 64 row groups. Rows must have exactly
    the columns of the table.
    """

    def __init__(self, table: Table, folder: Path, *, name: str | None = None, unique: bool = True) -> None:
        """Prepare to write; `name` selects a single file, `unique` rejects a second row with the same key."""
        self._table = table
        self._folder = folder
        self._name = name
        self._columns = table.schema.names
        self._schema = _stored_schema(table)
        self._keys: set[bytes] | None = set() if unique else None
        self._rows: list[Mapping[str, Any]] = []
        self._chunks: list[pa.RecordBatch] = []
        self._group_rows = 0
        self._group_bytes = 0
        self._part_groups = 0
        self._file: Any = None
        self.num_rows = 0
        """Number of rows written so far."""
        self.files: list[str] = []
        """Names of the files, in order."""

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows; raise ArtifactError naming row and column, or StorageError if the disk fails."""
        for row in rows:
            self._check(row)
            self._rows.append(row)
            self.num_rows += 1
            self._group_rows += 1
            self._group_bytes += _row_bytes(row)
            if self._group_rows == ROW_GROUP_ROWS or self._group_bytes >= ROW_GROUP_BYTES:
                self._end_group()
            elif len(self._rows) == _CHUNK_ROWS:
                self._convert()

    def close(self) -> None:
        """Write the remaining rows; a table without rows becomes a file with only the schema."""
        if self._group_rows:
            self._end_group()
        if not self.files:
            self._open_part()
        self._close_part()

    def abandon(self) -> None:
        """Close the open file; after a failed write, closing fails again, which is ignored."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                file.close()

    def _check(self, row: Mapping[str, Any]) -> None:
        if row.keys() != set(self._columns):
            missing, unknown = set(self._columns) - row.keys(), row.keys() - set(self._columns)
            raise self._error(self.num_rows, f"missing columns {sorted(missing)}, unknown columns {sorted(unknown)}")
        if self._keys is None:
            return
        # repr escapes what cannot be encoded; such a row is refused when it is converted.
        key = repr([row[name] for name in self._table.key])
        digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
        if digest in self._keys:
            raise self._error(self.num_rows, f"a row with {self._describe_key(row)} was written before")
        self._keys.add(digest)

    def _convert(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        first = self.num_rows - len(rows)
        columns = [self._column(field, rows, first) for field in self._schema]
        self._chunks.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _column(self, field: pa.Field, rows: Sequence[Mapping[str, Any]], first: int) -> pa.Array:
        values = [row[field.name] for row in rows]
        try:
            column = pa.array(values, field.type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            raise self._explain(field, values, first) from None
        if column.null_count and not field.nullable:
            raise self._error(first + values.index(None), f"column {field.name!r} is null", rows[values.index(None)])
        has_null_items = NULL_ITEMS in (self._table.schema.field(field.name).metadata or {})
        if pa.types.is_list(field.type) and not has_null_items and column.flatten().null_count:
            index = next(i for i, value in enumerate(values) if value is not None and None in list(value))
            raise self._error(first + index, f"a list in column {field.name!r} contains a null", rows[index])
        return column

    def _explain(self, field: pa.Field, values: Sequence[Any], first: int) -> ArtifactError:
        for index, value in enumerate(values):
            try:
                pa.array([value], field.type)
            except UnicodeError:
                what = "is text that cannot be encoded (a lone surrogate); clean it at its source"
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                what = f"does not fit {field.type}: {error}"
            else:
                continue
            return self._error(first + index, f"column {field.name!r} {what}")
        return self._error(first, f"column {field.name!r} does not fit {field.type}")

    def _error(self, index: int, what: str, row: Mapping[str, Any] | None = None) -> ArtifactError:
        where = f" ({self._describe_key(row)})" if row is not None else ""
        return ArtifactError(f"table {self._table.kind}, row {index + 1}{where}: {what}")

    def _describe_key(self, row: Mapping[str, Any]) -> str:
        return ", ".join(f"{name}={row[name]!r:.60}" for name in self._table.key)

    def _end_group(self) -> None:
        self._convert()
        # One chunk per column, because page boundaries depend on the number of chunks. The chunks are freed before the
        # write.
        group = pa.Table.from_batches(self._chunks, schema=self._schema).combine_chunks()
        self._chunks, self._group_rows, self._group_bytes = [], 0, 0
        with storage_errors("write", self._folder):
            if self._file is None:
                self._open_part()
            self._file.write_table(group, row_group_size=group.num_rows)
        self._part_groups += 1
        if self._part_groups == PART_ROW_GROUPS and self._name is None:
            self._close_part()

    def _open_part(self) -> None:
        import pyarrow.parquet as pq

        name = self._name or f"{DATA_FOLDER}/part-{len(self.files):05d}.parquet"
        with storage_errors("write", self._folder / name):
            (self._folder / name).parent.mkdir(exist_ok=True)
            self._file = pq.ParquetWriter(str(self._folder / name), self._schema, compression="zstd")
        self.files.append(name)
        self._part_groups = 0

    def _close_part(self) -> None:
        if self._file is not None:
            with storage_errors("write", self._folder):
                file, self._file = self._file, None
                file.close()
                descriptor = os.open(self._folder / self.files[-1], os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)


def _stored_schema(table: Table) -> pa.Schema:
    """Return the schema to store: with kind and version, without column descriptions, whose wording may change."""
    fields = [field.remove_metadata() for field in table.schema]
    return pa.schema(fields, {"treadle.kind": table.kind, _VERSION: str(table.version)})


def is_current(table: Table, stored: pa.Schema) -> bool:
    """Return whether a file with this schema was written with the current version of a table."""
    return (stored.metadata or {}).get(_VERSION.encode()) == str(table.version).encode()


def _row_bytes(row: Mapping[str, Any]) -> int:
    """Return the approximate memory of a row, which must depend only on the row."""
    total = 0
    for value in row.values():
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, (list, tuple)):
            total += _list_bytes(value)
        elif isinstance(value, Mapping):
            total += _row_bytes(value)
        else:
            total += 8
    return total


def _list_bytes(values: Sequence[Any]) -> int:
    if values and isinstance(values[0], str):
        return sum(map(len, values))
    if values and isinstance(values[0], Mapping):
        return sum(map(_row_bytes, values))
    return 4 * len(values)
