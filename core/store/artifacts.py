"""Write, read and verify artifacts: immutable tables named by a digest of their content.

An artifact is a folder `artifacts/<kind>/<digest>` with parquet parts in `data/`, extra files, a data set card and
`artifact.json`. It is published atomically and never changes. Its digest covers the data files only, so equal rows give
an equal name, whenever and however they were made.
"""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from treadle.core.errors import ArtifactError
from treadle.core.store.parquet import DATA_FOLDER, TableWriter
from treadle.core.store.roots import Storage
from treadle.core.store.storage import storage_errors
from treadle.core.tables import Table

_MANIFEST = "artifact.json"
_CARD = "README.md"


class ArtifactRef(BaseModel):
    """A reference to an artifact, as records store it; sufficient to find and verify it."""

    # `ignore`: a newer Treadle may add keys, as in the records that hold this.
    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: str
    digest: str
    """16 hex digits."""
    num_rows: int
    num_bytes: int
    """Size of the data files."""

    @property
    def folder(self) -> str:
        """Key of the artifact's folder, relative to the root."""
        return f"artifacts/{self.kind}/{self.digest}"


class FileEntry(BaseModel):
    """One data file of an artifact."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    """Path relative to the artifact's folder."""
    sha256: str
    num_bytes: int

    def matches(self, file: io.BufferedIOBase) -> bool:
        """Return whether the remaining content of an open file has the recorded hash."""
        return _sha256(file) == self.sha256


class Manifest(BaseModel):
    """The content of `artifact.json`, which is written last."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: str
    schema_version: int
    digest: str
    num_rows: int
    num_bytes: int
    made_by: str
    """Fingerprint of the stage instance that first made the artifact."""
    files: tuple[FileEntry, ...]

    def ref(self) -> ArtifactRef:
        """Return the reference that records store."""
        return ArtifactRef(kind=self.kind, digest=self.digest, num_rows=self.num_rows, num_bytes=self.num_bytes)


class ArtifactWriter:
    """A writer of one artifact: call `write` repeatedly, then `commit` or `abandon`."""

    def __init__(self, storage: Storage, table: Table, *, made_by: str, work: str | None = None) -> None:
        """Prepare a working folder.

        `made_by` is the fingerprint for the manifest, `work` the key of the folder in which to prepare the artifact.
        """
        self._storage = storage
        self._table = table
        self._made_by = made_by
        self._folder = storage.prepare(work or f"artifacts/{table.kind}")
        self._writer = TableWriter(table, self._folder)
        self._extra: list[str] = []

    @property
    def num_rows(self) -> int:
        """Number of rows written so far."""
        return self._writer.num_rows

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows; raise ArtifactError if one does not fit the table or repeats a key."""
        self._writer.write(rows)

    def add_file(self, name: str, content: bytes) -> None:
        """Add an extra file, which becomes part of the digest; raise ArtifactError if the name is not allowed."""
        self._check_name(name)
        with storage_errors("write", self._folder / name):
            (self._folder / name).write_bytes(content)
        self._extra.append(name)

    def add_folder(self, name: str, source: Path) -> None:
        """Move a folder, such as a model, into the artifact; its files become part of the digest.

        Raises ArtifactError if the name is not allowed or the folder holds anything but regular files and folders.
        """
        self._check_name(name)
        files = sorted(path for path in source.rglob("*") if not path.is_dir() or path.is_symlink())
        if strange := next((path for path in files if path.is_symlink() or not path.is_file()), None):
            raise ArtifactError(f"{strange} is not a regular file; cannot add {source} to artifact {self._table.kind}")
        with storage_errors("write", self._folder / name):
            shutil.move(source, self._folder / name)
        self._extra += [f"{name}/{path.relative_to(source)}" for path in files]

    def _check_name(self, name: str) -> None:
        taken = {_MANIFEST, _CARD, DATA_FOLDER, *(extra.partition("/")[0] for extra in self._extra)}
        if not name or Path(name).name != name or name.startswith(".") or name.endswith(".parquet") or name in taken:
            raise ArtifactError(f"{name!r} cannot be used as a file name in artifact {self._table.kind}")

    def commit(self) -> ArtifactRef:
        """Publish the artifact under its digest; if a sound copy is already there, drop this one."""
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
            (self._folder / _CARD).write_text(data_set_card(self._table, manifest), encoding="utf-8")
            (self._folder / _MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        ref = manifest.ref()
        # The manifest appears last. So a folder that has one now and fails verification is damaged and gets replaced;
        # one that another run publishes from now on is sound.
        damaged = any(self._storage.keys(ref.folder)) and bool(verify_artifact(self._storage, ref))
        self._storage.publish(self._folder, ref.folder, _MANIFEST, replace=damaged)
        return ref

    def abandon(self) -> None:
        """Delete the files written so far."""
        self._writer.abandon()
        shutil.rmtree(self._folder, ignore_errors=True)


def read_manifest(storage: Storage, ref: ArtifactRef) -> Manifest:
    """Read `artifact.json`; raise ArtifactError if it is missing or damaged."""
    content = storage.get(f"{ref.folder}/{_MANIFEST}")
    if content is None:
        raise ArtifactError(f"artifact {ref.folder} is missing; rerun the stage that produces it")
    manifest = parse_manifest(content, f"{ref.folder}/{_MANIFEST}")
    if manifest.ref() != ref:
        raise ArtifactError(f"{ref.folder}/{_MANIFEST} is damaged: its file list does not match its digest")
    return manifest


def parse_manifest(content: bytes, where: str) -> Manifest:
    """Parse the `artifact.json` at `where`; raise ArtifactError if it is damaged."""
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        raise ArtifactError(f"{where} is damaged: {error.errors()[0]['msg']}") from None
    if _digest(manifest.files) != manifest.digest:
        raise ArtifactError(f"{where} is damaged: its file list does not match its digest")
    if old := next((one.name for one in manifest.files if one.name.endswith(".parquet") and "/" not in one.name), ""):
        raise ArtifactError(
            f"{where} lists {old}, as earlier versions of Treadle did; this one reads {DATA_FOLDER}/{old}: rerun the "
            "stage that produces it"
        )
    return manifest


def artifact_exists(storage: Storage, ref: ArtifactRef) -> bool:
    """Return whether the artifact is published and its files have their recorded sizes, without hashing them."""
    try:
        manifest = read_manifest(storage, ref)
    except ArtifactError:
        return False
    return all(_size(storage, f"{ref.folder}/{entry.name}") == entry.num_bytes for entry in manifest.files)


def _size(storage: Storage, key: str) -> int | None:
    """Return the size of an object in bytes, or None if it does not exist."""
    if not storage.exists(key):
        return None
    with storage_errors("read", key), storage.open(key) as file:
        return file.seek(0, io.SEEK_END)


def verify_artifact(storage: Storage, ref: ArtifactRef) -> list[str]:
    """Hash the data files again; return one sentence per difference, none if nothing has changed."""
    try:
        manifest = read_manifest(storage, ref)
    except ArtifactError as error:
        return [str(error)]
    return changed_files(storage, manifest, ref.folder)


def changed_files(storage: Storage, manifest: Manifest, folder: str = "") -> list[str]:
    """Hash the data files of a manifest in `folder` again; return one sentence per difference."""
    problems = []
    for entry in manifest.files:
        key = f"{folder}/{entry.name}" if folder else entry.name
        if not storage.exists(key):
            problems.append(f"{key} is missing")
            continue
        with storage_errors("read", key), storage.open(key) as file:
            if not entry.matches(file):
                problems.append(f"{key} has changed since it was written")
    return problems


def _entry(folder: Path, name: str) -> FileEntry:
    path = folder / name
    with path.open("rb") as file:
        return FileEntry(name=name, sha256=_sha256(file), num_bytes=path.stat().st_size)


def _sha256(file: io.BufferedIOBase) -> str:
    """Return the hex SHA-256 of the remaining content of an open file."""
    return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(entries: Sequence[FileEntry]) -> str:
    """Return 16 hex digits over the sorted names and hashes of the data files."""
    lines = sorted(f"{entry.name} {entry.sha256}\n" for entry in entries)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def data_set_card(table: Table, manifest: Manifest, schema: pa.Schema | None = None) -> str:
    """Return the data set card, whose front matter makes `datasets.load_dataset(folder)` work.

    `schema` has the columns of a copy, if they differ from those of the table.
    """
    schema = schema or table.schema
    doc = {field.name: (field.metadata or {}).get(b"doc", b"").decode() for field in schema}
    lines = [
        "---",
        "configs:",
        "- config_name: default",
        '  data_files: "data/*.parquet"',
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
            for field in schema
        ),
        "",
        'Read it with `datasets.load_dataset(folder)`, `pandas.read_parquet(folder + "/data")`,',
        "`polars.read_parquet(folder + \"/data\")` or `SELECT * FROM 'data/*.parquet'` in DuckDB.",
        "",
    ]
    return "\n".join(lines)
