"""Define the frames in which a reading process sends rows to its parent: a kind, a length, and that many bytes.

The parent trusts no part of them: lengths, types, sizes and contents are checked, because the file may have
compromised the process that reads it.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA, BATCH, ROW, PROBLEM, END = b"S", b"B", b"R", b"P", b"E"
"""Kinds of frames, by content: an Arrow schema; a record batch; JSON with the reason, detail and first bytes of an
unreadable row; a line on why the rest of the file cannot be read; nothing, at the end of all rows."""
MAX_FRAME_BYTES = 128 * 2**20
MAX_BATCH_COST = 64 * 2**20
"""Maximum bytes of a batch, as `cost` computes them; a batch of a single row may also take this many."""
CELL_COST = 64
"""Bytes that a value takes in Python in addition to its content."""
FRAME_COST = 1024
"""Bytes that are counted for a frame in addition to its content."""
MAX_FIELDS = 10_000
MAX_DEPTH = 32
_SIMPLE = (
    pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal,
    pa.types.is_temporal, pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)  # fmt: skip

_NESTED = (
    pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_struct, pa.types.is_map
)  # fmt: skip


def inner_types(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types directly within a type."""
    return [kind.field(place).type for place in range(kind.num_fields)]


def check_schema(schema: pa.Schema) -> None:
    """Raise ValueError for more or deeper fields than are read, and for unsupported types."""
    left: list[tuple[pa.DataType, int]] = [(field.type, 1) for field in schema]
    num_fields = 0
    while left:
        kind, depth = left.pop()
        num_fields += 1
        if num_fields > MAX_FIELDS or depth > MAX_DEPTH:
            raise ValueError(f"it has more than {MAX_FIELDS:,} fields, or more than {MAX_DEPTH} nested levels")
        if kind.num_fields:
            if not _is_nested(kind):
                raise ValueError(f"a column has the type {_name(kind)}, which is not supported")
            left += [(inner, depth + 1) for inner in inner_types(kind)]
        elif not (pa.types.is_struct(kind) or any(is_it(kind) for is_it in _SIMPLE)):
            raise ValueError(f"a column has the type {_name(kind)}, which is not supported")


def _name(kind: pa.DataType) -> str:
    return str(kind)[:100]


def _is_nested(kind: pa.DataType) -> bool:
    return any(is_it(kind) for is_it in _NESTED)


def parts_of(array: pa.Array) -> list[pa.Array]:
    """Return the arrays directly within an array, limited to its slice; they include items of lists that are null."""
    kind = array.type
    if pa.types.is_struct(kind):
        return [array.field(place) for place in range(kind.num_fields)]
    if pa.types.is_fixed_size_list(kind):
        return [array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)]
    if not (pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return []
    if not len(array):
        return []
    offsets = array.offsets
    begin, end = offsets[0].as_py(), offsets[-1].as_py()
    within = [array.keys, array.items] if pa.types.is_map(kind) else [array.values]
    return [part.slice(begin, end - begin) for part in within]


def cost(batch: pa.RecordBatch) -> int:
    """Return the bytes that a batch of plain types takes as Python objects, at most."""
    # A batch without columns has rows, too.
    num_rows: int = batch.num_rows
    return max(CELL_COST * num_rows, sum(map(_cost_of, batch.columns)))


def _cost_of(array: pa.Array) -> int:
    parts = parts_of(array)
    own = 0 if parts else array.nbytes
    return CELL_COST * len(array) + own + sum(map(_cost_of, parts))
