"""Artifacts: immutable tables, named by what they contain.

An artifact is a folder `artifacts/<kind>/<digest>` with parquet parts, further files, a data set card and
`artifact.json`. It appears by one rename and never changes. Its digest covers the data files alone, so the same rows
give the same name, however and whenever they were made.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from treadle.core.errors import ArtifactError
from treadle.core.parquet import TableWriter
from treadle.core.schemas import TABLES, Table
from treadle.core.storage import Storage, storage_errors

_MANIFEST = "artifact.json"
_CARD = "README.md"
_BATCH_ROWS = 1024


class ArtifactRef(BaseModel):
    """What a record says of an artifact; enough to find and to check it."""

    # `ignore`: a newer Treadle may add keys, as in the records that hold this.
    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: str
    digest: str
    """16 hex digits."""
    num_rows: int
    num_bytes: int
    """Of the data files."""

    @property
    def folder(self) -> str:
        """Key of the artifact's folder, relative to the root."""
        return f"artifacts/{self.kind}/{self.digest}"


class FileEntry(BaseModel):
    """One data file of an artifact."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    """Relative to the artifact's folder."""
    sha256: str
    num_bytes: int


class Manifest(BaseModel):
    """Content of `artifact.json`, written last."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: str
    schema_version: int
    digest: str
    num_rows: int
    num_bytes: int
    made_by: str
    """Fingerprint of the stage instance that made it first."""
    files: tuple[FileEntry, ...]

    def ref(self) -> ArtifactRef:
        """The reference that a record keeps."""
        return ArtifactRef(kind=self.kind, digest=self.digest, num_rows=self.num_rows, num_bytes=self.num_bytes)


class ArtifactWriter:
    """Writes one artifact: rows as they come, then `commit` (or `abandon`)."""

    def __init__(self, storage: Storage, table: Table, *, made_by: str, work: str | None = None) -> None:
        """`made_by`: fingerprint for the manifest; `work`: key of the folder in which to prepare it."""
        self._storage = storage
        self._table = table
        self._made_by = made_by
        self._folder = storage.prepare(work or f"artifacts/{table.kind}")
        self._writer = TableWriter(table, self._folder)
        self._extra: list[str] = []

    @property
    def num_rows(self) -> int:
        """Rows taken so far."""
        return self._writer.num_rows

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows; raises ArtifactError for one that does not fit the table or repeats a key."""
        self._writer.write(rows)

    def add_file(self, name: str, content: bytes) -> None:
        """Add a further file, which is part of the digest; raises ArtifactError for a name that is not plain."""
        self._check_name(name)
        with storage_errors("write", self._folder / name):
            (self._folder / name).write_bytes(content)
        self._extra.append(name)

    def add_folder(self, name: str, source: Path) -> None:
        """Move a folder with all that is in it, such as a model, into the artifact; its files are part of the digest.

        Raises ArtifactError for a name that is not plain, and for anything in it that is no regular file.
        """
        self._check_name(name)
        files = sorted(path for path in source.rglob("*") if not path.is_dir() or path.is_symlink())
        if strange := next((path for path in files if path.is_symlink() or not path.is_file()), None):
            raise ArtifactError(f"{strange} is no regular file, so {source} cannot go into artifact {self._table.kind}")
        with storage_errors("write", self._folder / name):
            shutil.move(source, self._folder / name)
        self._extra += [f"{name}/{path.relative_to(source)}" for path in files]

    def _check_name(self, name: str) -> None:
        taken = {_MANIFEST, _CARD, *(extra.partition("/")[0] for extra in self._extra)}
        if not name or Path(name).name != name or name.startswith((".", "part-")) or name in taken:
            raise ArtifactError(f"{name!r} cannot be the name of a further file in artifact {self._table.kind}")

    def commit(self) -> ArtifactRef:
        """Make the artifact appear under its digest; where it is there already, ours is dropped."""
        self._writer.close()
        with storage_errors("write", self._folder):
            entries = tuple(_entry(self._folder, name) for name in sorted([*self._writer.files, *self._extra]))
            manifest = Manifest(
                kind=self._table.kind,
                schema_version=self._table.version,
                digest=_digest(entries),
                num_rows=self.num_rows,
                num_bytes=sum(entry.num_bytes for entry in entries),
                made_by=self._made_by,
                files=entries,
            )
            (self._folder / _CARD).write_text(_card(self._table, manifest), encoding="utf-8")
            (self._folder / _MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        ref = manifest.ref()
        # A manifest appears last, so a folder that has one now and is unsound is damaged; one that appears later, made
        # by another run, is sound.
        damaged = any(self._storage.keys(ref.folder)) and bool(verify_artifact(self._storage, ref))
        self._storage.publish(self._folder, ref.folder, _MANIFEST, replace=damaged)
        return ref

    def abandon(self) -> None:
        """Remove what was written."""
        self._writer.abandon()
        shutil.rmtree(self._folder, ignore_errors=True)


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
            if _sha256(file) != entry.sha256:
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


def read_manifest(storage: Storage, ref: ArtifactRef) -> Manifest:
    """Read `artifact.json`; raises ArtifactError where it is missing or not one."""
    content = storage.get(f"{ref.folder}/{_MANIFEST}")
    if content is None:
        raise ArtifactError(f"artifact {ref.folder} is missing; run the stage that makes it again")
    manifest = parse_manifest(content, f"{ref.folder}/{_MANIFEST}")
    if manifest.ref() != ref:
        raise ArtifactError(f"{ref.folder}/{_MANIFEST} is damaged: it does not list the files that gave the digest")
    return manifest


def parse_manifest(content: bytes, where: str) -> Manifest:
    """The content of an `artifact.json` that lies at `where`; raises ArtifactError for one that is damaged."""
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        raise ArtifactError(f"{where} is damaged: {error.errors()[0]['msg']}") from None
    if _digest(manifest.files) != manifest.digest:
        raise ArtifactError(f"{where} is damaged: it does not list the files that gave the digest")
    return manifest


def artifact_exists(storage: Storage, ref: ArtifactRef) -> bool:
    """Whether the artifact has been published and its files still have their sizes; `verify_artifact` reads them."""
    try:
        manifest = read_manifest(storage, ref)
    except ArtifactError:
        return False
    return all(_size(storage, f"{ref.folder}/{entry.name}") == entry.num_bytes for entry in manifest.files)


def _size(storage: Storage, key: str) -> int | None:
    """Bytes of an object, or None where there is none."""
    if not storage.exists(key):
        return None
    with storage_errors("read", key), storage.open(key) as file:
        return file.seek(0, io.SEEK_END)


def verify_artifact(storage: Storage, ref: ArtifactRef) -> list[str]:
    """Hash the data files again; one sentence per difference, empty where all is as it was written."""
    try:
        manifest = read_manifest(storage, ref)
    except ArtifactError as error:
        return [str(error)]
    return changed_files(storage, manifest, ref.folder)


def changed_files(storage: Storage, manifest: Manifest, folder: str = "") -> list[str]:
    """Hash the data files that a manifest lists, which lies in `folder`; one sentence per difference."""
    problems = []
    for entry in manifest.files:
        key = f"{folder}/{entry.name}" if folder else entry.name
        if not storage.exists(key):
            problems.append(f"{key} is missing")
            continue
        with storage_errors("read", key), storage.open(key) as file:
            if _sha256(file) != entry.sha256:
                problems.append(f"{key} has changed since it was written")
    return problems


def _entry(folder: Path, name: str) -> FileEntry:
    path = folder / name
    with path.open("rb") as file:
        return FileEntry(name=name, sha256=_sha256(file), num_bytes=path.stat().st_size)


def _sha256(file: io.BufferedIOBase) -> str:
    """Hex digest of the rest of an open file."""
    return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(entries: Sequence[FileEntry]) -> str:
    """16 hex digits over the sorted names and hashes of the data files."""
    lines = sorted(f"{entry.name} {entry.sha256}\n" for entry in entries)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def _card(table: Table, manifest: Manifest) -> str:
    """A data set card: the front matter makes `datasets.load_dataset(folder)` work."""
    doc = {field.name: (field.metadata or {}).get(b"doc", b"").decode() for field in table.schema}
    lines = [
        "---",
        "configs:",
        "- config_name: default",
        '  data_files: "part-*.parquet"',
        "---",
        "",
        f"# {table.kind}",
        "",
        table.description,
        "",
        f"{manifest.num_rows} rows; table version {manifest.schema_version}; digest `{manifest.digest}`; "
        f"a row is identified by {', '.join(f'`{name}`' for name in table.key)}.",
        "",
        "| column | type | may be null | meaning |",
        "|---|---|---|---|",
        *(
            f"| `{field.name}` | {field.type} | {'yes' if field.nullable else 'no'} | {doc[field.name]} |"
            for field in table.schema
        ),
        "",
        'Read it with `datasets.load_dataset(folder)`, `pandas.read_parquet(sorted(glob("part-*.parquet")))`,',
        "`polars.read_parquet(\"part-*.parquet\")` or `SELECT * FROM 'part-*.parquet'` in DuckDB.",
        "",
    ]
    return "\n".join(lines)
