"""Turn columns of JSON text into lists and structs, for readers outside Treadle.

Artifacts store such columns as text. `Table.parsed` declares the types that they have in tables for analysis and in
exports: plain lists and structs, which pandas, polars, DuckDB and `datasets` all read. Columns without a declared type
stay text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from treadle.core.errors import ArtifactError
from treadle.core.tables import JSON_FORM, KEY_OF_OBJECTS, KEY_OF_VALUES, TEXT_OF_JSON, Table

_Read = Callable[[Any], Any]


class _Unexpected(Exception):
    """A value that does not have the declared form, with its place in the column's value."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.place = ""

    def inside(self, place: str) -> _Unexpected:
        self.place = place + self.place
        return self


def parsed_schema(table: Table, columns: Sequence[str]) -> pa.Schema:
    """Return the schema of some columns, in which columns of JSON text have their declared types."""
    fields = [table.schema.field(name) for name in columns]
    return pa.schema([field.with_type(table.parsed.get(field.name, field.type)) for field in fields])


def parsed_batches(batches: Iterable[pa.RecordBatch], table: Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with their columns of JSON text as lists and structs; they begin with row 1 of the table.

    Raises ArtifactError naming table, row, column and place for text that does not have the declared form: nothing is
    left out and nothing becomes null.
    """
    schema = parsed_schema(table, columns)
    parsers = {name: _Column(table, name, _reader(table.parsed[name])) for name in columns if name in table.parsed}
    first = 1
    for batch in batches:
        arrays = [parsers[name].parsed(batch[name], first) if name in parsers else batch[name] for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        first += batch.num_rows


@dataclass(frozen=True, slots=True)
class _Column:
    table: Table
    name: str
    read: _Read

    def parsed(self, column: pa.Array, first: int) -> pa.Array:
        """Return a column of JSON text with its declared type; `first` is the number of its first row in the table."""
        values = []
        for row, text in enumerate(column.to_pylist(), first):
            try:
                values.append(None if text is None else self.read(orjson.loads(text)))
            except orjson.JSONDecodeError as error:
                raise self._error(row, f"is not JSON ({error})") from None
            except _Unexpected as error:
                where = f" at {error.place}" if error.place else ""
                raise self._error(row, f"does not have the declared form{where}: {error.what}") from None
        kind = self.table.parsed[self.name]
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError, UnicodeError):
            raise self._explain(values, kind, first) from None

    def _explain(self, values: Sequence[Any], kind: pa.DataType, first: int) -> ArtifactError:
        for row, value in enumerate(values, first):
            try:
                pa.array([value], kind)
            except (pa.ArrowException, OverflowError, UnicodeError) as error:
                return self._error(row, f"does not fit {kind}: {error}")
        return self._error(first, f"does not fit {kind}")

    def _error(self, row: int, what: str) -> ArtifactError:
        return ArtifactError(
            f"table {self.table.kind}, row {row}: column {self.name!r} {what}; the stored text is in the parquet files "
            "of the artifact"
        )


def _reader(kind: pa.DataType) -> _Read:
    """Return a function that checks a JSON value and converts it to what Arrow accepts for this type."""
    if pa.types.is_struct(kind):
        return _struct_reader([kind.field(place) for place in range(kind.num_fields)])
    if pa.types.is_list(kind):
        item = kind.value_type
        first = item.field(0) if pa.types.is_struct(item) else None
        form = (first.metadata or {}).get(JSON_FORM) if first is not None else None
        return _object_reader(item, form) if form is not None else _list_reader(_reader(item))
    for is_type, name, allowed in _SCALARS:
        if is_type(kind):
            return _scalar_reader(name, allowed)
    raise TypeError(f"columns of JSON text cannot be declared with {kind}")


_SCALARS: Sequence[tuple[Callable[[pa.DataType], bool], str, tuple[type, ...]]] = (
    (pa.types.is_string, "text", (str,)),
    (pa.types.is_boolean, "true or false", (bool,)),
    (pa.types.is_integer, "a whole number", (int,)),
    (pa.types.is_floating, "a number", (float, int)),
)


def _scalar_reader(name: str, allowed: tuple[type, ...]) -> _Read:
    def read(value: Any) -> Any:
        # By exact type, because True is an int.
        if type(value) not in allowed:
            raise _Unexpected(f"it is {_described(value)}, not {name}")
        return value

    return read


def _list_reader(read_item: _Read) -> _Read:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise _Unexpected(f"it is {_described(value)}, not a list")
        found = []
        for place, item in enumerate(value):
            try:
                found.append(read_item(item))
            except _Unexpected as error:
                raise error.inside(f"[{place}]") from None
        return found

    return read


def _struct_reader(fields: Sequence[pa.Field]) -> _Read:
    readers = [(field.name, _field_reader(field), field.nullable) for field in fields]
    known = {name for name, _, _ in readers}

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _Unexpected(f"it is {_described(value)}, not an object")
        if unknown := value.keys() - known:
            raise _Unexpected(f"it has the unknown key {min(unknown)!r}")
        found: dict[str, Any] = {}
        for name, read_field, nullable in readers:
            inner = value.get(name)
            if inner is None:
                if not nullable:
                    raise _Unexpected(f"it has no {name!r}")
                found[name] = None
                continue
            try:
                found[name] = read_field(inner)
            except _Unexpected as error:
                raise error.inside(f".{name}") from None
        return found

    return read


def _field_reader(field: pa.Field) -> _Read:
    if (field.metadata or {}).get(JSON_FORM) == TEXT_OF_JSON:
        return lambda value: orjson.dumps(value).decode()
    return _reader(field.type)


def _object_reader(item: pa.DataType, form: bytes) -> _Read:
    """Return a reader of an object of named values: each becomes an item of a list, with its name in the first field.

    The JSON values are objects with the item's other fields (`KEY_OF_OBJECTS`), or values of its second field
    (`KEY_OF_VALUES`).
    """
    key, *others = (item.field(place) for place in range(item.num_fields))
    assert form in (KEY_OF_OBJECTS, KEY_OF_VALUES), "the first field says what the values of the object are"
    read_object, read_value = _struct_reader(others), _field_reader(others[0])

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _Unexpected(f"it is {_described(value)}, not an object")
        found = []
        for name, inner in value.items():
            try:
                if form == KEY_OF_OBJECTS:
                    found.append({key.name: name, **read_object(inner)})
                else:
                    found.append({key.name: name, others[0].name: read_value(inner)})
            except _Unexpected as error:
                raise error.inside(f".{name}") from None
        return found

    return read


def _described(value: Any) -> str:
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a whole number"}
    return names.get(type(value), "a number")
