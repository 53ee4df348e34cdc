"""A `web_record` artifact, read by key.

A row group of the table takes 100 ms to read, so a record is unpacked once per machine, into the cache: `bodies.bin`
holds its entries one behind the other, `index.bin` where they lie, by key, `loose.bin` which of them have loose keys.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import mmap
import os
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treadle.agent.web.record_pages import check_pages
from treadle.agent.web.record_table import entry_of
from treadle.agent.web.stored_entries import packed, unpacked
from treadle.agent.web.types import MAX_TEXT_CHARS, Entry, SearchEntry
from treadle.core.artifacts import Manifest, parse_manifest
from treadle.core.engines.cache import cache_lock, cache_root
from treadle.core.errors import ArtifactError
from treadle.core.harmless import one_line
from treadle.core.parquet import ROW_GROUP_BYTES
from treadle.core.schemas import WEB_RECORD
from treadle.core.storage import Storage, force_folder_to_disk, is_object_store, open_storage, storage_errors

KEPT_RECORDS = 4
"""Records that stay unpacked on a machine."""
_PLACE = struct.Struct("<16sQI")
_LOOSE = struct.Struct("<16sQ")
_KEY_BYTES = 16
_ROWS_AT_ONCE = 16
_MAX_GROUP_BYTES = 5 * ROW_GROUP_BYTES
"""Of a row group before it is packed: such as Treadle writes have a fifth of it in characters, of 4 bytes at most."""
_MAX_VALUE_BYTES = 4 * MAX_TEXT_CHARS
_MAX_HITS_BYTES = 2 * 1024 * 1024
_MAX_GROWTH = 200
_ALWAYS_UNPACKED_BYTES = 1024**3
"""A record unpacks to this much at most, and a larger artifact to so many times its size."""
_MANIFEST = "artifact.json"
_UNPACKED = re.compile(r"[0-9a-f]{16}")


def record_digest(location: str | Path) -> str:
    """Digest of the record in a folder, on a path or `s3://`; only its manifest is read. Raises ArtifactError.

    Of a record that has vanished it is the folder's name, where that is a digest, as `treadle export` names it: what
    was made with it is then still known as made, and whoever wants to read it is told that it is gone.
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
    """Whether nothing is there, not even a folder without a manifest (which object stores do not know)."""
    place = storage.location()
    return storage.get(_MANIFEST) is None and (is_object_store(place) or not Path(place).exists())


def open_record(location: str | Path) -> RecordFolder:
    """The record in a folder, on a path or `s3://`; it is unpacked where this machine has not done so.

    Raises ArtifactError for what is no record, or one that has changed, StorageError where the medium fails.
    """
    storage = open_storage(location)
    manifest = record_manifest(storage)
    root = cache_root() / "web"
    folder = root / manifest.digest
    # One lock for all: none is removed between the moment it is found and the moment it is opened.
    with cache_lock(root / "records"), storage_errors("unpack a web record into", folder):
        if not folder.is_dir():
            _unpack(storage, manifest, folder)
        os.utime(folder)
        _drop_unused(root)
        return RecordFolder(storage.location(), manifest.digest, folder)


class RecordFolder:
    """Entries of a record by their keys; an index in shared memory, no entries. Safe for threads."""

    def __init__(self, location: str, digest: str, unpacked_in: Path) -> None:
        """`unpacked_in`: as `open_record` made it; it may be removed while it is open. Raises OSError."""
        self.location = location
        """Where the artifact lies, for people."""
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
        """The entry with this key, or None; raises ArtifactError where the unpacked record is damaged."""
        number = self._index.find(bytes.fromhex(key))
        return None if number is None else self._entry(number)

    def loose(self, key: str) -> SearchEntry | None:
        """The imported search with this loose key (of several, the one with the lowest key), or None."""
        number = self._loose.find(bytes.fromhex(key))
        entry = None if number is None else self._entry(self._loose.row(number)[1])
        return entry if isinstance(entry, SearchEntry) else None

    def entries(self) -> Iterator[tuple[Entry, str | None]]:
        """All entries in the order of their keys, each with its loose key: what `write_record` takes."""
        loose_keys = {number: key.hex() for key, number in map(self._loose.row, range(len(self._loose)))}
        for number in range(len(self._index)):
            yield self._entry(number), loose_keys.get(number)

    def _entry(self, number: int) -> Entry:
        _, offset, length = self._index.row(number)
        with storage_errors("read", self._unpacked_in):
            value = os.pread(self._bodies.fileno(), length, offset)
        return unpacked(value, str(self._unpacked_in))

    def close(self) -> None:
        """Let go of the files."""
        self._bodies.close()
        self._index.close()
        self._loose.close()


class _Rows:
    """A file of rows of one length that begin with a key, sorted, mapped into memory."""

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
        """Number of the first row with this key, or None."""
        number = bisect.bisect_left(range(len(self)), key, key=self._key)
        return number if number < len(self) and self._key(number) == key else None

    def _key(self, number: int) -> bytes:
        start = number * self._layout.size
        return bytes(self._data[start : start + _KEY_BYTES])

    def close(self) -> None:
        if isinstance(self._data, mmap.mmap):
            self._data.close()


def record_manifest(storage: Storage) -> Manifest:
    """The manifest of the record in a folder; raises ArtifactError where there is none."""
    place = storage.location()
    content = storage.get(_MANIFEST)
    if content is None and not is_object_store(place) and not Path(place).exists():
        raise ArtifactError(
            f"there is no web record at {place}: no such folder; where it was moved, name its place with "
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


def _unpack(storage: Storage, manifest: Manifest, folder: Path) -> None:
    temporary = folder.with_name(f".tmp-{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        _write_unpacked(storage, manifest, temporary)
        force_folder_to_disk(temporary)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_unpacked(storage: Storage, manifest: Manifest, folder: Path) -> None:
    loose, offset, last = list[tuple[bytes, int]](), 0, b""
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
                    f"{storage.location()} is no record of pages: it unpacks to more than {most:,} bytes"
                )
            if row.get("loose_key") is not None:
                loose.append((_loose_key(str(row["loose_key"])), number))
    (folder / "loose.bin").write_bytes(b"".join(_LOOSE.pack(*pair) for pair in sorted(loose)))


def _loose_key(text: str) -> bytes:
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        raise ArtifactError("a row of a web record cannot be read: its loose key is none")
    return bytes.fromhex(text)


def _rows(storage: Storage, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Rows of the table; each of its files is hashed before its first row is read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

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
                check_pages(file, max_group_bytes=_MAX_GROUP_BYTES)
                table = pq.ParquetFile(file, pre_buffer=False)
                names = _columns(table, place)
                # As dictionaries, a text that stands in many rows is held once until it is known to be short.
                parquet = pq.ParquetFile(file, metadata=table.metadata, pre_buffer=False, read_dictionary=names)
                for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=names):
                    yield from _short_texts(batch, place).to_pylist()
            except (pa.ArrowException, OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # the medium's, and not pyarrow's of what it reads
                raise ArtifactError(f"{place} cannot be read as a web record: {one_line(str(error))}") from None


def _columns(table: Any, place: str) -> list[str]:
    """The columns to read; raises ArtifactError where one is no text."""
    import pyarrow as pa

    wanted = [field for field in table.schema_arrow if field.name in WEB_RECORD.schema.names]
    for field in wanted:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if not pa.types.is_string(kind):
            raise ArtifactError(f"{place} cannot be read as a web record: column {field.name} is {kind}, no text")
    return [field.name for field in wanted]


def _short_texts(batch: Any, place: str) -> Any:
    """A batch of dictionaries as one of texts; raises ArtifactError where one is longer than entries have them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        limit = _MAX_HITS_BYTES if name == "hits" else _MAX_VALUE_BYTES
        longest = pc.max(pc.binary_length(column.dictionary)).as_py() or 0
        if longest > limit:
            raise ArtifactError(
                f"{place} cannot be read as a web record: a value of column {name} has {longest:,} bytes, "
                f"more than {limit:,}"
            )
    return pa.RecordBatch.from_arrays([column.dictionary_decode() for column in batch.columns], batch.schema.names)


def _drop_unused(root: Path) -> None:
    """Remove the unpacked records that were used longest ago; who has one open goes on reading it."""
    records = [path for path in root.iterdir() if _UNPACKED.fullmatch(path.name)]
    records.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in records[KEPT_RECORDS:]:
        shutil.rmtree(path, ignore_errors=True)
