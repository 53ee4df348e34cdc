"""Reading a committed artifact as a stream; nothing of a data file is handed on before the file was hashed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from treadle.core.artifacts import ArtifactRef, FileEntry, read_manifest
from treadle.core.errors import ArtifactError
from treadle.core.schemas import TABLES
from treadle.core.storage import Storage, storage_errors

_BATCH_ROWS = 1024


class ArtifactReader:
    """A committed table, read as a stream; implements `core.stage.Rows`."""

    def __init__(self, storage: Storage, ref: ArtifactRef) -> None:
        """Raises ArtifactError if it is missing, damaged, or of a schema version that is not read here."""
        self._storage = storage
        self._ref = ref
        self._sound: set[str] = set()
        self.manifest = read_manifest(storage, ref)
        self.kind = ref.kind
        self.digest = ref.digest
        self.num_rows = self.manifest.num_rows
        table, version = TABLES.get(ref.kind), self.manifest.schema_version
        self._lacking = table.schema if table is not None and version in table.also_reads else None
        if table is not None and version != table.version and version not in table.also_reads:
            raise ArtifactError(
                f"{ref.folder} holds table {ref.kind} in version {version}; "
                f"this Treadle reads version {table.version}: run the stage that makes it again"
            )

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches of up to 1,024 rows in the stored order; one row group is held at a time.

        Each file is hashed before its first row is handed on: parquet itself does not notice a flipped bit. Raises
        ArtifactError for one that was changed.
        """
        import pyarrow.parquet as pq

        for entry in self.manifest.files:
            if not entry.name.endswith(".parquet"):
                continue
            key = f"{self._ref.folder}/{entry.name}"
            with storage_errors("read", key), self._storage.open(key) as file:
                self._check(entry, file)
                try:
                    parquet = pq.ParquetFile(file, pre_buffer=False)
                    for batch in parquet.iter_batches(_BATCH_ROWS, columns=list(columns) if columns else None):
                        yield self._completed(batch, columns)
                except pa.ArrowException as error:
                    raise ArtifactError(f"{key} cannot be read: {error}; `treadle verify` shows more") from error

    def _completed(self, batch: pa.RecordBatch, columns: Sequence[str] | None) -> pa.RecordBatch:
        """A batch of an earlier version with the columns that came later, all null."""
        if self._lacking is None:
            return batch
        for name in columns or self._lacking.names:
            if name not in batch.schema.names:
                field = self._lacking.field(name)
                batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
        return batch.select(list(columns or self._lacking.names))

    def matching(
        self, column: str, test: Callable[[pa.Array], pa.Array], columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of which the values of one column pass a test (an array -> a mask), in record batches.

        That column is looked through first; a file is hashed, and its other columns are read, only where something
        passes, row group by row group. So one question is found in a table of millions.
        """
        import pyarrow.parquet as pq

        wanted = None if columns is None else list(dict.fromkeys((column, *columns)))
        for entry in self.manifest.files:
            if not entry.name.endswith(".parquet"):
                continue
            key = f"{self._ref.folder}/{entry.name}"
            with storage_errors("read", key), self._storage.open(key) as file:
                try:
                    groups = self._row_groups_with(entry, file, column, test)
                    if not groups:
                        continue
                    parquet = pq.ParquetFile(file, pre_buffer=False)
                    for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=groups, columns=wanted):
                        if (found := batch.filter(test(batch[column]))).num_rows:
                            yield self._completed(found, wanted)
                except pa.ArrowException as error:
                    raise ArtifactError(f"{key} cannot be read: {error}; `treadle verify` shows more") from error

    def _row_groups_with(
        self, entry: FileEntry, file: io.BufferedIOBase, column: str, test: Callable[[pa.Array], pa.Array]
    ) -> list[int]:
        """Row groups of a file in which a value of the column passes; the file is sound where there are some."""
        import pyarrow.parquet as pq

        try:
            parquet = pq.ParquetFile(file, pre_buffer=False)
            groups = [index for index in range(parquet.num_row_groups) if _passes(parquet, index, column, test)]
        except (OSError, pa.ArrowException):
            file.seek(0)
            self._check(entry, file)  # What cannot be read has mostly changed: then that is what is said.
            raise
        if groups:
            file.seek(0)
            self._check(entry, file)
        return groups

    def _check(self, entry: FileEntry, file: io.BufferedIOBase) -> None:
        if entry.name not in self._sound:
            if not entry.matches(file):
                raise ArtifactError(
                    f"{self._ref.folder}/{entry.name} has changed since it was written; "
                    "`treadle verify` shows what else has, `--force` makes the stage's result again"
                )
            file.seek(0)
            self._sound.add(entry.name)

    def row_groups(self, columns: Sequence[str]) -> Iterator[tuple[tuple[str, int], pa.Table]]:
        """Columns of each row group with its place, to find rows by; files are not hashed, as in `matching`."""
        import pyarrow.parquet as pq

        for entry in self.manifest.files:
            if entry.name.endswith(".parquet"):
                with self._parquet_errors(entry.name) as file:
                    parquet = pq.ParquetFile(file, pre_buffer=False)
                    for group in range(parquet.num_row_groups):
                        yield (entry.name, group), parquet.read_row_group(group, columns=list(columns))

    def row_group(self, place: tuple[str, int], columns: Sequence[str]) -> pa.Table:
        """Columns of one row group; its file is hashed the first time. Columns of a later version are left out."""
        import pyarrow.parquet as pq

        name, group = place
        entry = next(entry for entry in self.manifest.files if entry.name == name)
        with self._parquet_errors(name) as file:
            self._check(entry, file)
            return pq.ParquetFile(file, pre_buffer=False).read_row_group(group, columns=list(columns))

    @contextlib.contextmanager
    def _parquet_errors(self, name: str) -> Iterator[io.BufferedIOBase]:
        """A data file, open."""
        key = f"{self._ref.folder}/{name}"
        with storage_errors("read", key), self._storage.open(key) as file:
            try:
                yield file
            except pa.ArrowException as error:
                raise ArtifactError(f"{key} cannot be read: {error}; `treadle verify` shows more") from error

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """The rows of `batches` as dictionaries."""
        for batch in self.batches(columns):
            yield from batch.to_pylist()

    def read_file(self, name: str) -> bytes:
        """Content of a further file; raises ArtifactError if there is none of that name."""
        entry = next((entry for entry in self.manifest.files if entry.name == name), None)
        content = self._storage.get(f"{self._ref.folder}/{name}") if entry else None
        if entry is None or content is None:
            raise ArtifactError(f"{self._ref.folder} has no file {name!r}; it has {', '.join(self.file_names())}")
        self._check(entry, io.BytesIO(content))
        return content

    def folder(self, name: str) -> Path:
        """Path of a folder of further files on this machine, fetched if it has to be; it is to be read only.

        Raises ArtifactError if there is none of that name, or if a file in it has changed.
        """
        entries = [entry for entry in self.manifest.files if entry.name.startswith(f"{name}/")]
        if not entries:
            raise ArtifactError(f"{self._ref.folder} has no folder {name!r}; it has {', '.join(self.file_names())}")
        for entry in entries:
            path = self._storage.bring(f"{self._ref.folder}/{entry.name}")
            with storage_errors("read", path), path.open("rb") as file:
                self._check(entry, file)
        return self._storage.bring(f"{self._ref.folder}/{entries[0].name}").parents[entries[0].name.count("/") - 1]

    def file_names(self) -> list[str]:
        """Names of the data files."""
        return [entry.name for entry in self.manifest.files]


def _passes(parquet: Any, row_group: int, column: str, test: Callable[[pa.Array], pa.Array]) -> bool:
    """Whether a value of the column passes in a row group."""
    import pyarrow.compute as pc

    values = parquet.read_row_group(row_group, columns=[column])[column]
    return any(pc.any(test(chunk)).as_py() for chunk in values.chunks)
