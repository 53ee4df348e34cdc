"""Send rows to the parent process in the frames of `core/untrusted/row_frames.py`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from treadle.core.untrusted import row_frames
from treadle.core.untrusted.worker_frames import send_frame


def send_schema(frames: BinaryIO, schema: pa.Schema) -> pa.Schema:
    """Send and return a schema in which values are plain; raises ValueError for types that are not read."""
    plain = pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])
    row_frames.check_schema(plain)
    send(frames, row_frames.SCHEMA, plain.serialize())
    return plain


def send_rows(frames: BinaryIO, batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Send the rows of a batch in a schema of `send_schema`, in parts of a size that the parent takes."""
    arrays = [_converted(array, field.type) for array, field in zip(batch.columns, schema, strict=True)]
    for part in _parts(pa.RecordBatch.from_arrays(arrays, schema=schema)):
        _send_batch(frames, part)


def send(frames: BinaryIO, kind: bytes, content: Any) -> None:
    """Send one frame; raises ValueError for one that is too long."""
    num_bytes = memoryview(content).nbytes
    if num_bytes > row_frames.MAX_FRAME_BYTES:
        raise ValueError(f"a row has {num_bytes:,} bytes, more than {row_frames.MAX_FRAME_BYTES:,}")
    send_frame(frames, kind, content)


def problem(error: BaseException) -> bytes:
    """Return the content of the frame that says why the rest cannot be read."""
    if isinstance(error, MemoryError):
        return b"memory"
    return (str(error) or type(error).__name__).strip().splitlines()[0][:500].encode("utf-8", "replace")


def _plain(kind: Any, depth: int = 0) -> Any:
    """Return the type in which values are sent: without dictionaries, views and extension types."""
    if depth > row_frames.MAX_DEPTH:
        return kind  # is refused for its depth
    if isinstance(kind, pa.UuidType):
        return pa.string()
    if isinstance(kind, pa.Bool8Type):
        return pa.bool_()
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type, depth)
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type, depth)
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return pa.struct([pa.field(field.name, _plain(field.type, depth + 1)) for field in fields])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type, depth + 1), _plain(kind.item_type, depth + 1))
    lists = (
        (pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list), (pa.types.is_list_view, pa.list_),
        (pa.types.is_large_list_view, pa.large_list),
    )  # fmt: skip
    for is_it, make in lists:
        if is_it(kind):
            return make(_plain(kind.value_type, depth + 1))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type, depth + 1), kind.list_size)
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return views.get(kind, kind)


def _converted(array: pa.Array, plain: pa.DataType) -> pa.Array:
    """Return an array in its plain type."""
    if _is_cast(array.type):
        return array.cast(plain)
    return pa.array([_with_text(value) for value in array.to_pylist()], plain)


def _is_cast(kind: pa.DataType) -> bool:
    """Return whether to let Arrow cast a type to its plain one: it cannot cast UUIDs and miscasts sliced list views."""
    if isinstance(kind, pa.UuidType) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return False
    if isinstance(kind, pa.BaseExtensionType):
        return _is_cast(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _is_cast(kind.value_type)
    return all(map(_is_cast, row_frames.inner_types(kind)))


def _with_text(value: Any) -> Any:
    """Return a value with UUIDs as text."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: _with_text(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_with_text, value))
    return value


def _parts(batch: Any) -> Iterator[Any]:
    """Yield parts of a batch that are small enough for the parent; a single row is not divided."""
    if batch.num_rows <= 1 or row_frames.cost(batch) <= row_frames.MAX_BATCH_COST:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _parts(batch.slice(0, middle))
    yield from _parts(batch.slice(middle))


def _send_batch(frames: BinaryIO, batch: Any) -> None:
    if row_frames.cost(batch) > row_frames.MAX_BATCH_COST:
        detail = f"the row takes more than {row_frames.MAX_BATCH_COST:,} bytes"
        send(frames, row_frames.ROW, json.dumps({"reason": "too_long", "detail": detail, "raw": ""}).encode())
        return
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        if batch.num_rows > 1:
            for place in range(batch.num_rows):
                _send_batch(frames, batch.slice(place, 1))
            return
        bad = next(filter(None, map(bad_text, batch.columns)), None)
        if bad is None:
            raise
        detail = f"a text of the row is not UTF-8: {bad.reason}"
        raw = bad.object[:8_000].decode("latin-1")
        send(frames, row_frames.ROW, json.dumps({"reason": "not_utf8", "detail": detail, "raw": raw}).encode())
        return
    send(frames, row_frames.BATCH, batch.serialize())


def bad_text(array: Any) -> UnicodeDecodeError | None:
    """Return the decoding error of the first text that is not valid UTF-8; None if all texts are valid."""
    for is_it, kind in ((pa.types.is_string, pa.binary()), (pa.types.is_large_string, pa.large_binary())):
        if is_it(array.type):
            for value in array.view(kind).to_pylist():
                try:
                    (value or b"").decode("utf-8")
                except UnicodeDecodeError as error:
                    return error
    return next(filter(None, map(bad_text, row_frames.parts_of(array))), None)
