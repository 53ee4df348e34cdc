"""Write the event files that TensorBoard reads; no package is needed.

A file is a sequence of records: length, checksum of the length, content, checksum of the content. The content is an
`Event` of TensorFlow's protocol buffers, of which only the fields for numbers are written.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from uuid import uuid4

_VERSION = b"brain.Event:2"


def write_events(folder: Path, values: Mapping[str, float], step: int) -> Path:
    """Write a new event file with the values at a step; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time()
    # TensorBoard reads the files of a folder in the order of their names.
    path = folder / f"events.out.tfevents.{now:.6f}.{uuid4().hex[:8]}"
    summary = b"".join(_bytes(1, _bytes(1, name.encode()) + _float(2, value)) for name, value in values.items())
    events = (_double(1, now) + _bytes(3, _VERSION), _double(1, now) + _integer(2, step) + _bytes(5, summary))
    path.write_bytes(b"".join(map(_record, events)))
    return path


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _checksum(content: bytes) -> bytes:
    """Return the CRC-32C of the content, rotated and shifted as TensorFlow's records have it."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in content:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for entry in range(256):
        for _ in range(8):
            entry = (entry >> 1) ^ (0x82F63B78 if entry & 1 else 0)
        table.append(entry)
    return tuple(table)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
