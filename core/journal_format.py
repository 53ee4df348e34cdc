"""What the segments of a journal are made of, byte by byte: written by `core.journal`, read by whoever scans one.

The format and its promises: `docs/behaviour/runs.md`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from treadle.core.errors import StorageError

_FILE_HEADER = struct.Struct("<7sBI")
_FILE_MAGIC = b"TRDLJNL"
_VERSION = 1
_RECORD_HEADER = struct.Struct("<4sIHHI")
# Not valid UTF-8, so that it occurs in no text that a model wrote.
_MARKER = b"\xffTJ\xfe"
_CRC = struct.Struct("<I")
_CRC_AT = 4
_CHECKED_FROM = 8
_LENGTHS = struct.Struct("<HHI")

HEADER_BYTES = _FILE_HEADER.size
MAX_NAME_BYTES = 0xFFFF
"""Of an owner or a unit."""


def segment_path(directory: Path, number: int) -> Path:
    """File of a segment."""
    return directory / f"{number:08d}.journal"


def segments(directory: Path) -> list[tuple[int, Path]]:
    """Numbers and files of the segments of a journal, in their order."""
    return sorted((int(path.stem), path) for path in directory.glob("*.journal") if path.stem.isdigit())


def segment_header(salt: int) -> bytes:
    """The first bytes of a segment; `salt` (32 bits) begins the checksum of each of its records."""
    return _FILE_HEADER.pack(_FILE_MAGIC, _VERSION, salt)


def salt_of(header: bytes, path: Path) -> int:
    """The salt in a segment's header; raises StorageError naming `path` where it is none that can be read."""
    magic, version, salt = _FILE_HEADER.unpack(header)
    if magic != _FILE_MAGIC:
        raise StorageError(f"{path} is not a journal segment; move it out of the way")
    if version != _VERSION:
        raise StorageError(f"journal segment {path} has version {version}; this Treadle reads version {_VERSION}")
    assert isinstance(salt, int)
    return salt


def record_bytes(owner: bytes, unit: bytes, value: bytes, salt: int) -> bytes:
    """One record; an empty unit makes it the final row of its owner."""
    lengths = _LENGTHS.pack(len(owner), len(unit), len(value))
    checked = b"".join((lengths, owner, unit, value))
    return b"".join((_MARKER, _CRC.pack(zlib.crc32(checked, salt)), checked))


def value_of(record: bytes, salt: int) -> bytes | None:
    """The value in one whole record; None where that is damaged."""
    view, end = memoryview(record), len(record)
    if not record or _end_of(view, 0) != end or not _is_sound(view, 0, end, salt):
        return None
    _, _, owner_length, unit_length, _ = _RECORD_HEADER.unpack_from(record)
    return record[_RECORD_HEADER.size + owner_length + unit_length :]


def scan(path: Path, keep: Callable[[str, str, int, int], None]) -> int:
    """Call `keep(owner, unit, offset, length)` per sound record; returns the number of damaged stretches.

    A record that was being written when its writer died is dropped without a word.
    """
    # Read, not mapped: from a cold disk the page faults of a map cost more than the copy.
    content = path.read_bytes()
    header = content[: _FILE_HEADER.size]
    if header == bytes(len(header)):
        return 0  # After a power loss a file may have its length and none of its content.
    if len(header) < _FILE_HEADER.size:
        return 0
    return _scan_records(content, salt_of(header, path), keep)


def is_whole(path: Path) -> bool:
    """Whether a file is a segment of sound records from its first byte to its last."""
    sound_bytes = HEADER_BYTES

    def keep(_owner: str, _unit: str, _offset: int, length: int) -> None:
        nonlocal sound_bytes
        sound_bytes += length

    try:
        return scan(path, keep) == 0 and sound_bytes == path.stat().st_size
    except StorageError:
        return False  # Its header is none that this version knows.


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
    """Offset of the next sound record at or after `start`, or -1."""
    data = memoryview(content)
    offset = content.find(_MARKER, start)
    while offset >= 0:
        end = _end_of(data, offset)
        if end and _is_sound(data, offset, end, salt):
            return offset
        offset = content.find(_MARKER, offset + 1)
    return -1


def _end_of(data: memoryview, offset: int) -> int:
    """Where the record that seems to begin at an offset ends; 0 where none can begin."""
    if offset + _RECORD_HEADER.size > len(data):
        return 0
    marker, _, owner_length, unit_length, value_length = _RECORD_HEADER.unpack_from(data, offset)
    end = offset + _RECORD_HEADER.size + owner_length + unit_length + value_length
    return end if marker == _MARKER and end <= len(data) else 0


def _is_sound(data: memoryview, offset: int, end: int, salt: int) -> bool:
    (crc,) = _CRC.unpack_from(data, offset + _CRC_AT)
    return bool(zlib.crc32(data[offset + _CHECKED_FROM : end], salt) == crc)
