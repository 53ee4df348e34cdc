"""What a parquet file says of itself, looked at before any of it is unpacked.

Its footer may say anything, and a reader makes room for as much as a page's own header says. So the footer must agree
with itself and with these headers, and all that they would unpack to is bounded. Pyarrow's own view of a footer ends
the process for some (26.0), so it is read here. Source: `parquet.thrift` of the format.
"""

from __future__ import annotations

from io import BufferedIOBase
from typing import Any

from treadle.agent.web.compact_thrift import BINARY, I32, I64, Reader

_TAIL_BYTES = 8
_MAX_FOOTER_BYTES = 8 * 1024 * 1024
_MAX_NAME_BYTES = 100
_MAX_HEADER_BYTES = 64 * 1024
"""Of a page; statistics are in it: two values of 4 KiB at most."""

_CHUNK = {1: BINARY, 3: {3: [BINARY], 5: I64, 7: I64, 9: I64, 11: I64}}
"""`ColumnChunk`: another file, and of the `ColumnMetaData` the name, the number of values, the bytes as stored, where
pages of data and the dictionary begin."""
_FILE = {3: I64, 4: [{1: [_CHUNK], 2: I64, 3: I64}]}
"""`FileMetaData`: rows, and of the row groups the columns, bytes, rows."""
_PAGE = {1: I32, 2: I32, 3: I32, 5: {1: I32, 2: I32}, 7: {1: I32, 2: I32}, 8: {1: I32, 4: I32}}
"""`PageHeader`: kind, bytes unpacked and as stored, and of its own header the number of values and the encoding."""
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_OWN = {_DATA: (5, 2), _DICTIONARY: (7, 2), _DATA_2: (8, 4)}
"""Kind of a page -> fields of its own header, and in it of the encoding."""
_ENCODINGS = (0, 2, 8)
"""Plain, and two names for numbers of values in a dictionary. In others a value takes no room of its own."""


def check_pages(file: BufferedIOBase, *, max_group_bytes: int) -> None:
    """Raise ValueError where a table's columns do not hold what its footer says, or a row group unpacks to too much.

    Columns count as text. The file is left where it was last read.
    """
    footer = _footer(file)
    groups = footer[4]
    told = [group[3] for group in groups]
    if min(told, default=0) < 0 or sum(told) != footer[3]:
        raise ValueError(f"its footer tells {footer[3]:,} rows, its row groups {sum(told):,}")
    for number, group in enumerate(groups):
        sizes = [_unpacked_bytes(file, chunk, group[3]) for chunk in group[1]]
        if (num_bytes := max(sum(sizes), group[2])) > max_group_bytes:
            raise ValueError(f"its row group {number} has {num_bytes:,} bytes, more than {max_group_bytes:,}")


def _footer(file: BufferedIOBase) -> dict[int, Any]:
    """What the footer says, if there is all that has to be."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _TAIL_BYTES))
    num_bytes = int.from_bytes(file.read(4), "little")
    if not 0 < num_bytes <= min(_MAX_FOOTER_BYTES, size - _TAIL_BYTES):
        raise ValueError(f"its footer has {num_bytes:,} bytes")
    file.seek(size - _TAIL_BYTES - num_bytes)
    reader = Reader(file.read(num_bytes))
    try:
        footer = reader.struct(_FILE)
        for group in footer[4]:
            if not {1, 2, 3} <= group.keys() or any(not {3, 5, 7, 9} <= chunk[3].keys() for chunk in group[1]):
                raise ValueError
    except (IndexError, KeyError, ValueError):
        raise ValueError("its footer is none that Treadle writes") from None
    return footer


def _unpacked_bytes(file: BufferedIOBase, chunk: dict[int, Any], num_rows: int) -> int:
    """Bytes that a column of a row group unpacks to; it is gone through as its reader does, page by page."""
    told = chunk[3]
    # Which column it is its place says, and not this name, which is for people.
    name = b".".join(told[3])[:_MAX_NAME_BYTES].decode("utf-8", "replace")
    at, dictionary = told[9], told.get(11, 0)
    if 0 < dictionary < at:
        at = dictionary
    end = at + told[7]
    if 1 in chunk or not 0 < at <= end <= file.seek(0, 2) or told[5] != num_rows:
        raise ValueError(f"what its footer says of column {name} cannot be")
    num_values = num_bytes = 0
    while num_values < num_rows:
        file.seek(at)
        header = _PageHeader(file.read(min(_MAX_HEADER_BYTES, end - at)), name)
        at += header.num_bytes + header.stored_bytes
        num_bytes += header.unpacked_bytes
        if at > end:
            raise ValueError(f"a page of column {name} ends behind its column")
        if header.kind != _DICTIONARY:
            num_values += header.num_values
        elif 4 * header.num_values > header.unpacked_bytes:
            # The length of each stands there in 4 bytes; its reader takes 16 for it beforehand.
            raise ValueError(f"the dictionary of column {name} tells more values than it has room for")
    if num_values != num_rows:
        raise ValueError(f"column {name} has {num_values:,} values, and should have {num_rows:,}")
    return num_bytes


class _PageHeader:
    """The header of a page; raises ValueError for a page that Treadle does not write."""

    def __init__(self, data: bytes, name: str) -> None:
        reader = Reader(data)
        try:
            fields = reader.struct(_PAGE)
            self.kind, self.unpacked_bytes, self.stored_bytes = fields[1], fields[2], fields[3]
            place, encoding = _OWN[self.kind]
            own = fields[place]
            self.num_values = own[1]
            if min(self.unpacked_bytes, self.stored_bytes, self.num_values) < 0 or own[encoding] not in _ENCODINGS:
                raise ValueError
        except (IndexError, KeyError, ValueError):
            raise ValueError(f"a page of column {name} is none that Treadle writes") from None
        self.num_bytes = reader.num_read
