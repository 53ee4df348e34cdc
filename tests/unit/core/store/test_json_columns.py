"""Columns of JSON text become lists and structs, or an error that names the place."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables.table_readers import says_the_same

from treadle.core.errors import ArtifactError
from treadle.core.store.json_columns import parsed_batches
from treadle.core.tables import (
    PARTS_OBJECT,
    STRINGS,
    TABLES,
    Table,
    column,
    json_text,
    object_items,
    required,
    value_items,
)
from treadle.stages.registry import stage_entries

_SCHEMA = pa.schema([column("key", pa.string(), "key"), column("said", pa.string(), "JSON", nullable=True)])
FORM = pa.list_(
    pa.struct(
        [
            required("kind", pa.string()),
            required("start", pa.int32()),
            pa.field("ok", pa.bool_()),
            pa.field("sources", STRINGS),
            pa.field("parts", PARTS_OBJECT),
            pa.field("votes", object_items("judge", pa.field("grade", pa.float64()), required("raw", STRINGS))),
            pa.field("models", value_items("role", required("model", pa.string()))),
            json_text("parameters"),
        ]
    )
)
ITEM: dict[str, Any] = {"kind": "a", "start": 1, "parameters": {"type": "object", "b": [1, None]}}


def table_of(form: pa.DataType) -> Table:
    return Table("things", 1, ("key",), _SCHEMA, "Things.", parsed={"said": form})


def parsed(form: pa.DataType, *texts: str | None, batch_rows: int = 2) -> list[Any]:
    """Parse texts in batches."""
    rows = pa.table({"key": [str(place) for place in range(len(texts))], "said": pa.array(texts, pa.string())})
    batches = parsed_batches(rows.to_batches(max_chunksize=batch_rows), table_of(form), ["key", "said"])
    found = pa.Table.from_batches(list(batches))
    assert found.schema.field("said").type == form and found["key"].to_pylist() == rows["key"].to_pylist()
    said: list[Any] = found["said"].to_pylist()
    return said


_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


def json_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Return a strategy of the JSON values that a column of this type may hold."""
    if pa.types.is_list(kind):
        item = kind.value_type
        if pa.types.is_struct(item) and (form := (item.field(0).metadata or {}).get(b"json_form")):
            others = [item.field(place) for place in range(1, item.num_fields)]
            inner = json_of(pa.struct(others)) if form == b"key_of_objects" else _field(others[0])
            return st.dictionaries(_TEXT, inner, max_size=3)
        return st.lists(json_of(item), max_size=3)
    if pa.types.is_struct(kind):
        fields = {kind.field(place).name: kind.field(place) for place in range(kind.num_fields)}
        return st.fixed_dictionaries(
            {name: _field(one) for name, one in fields.items() if not one.nullable},
            optional={name: st.none() | _field(one) for name, one in fields.items() if one.nullable},
        )
    if pa.types.is_integer(kind):
        return st.integers(0, 2**31 - 1)
    if pa.types.is_floating(kind):
        return st.floats(allow_nan=False, allow_infinity=False) | st.integers(-1000, 1000)
    return st.booleans() if pa.types.is_boolean(kind) else _TEXT


def _field(field: pa.Field) -> st.SearchStrategy[Any]:
    if (field.metadata or {}).get(b"json_form") == b"text":
        return st.dictionaries(_TEXT, st.none() | st.integers(-9, 9) | st.lists(_TEXT, max_size=2), max_size=3)
    return json_of(field.type)


@given(st.data())
def test_nothing_is_lost_in_any_declared_form(data: st.DataObject) -> None:
    stages = [entry.stage for entry in stage_entries().values()]
    declared = [form for stage in stages for table in stage.produces for form in table.parsed.values()]
    assert len(declared) > 15
    form = data.draw(st.sampled_from([FORM, *declared]))
    values = data.draw(st.lists(st.none() | json_of(form), min_size=1, max_size=4))
    texts = [None if value is None else json.dumps(value) for value in values]
    assert all(map(says_the_same, parsed(form, *texts), values))


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({**ITEM, "kind": 7}, r"at \[0\]\.kind: it is a whole number, not text"),
        ({**ITEM, "start": True}, r"at \[0\]\.start: it is true or false, not a whole number"),
        ({**ITEM, "start": 1.0}, r"at \[0\]\.start: it is a number, not a whole number"),
        ({**ITEM, "start": None}, r"at \[0\]: it has no 'start'"),
        ({**ITEM, "extra": 1}, r"at \[0\]: it has the unknown key 'extra'"),
        ({**ITEM, "sources": ["a", None]}, r"at \[0\]\.sources\[1\]: it is null, not text"),
        ({**ITEM, "votes": {"j": {"raw": "no"}}}, r"at \[0\]\.votes\.j\.raw: it is text, not a list"),
        ({**ITEM, "votes": {"j": None}}, r"at \[0\]\.votes\.j: it is null, not an object"),
        ({**ITEM, "parts": [1]}, r"at \[0\]\.parts: it is a list, not an object"),
        ({**ITEM, "models": {"policy": 1}}, r"at \[0\]\.models\.policy: it is a whole number, not text"),
        ("[]", r"at \[0\]: it is text, not an object"),
    ],
)
def test_another_form_is_named_by_row_and_place(item: Any, said: str) -> None:
    good = json.dumps([ITEM])
    with pytest.raises(
        ArtifactError, match=rf"^table things, row 4: column 'said' does not have .* {said}; the stored"
    ):
        parsed(FORM, good, None, good, json.dumps([item]), good)


def test_text_that_is_no_json_and_numbers_that_do_not_fit_are_named() -> None:
    with pytest.raises(ArtifactError, match=r"table things, row 3: column 'said' is not JSON \("):
        parsed(FORM, "[]", "[]", "[")
    with pytest.raises(ArtifactError, match="row 2: column 'said' does not have the declared form: it is an object"):
        parsed(FORM, "[]", "{}")
    with pytest.raises(ArtifactError, match=r"table things, row 3: column 'said' does not fit list<"):
        parsed(FORM, "[]", "[]", json.dumps([{**ITEM, "start": 2**40}]))


def test_every_parsed_column_is_text_in_its_table() -> None:
    stage_entries()
    for table in TABLES.values():
        for name in table.parsed:
            assert table.schema.field(name).type == pa.string(), f"{table.kind}.{name}"
