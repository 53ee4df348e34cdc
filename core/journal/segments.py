"""Encode and decode the segments of a journal.

`core.journal` writes them. The format and its guarantees are in `docs/behaviour/runs.md`.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from treadle.core.errors import StorageError

_FILE_HEADER = struct.Struct("<7sBI")
_FILE_MAGIC = b"TRDLJNL"
_VERSION = 1
_RECORD_HEADER = struct.Struct("<4sIHHI")
# Not valid UTF-8, so it occurs in no text of a model.
_MARKER = b"\xffTJ\xfe"
_CRC = struct.Struct("<I")
_CRC_AT = 4
_CHECKED_FROM = 8
_LENGTHS = struct.Struct("<HHI")

HEADER_BYTES = _FILE_HEADER.size
MAX_NAME_BYTES = 0xFFFF
"""Maximum length of the name of an owner or a unit."""


def segment_path(directory: Path, number: int) -> Path:
    """Return the file of a segment."""
    return directory / f"{number:08d}.journal"


def segments(directory: Path) -> list[tuple[int, Path]]:
    """Return the numbers and files of the segments of a journal, in order; none if it was deleted.

    Raises OSError.
    """
    # Not `Path.glob`, which fails if the folder is deleted while it is listed.
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    stems = (name.removesuffix(".journal") for name in names if name.endswith(".journal"))
    return sorted((int(stem), directory / f"{stem}.journal") for stem in stems if stem.isdigit())


def segment_header(salt: int) -> bytes:
    """Return the first bytes of a segment; `salt` (32 bits) starts the checksum of each of its records."""
    return _FILE_HEADER.pack(_FILE_MAGIC, _VERSION, salt)


def salt_of(header: bytes, path: Path) -> int:
    """Return the salt in a segment's header; raise StorageError naming `path` if the header is not supported."""
    magic, version, salt = _FILE_HEADER.unpack(header)
    if magic != _FILE_MAGIC:
        raise StorageError(f"{path} is not a journal segment; move it out of the way")
    if version != _VERSION:
        raise StorageError(f"journal segment {path} has version {version}; this Treadle reads version {_VERSION}")
    assert isinstance(salt, int)
    return salt


def record_bytes(owner: bytes, unit: bytes, value: bytes, salt: int) -> bytes:
    """Return the bytes of one record; an empty unit makes it the final row of its owner."""
    lengths = _LENGTHS.pack(len(owner), len(unit), len(value))
    checked = b"".join((lengths, owner, unit, value))
    return b"".join((_MARKER, _CRC.pack(zlib.crc32(checked, salt)), checked))


def value_of(record: bytes, salt: int) -> bytes | None:
    """Return the value in one complete record, or None if the record is damaged."""
    view, end = memoryview(record), len(record)
    if not record or _end_of(view, 0) != end or not _is_sound(view, 0, end, salt):
        return None
    _, _, owner_length, unit_length, _ = _RECORD_HEADER.unpack_from(record)
    return record[_RECORD_HEADER.size + owner_length + unit_length :]


def scan(path: Path, keep: Callable[[str, str, int, int], None]) -> int:
    """Call `keep(owner, unit, offset, length)` for each intact record; return the number of damaged spans.

    An incomplete record at the end, left by a killed writer, is dropped and not counted.
    """
    # Read, not mapped: from a cold disk the page faults of a map cost more than the copy.
    content = path.read_bytes()
    header = content[: _FILE_HEADER.size]
    # After a power loss a file may have its length without its content.
    if len(header) < _FILE_HEADER.size or header == bytes(len(header)):
        return 0
    return _scan_records(content, salt_of(header, path), keep)


def is_intact(path: Path) -> bool:
    """Return whether a file is a segment of intact records from its first byte to its last."""
    sound_bytes = HEADER_BYTES

    def keep(_owner: str, _unit: str, _offset: int, length: int) -> None:
        nonlocal sound_bytes
        sound_bytes += length

    try:
        return scan(path, keep) == 0 and sound_bytes == path.stat().st_size
    except StorageError:
        return False  # The header is damaged or of another version.


def _scan_records(content: bytes, salt: int, keep: Callable[[str, str, int, int], None]) -> int:
    data, size = memoryview(content), len(content)
    header_size, unpack, crc32 = _RECORD_HEADER.size, _RECORD_HEADER.unpack_from, zlib.crc32
    offset, num_damaged = _FILE_HEADER.size, 0
    while offset + header_size <= size:
        marker, crc, owner_length, unit_length, value_length = unpack(data, offset)
        start = offset + header_size
        middle = start + owner_length
        end = middle + unit_length + value_length
        if marker == _MARKER and end <= size and crc32(data[offset + _CHECKED_FROM : end], salt) == crc:
            keep(content[start:middle].decode(), content[middle : middle + unit_length].decode(), offset, end - offset)
            offset = end
            continue
        following = _next_sound(content, offset + 1, salt)
        if following < 0:
            return num_damaged + bool(_end_of(data, offset))
        num_damaged += 1
        offset = following
    return num_damaged


def _next_sound(content: bytes, start: int, salt: int) -> int:
    """Return the offset of the next intact record at or after `start`, or -1."""
    data = memoryview(content)
    offset = content.find(_MARKER, start)
    while offset >= 0:
        end = _end_of(data, offset)
        if end and _is_sound(data, offset, end, salt):
            return offset
        offset = content.find(_MARKER, offset + 1)
    return -1


def _end_of(data: memoryview, offset: int) -> int:
    """Return the end of the record that seems to begin at an offset, or 0 if no record can begin there."""
    if offset + _RECORD_HEADER.size > len(data):
        return 0
    marker, _, owner_length, unit_length, value_length = _RECORD_HEADER.unpack_from(data, offset)
    end = offset + _RECORD_HEADER.size + owner_length + unit_length + value_length
    return end if marker == _MARKER and end <= len(data) else 0


def _is_sound(data: memoryview, offset: int, end: int, salt: int) -> bool:
    (crc,) = _CRC.unpack_from(data, offset + _CRC_AT)
    return bool(zlib.crc32(data[offset + _CHECKED_FROM : end], salt) == crc)
