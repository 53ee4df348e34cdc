"""Parquet files with a false footer or page header: thrift's compact protocol.

Source: thrift's `doc/specs/thrift-compact-protocol.md`, `parquet.thrift` of the format.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

_STOP, _TRUE, _FALSE, _BYTE, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 0, 1, 2, 3, 6, 7, 8, 9, 10, 12

Struct = dict[int, tuple[int, Any]]
"""Number of a field -> its type and value; lists are pairs of type and values."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def bytes(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def struct(self) -> Struct:
        found, number = Struct(), 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.zigzag()
            kind = head & 15
            found[number] = kind, (kind == _TRUE if kind in (_TRUE, _FALSE) else self.value(kind))
        return found

    def value(self, kind: int) -> Any:
        if kind in (_TRUE, _FALSE, _BYTE):
            return self.byte()
        if kind <= _I64:
            return self.zigzag()
        if kind == _DOUBLE:
            return self.bytes(8)
        if kind == _BINARY:
            return self.bytes(self.varint())
        if kind in (_LIST, _SET):
            head = self.byte()
            count = self.varint() if head >> 4 == 15 else head >> 4
            return head & 15, [self.value(head & 15) for _ in range(count)]
        assert kind == _STRUCT
        return self.struct()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _zigzag(value: int) -> bytes:
    return _varint((value << 1) ^ (value >> 63))


def _written(kind: int, value: Any) -> bytes:
    if kind in (_TRUE, _FALSE, _BYTE):
        return bytes([value])
    if kind <= _I64:
        return _zigzag(value)
    if kind == _DOUBLE:
        return bytes(value)
    if kind == _BINARY:
        return _varint(len(value)) + value
    if kind in (_LIST, _SET):
        inner, values = value
        return b"%c%b%b" % (0xF0 | inner, _varint(len(values)), b"".join(_written(inner, one) for one in values))
    fields = sorted(value.items())
    parts = (
        bytes([_TRUE if found else _FALSE]) + _zigzag(number)
        if kind in (_TRUE, _FALSE)
        else bytes([kind]) + _zigzag(number) + _written(kind, found)
        for number, (kind, found) in fields
    )
    return b"".join(parts) + b"\0"


def change_footer(path: Path, change: Callable[[Struct], None]) -> None:
    """Apply a change to a file's `FileMetaData`; the bytes before it stay in place."""
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer = _Reader(data[-8 - size : -8]).struct()
    change(footer)
    new = _written(_STRUCT, footer)
    path.write_bytes(data[: -8 - size] + new + len(new).to_bytes(4, "little") + b"PAR1")


def columns_of(footer: Struct, group: int = 0) -> dict[str, Struct]:
    """Return the `ColumnMetaData` of a row group, by the columns' names."""
    chunks = footer[4][1][1][group][1][1][1]
    return {chunk[3][1][3][1][1][0].decode(): chunk[3][1] for chunk in chunks}


def set_number(struct: Struct, number: int, value: int) -> None:
    """Give a field of a number another one."""
    assert number in struct
    struct[number] = struct[number][0], value


def change_page(path: Path, column: str, change: Callable[[Struct], None], *, dictionary: bool = False) -> None:
    """Apply a change to the header of a column's first data page, or of its dictionary.

    Later pages move, so the footer is rewritten for a file of one row group.
    """
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer = _Reader(data[-8 - size : -8]).struct()
    columns = columns_of(footer)
    start = columns[column][11 if dictionary else 9][1]
    reader = _Reader(data)
    reader.at = start
    header = reader.struct()
    change(header)
    new = _written(_STRUCT, header)
    moved = len(new) - (reader.at - start)
    for other in columns.values():
        for number in (9, 10, 11):
            if number in other and other[number][1] > start:
                set_number(other, number, other[number][1] + moved)
    set_number(columns[column], 7, columns[column][7][1] + moved)
    body, tail = data[:start] + new + data[reader.at : -8 - size], _written(_STRUCT, footer)
    path.write_bytes(body + tail + len(tail).to_bytes(4, "little") + b"PAR1")
