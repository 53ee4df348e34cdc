"""Read a `web_record` artifact by key.

Reading a row group of the table takes 100 ms, so a record is unpacked once per machine, into the cache: `bodies.bin`
contains the entries back to back, `index.bin` their places by key, and `loose.bin` the numbers of entries by loose key.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import io
import mmap
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.core.cache_folders import fill_folder
from treadle.core.engines.cache import cache_lock, cache_root
from treadle.core.errors import ArtifactError
from treadle.core.store.artifacts import Manifest, parse_manifest
from treadle.core.store.roots import Storage, is_object_store, open_storage
from treadle.core.store.storage import storage_errors
from treadle.core.untrusted.confined_rows import MAX_UNPACKED_BYTES, UnreadableInput, UnreadableRow, read_parquet
from treadle.web.record.stored_entries import packed, unpacked
from treadle.web.record.table import entry_of
from treadle.web.record.tables import WEB_RECORD
from treadle.web.types import MAX_TEXT_CHARS, Entry, SearchEntry

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_RECORDS = 4
"""Number of records that stay unpacked on a machine."""
_PLACE = struct.Struct("<16sQI")
_LOOSE = struct.Struct("<16sQ")
_KEY_BYTES = 16
_MAX_VALUE_BYTES = 4 * MAX_TEXT_CHARS
_MAX_HITS_BYTES = 2 * 1024 * 1024
_MAX_GROWTH = 200
_ALWAYS_UNPACKED_BYTES = 1024**3
"""Bytes that any record may unpack to; a record may also unpack to `_MAX_GROWTH` times the size of its artifact."""
_MANIFEST = "artifact.json"
_UNPACKED = re.compile(r"[0-9a-f]{16}")


def record_digest(location: str | Path) -> str:
    """Return the digest of the record in a folder (a path or `s3://`), from its manifest. Raises ArtifactError.

    If the record no longer exists, the folder's name is returned if it is a digest, as `treadle export` names it.
    Results made with the record are then still recognised, and only reading it raises an error.
    """
    storage = open_storage(location)
    try:
        return record_manifest(storage).digest
    except ArtifactError:
        name = Path(location).name
        if _UNPACKED.fullmatch(name) and _has_vanished(storage):
            return name
        raise


def _has_vanished(storage: Storage) -> bool:
    """Return whether nothing is there, not even a folder without a manifest (object stores have no such folders)."""
    place = storage.location()
    return storage.get(_MANIFEST) is None and (is_object_store(place) or not Path(place).exists())


def open_record(location: str | Path) -> RecordFolder:
    """Open the record in a folder (a path or `s3://`), unpacking it if this machine has not done so.

    Raises ArtifactError if there is no record or it has changed, and StorageError if reading fails.
    """
    storage = open_storage(location)
    manifest = record_manifest(storage)
    root = cache_root() / "web"
    folder = root / manifest.digest
    # One lock for all records, so that no record is removed between finding and opening it.
    with cache_lock(root / "records"), storage_errors("unpack a web record into", folder):
        if not folder.is_dir():
            fill_folder(folder, lambda part: _write_unpacked(storage, manifest, part))
        os.utime(folder)
        _drop_unused(root)
        return RecordFolder(storage.location(), manifest.digest, folder)


class RecordFolder:
    """Record whose entries are read by key; only its index is mapped into memory. Thread-safe."""

    def __init__(self, location: str, digest: str, unpacked_in: Path) -> None:
        """Open the files in `unpacked_in`, made by `open_record`. Raises OSError, also if it was removed meanwhile."""
        self.location = location
        """Location of the artifact, for messages."""
        self.digest = digest
        self._unpacked_in = unpacked_in
        with contextlib.ExitStack() as stack:
            self._bodies = stack.enter_context((unpacked_in / "bodies.bin").open("rb"))
            self._index = _Rows(unpacked_in / "index.bin", _PLACE)
            self._loose = _Rows(unpacked_in / "loose.bin", _LOOSE)
            stack.pop_all()

    def __len__(self) -> int:
        return len(self._index)

    def get(self, key: str) -> Entry | None:
        """Return the entry with this key, or None. Raises ArtifactError if the unpacked record is damaged."""
        number = self._index.find(bytes.fromhex(key))
        return None if number is None else self._entry(number)

    def loose(self, key: str) -> SearchEntry | None:
        """Return the imported search with this loose key (of several, the one with the lowest key), or None."""
        number = self._loose.find(bytes.fromhex(key))
        entry = None if number is None else self._entry(self._loose.row(number)[1])
        return entry if isinstance(entry, SearchEntry) else None

    def entries(self) -> Iterator[tuple[Entry, str | None]]:
        """Yield all entries in the order of their keys, each with its loose key, as `write_record` expects them."""
        loose_keys = {number: key.hex() for key, number in map(self._loose.row, range(len(self._loose)))}
        for number in range(len(self._index)):
            yield self._entry(number), loose_keys.get(number)

    def _entry(self, number: int) -> Entry:
        _, offset, length = self._index.row(number)
        with storage_errors("read", self._unpacked_in):
            value = os.pread(self._bodies.fileno(), length, offset)
        return unpacked(value, str(self._unpacked_in))

    def close(self) -> None:
        """Close the files."""
        self._bodies.close()
        self._index.close()
        self._loose.close()


class _Rows:
    """Memory-mapped file of sorted rows of equal length that begin with a key."""

    def __init__(self, path: Path, layout: struct.Struct) -> None:
        self._layout = layout
        with path.open("rb") as file:
            # An empty file cannot be mapped.
            empty = os.fstat(file.fileno()).st_size == 0
            self._data: Any = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._data) // self._layout.size

    def row(self, number: int) -> tuple[Any, ...]:
        return self._layout.unpack_from(self._data, number * self._layout.size)

    def find(self, key: bytes) -> int | None:
        """Return the number of the first row with this key, or None."""
        number = bisect.bisect_left(range(len(self)), key, key=self._key)
        return number if number < len(self) and self._key(number) == key else None

    def _key(self, number: int) -> bytes:
        start = number * self._layout.size
        return bytes(self._data[start : start + _KEY_BYTES])

    def close(self) -> None:
        if isinstance(self._data, mmap.mmap):
            self._data.close()


def record_manifest(storage: Storage) -> Manifest:
    """Return the manifest of the record in a folder. Raises ArtifactError if it is missing or of another version."""
    place = storage.location()
    content = storage.get(_MANIFEST)
    if content is None and not is_object_store(place) and not Path(place).exists():
        raise ArtifactError(
            f"there is no web record at {place}: no such folder; if it was moved, name its new place with "
            "--set environment.search.web.recorded_in=<folder>"
        )
    if content is None:
        raise ArtifactError(
            f"{place} is no web record: it has no {_MANIFEST}; "
            "`treadle export web_record --run <run>` makes one, and prints its folder"
        )
    manifest = parse_manifest(content, storage.location(_MANIFEST))
    if manifest.kind != WEB_RECORD.kind:
        raise ArtifactError(
            f"{place} holds {manifest.kind}, no web record; `treadle export web_record --run <run>` makes one"
        )
    if manifest.schema_version != WEB_RECORD.version:
        raise ArtifactError(
            f"{place} holds a web record in version {manifest.schema_version}; this Treadle reads version "
            f"{WEB_RECORD.version}: export it again from its run"
        )
    return manifest


def _write_unpacked(storage: Storage, manifest: Manifest, folder: Path) -> None:
    loose, offset, last, num_rows = list[tuple[bytes, int]](), 0, b"", 0
    most = max(_ALWAYS_UNPACKED_BYTES, _MAX_GROWTH * sum(entry.num_bytes for entry in manifest.files))
    with (folder / "bodies.bin").open("wb") as bodies, (folder / "index.bin").open("wb") as index:
        for number, row in enumerate(_rows(storage, manifest)):
            entry = entry_of(row)
            key, value = bytes.fromhex(entry.key), packed(entry)
            if key <= last:
                raise ArtifactError(f"{storage.location()} is not sorted by key; export it again from its run")
            last = key
            index.write(_PLACE.pack(key, offset, len(value)))
            bodies.write(value)
            offset += len(value)
            if offset > most:
                raise ArtifactError(
                    f"{storage.location()} is no record of pages: it decompresses to more than {most:,} bytes"
                )
            num_rows += 1
            if row.get("loose_key") is not None:
                loose.append((_loose_key(str(row["loose_key"])), number))
    if num_rows != manifest.num_rows:
        raise ArtifactError(
            f"{storage.location()} has {num_rows:,} rows instead of {manifest.num_rows:,}; copy it again"
        )
    (folder / "loose.bin").write_bytes(b"".join(_LOOSE.pack(*pair) for pair in sorted(loose)))


def _loose_key(text: str) -> bytes:
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        raise ArtifactError("a row of a web record cannot be read: its loose key is invalid")
    return bytes.fromhex(text)


def _rows(storage: Storage, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table; each file is hashed before its first row is read."""
    for entry in manifest.files:
        if not entry.name.endswith(".parquet"):
            continue
        place = storage.location(entry.name)
        if not storage.exists(entry.name):
            raise ArtifactError(f"{place} is missing: copy the whole folder of the record, or export it from its run")
        with storage_errors("read", place), storage.open(entry.name) as file:
            is_same = hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
            if not is_same or file.tell() != entry.num_bytes:
                raise ArtifactError(f"{place} has changed since it was written; export the record again from its run")
            file.seek(0)
            try:
                with _with_descriptor(file) as described:
                    for part in read_parquet(
                        described, columns=WEB_RECORD.schema.names, max_unpacked_bytes=MAX_UNPACKED_BYTES
                    ):
                        yield from _texts(part)
            except UnreadableInput as error:
                raise ArtifactError(f"{place} cannot be read as a web record: {error}") from None


@contextlib.contextmanager
def _with_descriptor(file: io.BufferedIOBase) -> Iterator[Any]:
    """Yield the file, or a local copy of a file in an object store, which has no descriptor."""
    try:
        file.fileno()
    except OSError:
        with tempfile.TemporaryFile(dir=cache_root()) as copy:
            shutil.copyfileobj(file, copy)
            copy.seek(0)
            yield copy
    else:
        yield file


def _texts(part: pa.RecordBatch | UnreadableRow) -> list[dict[str, Any]]:
    """Return the rows of a part of the table. Raises UnreadableInput for a value that is not text or is too long."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(part, UnreadableRow):
        raise UnreadableInput(part.detail)
    for name, column in zip(part.schema.names, part.columns, strict=True):
        if not pa.types.is_string(column.type):
            raise UnreadableInput(f"column {name} is {column.type}, not text")
        limit = _MAX_HITS_BYTES if name == "hits" else _MAX_VALUE_BYTES
        longest = pc.max(pc.binary_length(column)).as_py() or 0
        if longest > limit:
            raise UnreadableInput(f"a value of column {name} has {longest:,} bytes, more than {limit:,}")
    rows: list[dict[str, Any]] = part.to_pylist()
    return rows


def _drop_unused(root: Path) -> None:
    """Remove the unpacked records that were used longest ago; processes that have one open can continue to read it."""
    records = [path for path in root.iterdir() if _UNPACKED.fullmatch(path.name)]
    records.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in records[KEPT_RECORDS:]:
        shutil.rmtree(path, ignore_errors=True)
