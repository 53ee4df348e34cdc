"""Thrift's compact protocol as far as parquet's headers need it: read strictly, nothing built that is not wanted.

Source: thrift, `doc/specs/thrift-compact-protocol.md`. What two readers could take for two things is refused: a field
that is there twice, or of a number beyond 16 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
_TRUE, _FALSE, _BYTE, _DOUBLE, _SET = 1, 2, 3, 7, 10
_MAX_FIELD = 2**15 - 1
_MAX_DEPTH = 12
_MAX_WANTED = 200_000
"""Fields and elements that are built. A footer of Treadle's own has some 6,000."""

Wanted = Mapping[int, Any]
"""Number of a field -> the type that it must have: I32, I64 or BINARY, the fields that are wanted of a struct, or a
list with one of these for its elements."""


class Reader:
    """Reads structs; raises IndexError where the data ends, ValueError for what is not as it should be."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.num_read = 0
        """Bytes so far."""
        self._num_wanted = 0

    def struct(self, wanted: Wanted, depth: int = 0) -> dict[int, Any]:
        """The wanted fields of a struct, as far as they are there."""
        found, seen, number = dict[int, Any](), set[int](), 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            if number in seen or not 0 < number <= _MAX_FIELD:
                raise ValueError
            seen.add(number)
            kind = head & 15
            if number in wanted:
                found[number] = self._value(kind, wanted[number], depth)
            elif kind not in (_TRUE, _FALSE):
                self._skip(kind, depth)
        return found

    def _value(self, kind: int, wanted: Any, depth: int) -> Any:
        self._num_wanted += 1
        if self._num_wanted > _MAX_WANTED:
            raise ValueError
        if isinstance(wanted, list) and kind == LIST:
            inner, count = self._list()
            return [self._value(inner, wanted[0], depth) for _ in range(count)]
        if isinstance(wanted, Mapping) and kind == STRUCT and depth < _MAX_DEPTH:
            return self.struct(wanted, depth + 1)
        if kind != wanted:
            raise ValueError
        return self._bytes(self._varint()) if kind == BINARY else self._integer(kind)

    def _skip(self, kind: int, depth: int) -> None:
        if kind == STRUCT and depth < _MAX_DEPTH:
            self.struct({}, depth + 1)
        elif kind in (LIST, _SET):
            inner, count = self._list()
            for _ in range(count):
                self._skip(inner, depth)
        elif kind == BINARY:
            self._bytes(self._varint())
        elif kind in (_TRUE, _FALSE, _BYTE, _DOUBLE):
            self._bytes(8 if kind == _DOUBLE else 1)
        elif _BYTE < kind <= I64:
            self._varint()
        else:
            raise ValueError

    def _list(self) -> tuple[int, int]:
        """Type of the elements, and how many."""
        head = self._byte()
        return head & 15, self._varint() if head >> 4 == 15 else head >> 4

    def _integer(self, kind: int) -> int:
        value, limit = self._zigzag(), 2**31 if kind == I32 else 2**63
        if not -limit <= value < limit:
            raise ValueError
        return value

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError

    def _byte(self) -> int:
        self.num_read += 1
        return self._data[self.num_read - 1]

    def _bytes(self, count: int) -> bytes:
        self.num_read += count
        if self.num_read > len(self._data):
            raise IndexError
        return self._data[self.num_read - count : self.num_read]
