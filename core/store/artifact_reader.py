"""Read a committed artifact as a stream, and verify the hash of each data file before returning any of its rows."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from treadle.core.errors import ArtifactError
from treadle.core.store.artifacts import ArtifactRef, FileEntry, read_manifest
from treadle.core.store.roots import Storage
from treadle.core.store.storage import storage_errors
from treadle.core.tables import find_table

_BATCH_ROWS = 1024


class ArtifactReader:
    """A reader of a committed table."""

    def __init__(self, storage: Storage, ref: ArtifactRef) -> None:
        """Read the manifest; raise ArtifactError if it is missing, damaged, or of an unknown table or version."""
        self._storage = storage
        self._ref = ref
        self._sound: set[str] = set()
        self.manifest = read_manifest(storage, ref)
        self.kind = ref.kind
        self.digest = ref.digest
        self.num_rows = self.manifest.num_rows
        table, version = find_table(ref.kind), self.manifest.schema_version
        if table is None:
            raise ArtifactError(
                f"{ref.folder} holds table {ref.kind}, which no stage produces: install the package of its stage"
            )
        if version != table.version:
            raise ArtifactError(
                f"{ref.folder} holds table {ref.kind} in version {version}; "
                f"this Treadle reads version {table.version}: rerun the stage that produces it"
            )
        self._default_columns = table.visible if table.hidden else None

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield record batches of up to 1,024 rows in the stored order, holding one row group in memory at a time.

        By default they have all columns that are not hidden. Each file is hashed before its first row is yielded,
        because parquet itself does not detect a flipped bit. Raises ArtifactError if a file has changed.
        """
        import pyarrow.parquet as pq

        wanted = list(columns) if columns else self._default_columns
        for entry in self._parts():
            with self._parquet_errors(entry.name) as file:
                self._check(entry, file)
                parquet = pq.ParquetFile(file, pre_buffer=False)
                for group in range(parquet.num_row_groups):
                    # Without threads: one that still holds a Python file when the interpreter ends aborts the process.
                    # By group, because batches of several groups would hold all of them: rows can be large.
                    yield from parquet.iter_batches(_BATCH_ROWS, row_groups=[group], columns=wanted, use_threads=False)

    def matching(
        self, column: str, test: Callable[[pa.Array], pa.Array], columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows whose value in one column passes a test, in record batches; `test` maps an array to a mask.

        Scans that column first. A file is hashed, and its other columns are read, only if some of its row groups match.
        This finds one question in a table of millions of rows.
        """
        import pyarrow.parquet as pq

        wanted = self._default_columns if columns is None else list(dict.fromkeys((column, *columns)))
        for entry in self._parts():
            with self._parquet_errors(entry.name) as file:
                if groups := self._row_groups_with(entry, file, column, test):
                    parquet = pq.ParquetFile(file, pre_buffer=False)
                    for batch in parquet.iter_batches(
                        _BATCH_ROWS, row_groups=groups, columns=wanted, use_threads=False
                    ):
                        if (found := batch.filter(test(batch[column]))).num_rows:
                            yield found

    def _row_groups_with(
        self, entry: FileEntry, file: io.BufferedIOBase, column: str, test: Callable[[pa.Array], pa.Array]
    ) -> list[int]:
        """Return the row groups in which some value of the column passes; hash the file if there are any."""
        import pyarrow.parquet as pq

        try:
            parquet = pq.ParquetFile(file, pre_buffer=False)
            groups = [index for index in range(parquet.num_row_groups) if _passes(parquet, index, column, test)]
        except (OSError, pa.ArrowException):
            file.seek(0)
            self._check(entry, file)  # A file that cannot be parsed has usually changed; report that instead.
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
                    "`treadle verify` lists all changes, `--force` reruns the stage"
                )
            file.seek(0)
            self._sound.add(entry.name)

    def row_groups(self, columns: Sequence[str]) -> Iterator[tuple[tuple[str, int], pa.Table]]:
        """Yield chosen columns of each row group with its (file, index); like `matching`, without hashing the files."""
        import pyarrow.parquet as pq

        for entry in self._parts():
            with self._parquet_errors(entry.name) as file:
                parquet = pq.ParquetFile(file, pre_buffer=False)
                for group in range(parquet.num_row_groups):
                    yield (entry.name, group), parquet.read_row_group(group, columns=list(columns), use_threads=False)

    def row_group(self, place: tuple[str, int], columns: Sequence[str]) -> pa.Table:
        """Return chosen columns of one row group, hashing its file the first time."""
        import pyarrow.parquet as pq

        name, group = place
        entry = next(entry for entry in self.manifest.files if entry.name == name)
        with self._parquet_errors(name) as file:
            self._check(entry, file)
            return pq.ParquetFile(file, pre_buffer=False).read_row_group(
                group, columns=list(columns), use_threads=False
            )

    def _parts(self) -> Iterator[FileEntry]:
        return (entry for entry in self.manifest.files if entry.name.endswith(".parquet"))

    @contextlib.contextmanager
    def _parquet_errors(self, name: str) -> Iterator[io.BufferedIOBase]:
        """Open a data file and turn parquet errors into ArtifactError."""
        key = f"{self._ref.folder}/{name}"
        with storage_errors("read", key), self._storage.open(key) as file:
            try:
                yield file
            except pa.ArrowException as error:
                raise ArtifactError(f"{key} cannot be read: {error}; run `treadle verify` for details") from error

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the rows of `batches` as dictionaries."""
        for batch in self.batches(columns):
            yield from batch.to_pylist()

    def read_file(self, name: str) -> bytes:
        """Return the content of an extra file; raise ArtifactError if it does not exist or has changed."""
        entry = next((entry for entry in self.manifest.files if entry.name == name), None)
        content = self._storage.get(f"{self._ref.folder}/{name}") if entry else None
        if entry is None or content is None:
            raise ArtifactError(f"{self._ref.folder} has no file {name!r}; it has {', '.join(self.file_names())}")
        self._check(entry, io.BytesIO(content))
        return content

    def folder(self, name: str) -> Path:
        """Return the local path of a folder of extra files, fetching it if necessary; treat it as read-only.

        Raises ArtifactError if there is no such folder or a file in it has changed.
        """
        entries = [entry for entry in self.manifest.files if entry.name.startswith(f"{name}/")]
        if not entries:
            raise ArtifactError(f"{self._ref.folder} has no folder {name!r}; it has {', '.join(self.file_names())}")
        for entry in entries:
            path = self._storage.local_copy(f"{self._ref.folder}/{entry.name}")
            with storage_errors("read", path), path.open("rb") as file:
                self._check(entry, file)
        return self._storage.local_copy(f"{self._ref.folder}/{entries[0].name}").parents[entries[0].name.count("/") - 1]

    def file_names(self) -> list[str]:
        """Return the names of the data files."""
        return [entry.name for entry in self.manifest.files]


def _passes(parquet: Any, row_group: int, column: str, test: Callable[[pa.Array], pa.Array]) -> bool:
    """Return whether any value of the column passes in a row group."""
    import pyarrow.compute as pc

    values = parquet.read_row_group(row_group, columns=[column], use_threads=False)[column]
    return any(pc.any(test(chunk)).as_py() for chunk in values.chunks)
