"""Take the hidden payload of a task out of its row.

The payload is a JSON object that only the environment, the scorer and roles that declare it read. It is stored in
one column of `questions` and nowhere else: not in `meta`, in quarantine, in messages or in logs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from treadle.core.config import canonical_json
from treadle.core.untrusted.input_files import InputRow
from treadle.datagen.questions.layouts import RowRejected

EMPTY = "{}"
"""The payload of a question without one."""
MASK = "[payload]"
"""Text that replaces a hidden value when a row is shown."""
_UNREADABLE = "bad_value"
_MAX_DEPTH = 200
"""Most nested levels of a payload; every JSON reader in Treadle accepts more."""


def payload_of(fields: Mapping[str, Any], columns: Sequence[str], max_chars: int) -> str:
    """Return the payload `{column: value}` of a row as canonical JSON.

    Raises RowRejected for a column that the row lacks, a value that JSON does not have, and more than `max_chars`.
    """
    if missing := next((name for name in columns if name not in fields), None):
        raise RowRejected("missing_field", f"the row has no field {missing!r}, which questions.sources.payload names")
    return canonical({name: fields[name] for name in columns}, max_chars)


def canonical(payload: Any, max_chars: int) -> str:
    """Return a payload as JSON with sorted keys; raise RowRejected if it is not an object or cannot be stored."""
    if not isinstance(payload, dict):
        raise RowRejected("bad_payload", f"the payload is of type {type(payload).__name__}, not an object")
    for name, value in payload.items():
        if problem := _problem({name: value}, 0):
            raise RowRejected("bad_payload", f"the payload with its field {str(name)[:60]!r} has {problem}")
    text = canonical_json(payload).decode()
    if len(text) > max_chars:
        raise RowRejected("too_long", f"the payload has {len(text):,} characters; the limit is {max_chars:,}")
    return text


def _problem(value: Any, depth: int) -> str:
    """Return the reason why a value cannot be written as JSON that all readers read alike; empty if it can."""
    if depth > _MAX_DEPTH:
        return f"more than {_MAX_DEPTH} nested levels"
    if value is None or isinstance(value, bool):
        return ""
    # Exact types: subclasses, such as numpy's floats, are not JSON.
    if type(value) is str:
        return _problem_of_text(value)
    if type(value) is int:
        return "" if -(2**63) <= value < 2**64 else "an integer beyond 64 bits; write it as text"
    if type(value) is float:
        return "" if math.isfinite(value) else "NaN or an infinity; write null or text"
    if type(value) is dict:
        if not all(type(name) is str for name in value):
            return "an object with a key that is not text"
        parts: Iterator[Any] = (part for pair in value.items() for part in pair)
    elif type(value) in (list, tuple):
        parts = iter(value)
    else:
        return f"a value of type {type(value).__name__}, which JSON does not have; write it as text"
    return next((problem for part in parts if (problem := _problem(part, depth + 1))), "")


def _problem_of_text(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "a text with a lone surrogate"
    return ""


def texts_in(payload: str) -> list[str]:
    """Return all texts in a payload except field names: those of objects by sorted field name, of lists in order."""
    return [] if payload == EMPTY else list(_texts(orjson.loads(payload)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name in sorted(value):
            yield from _texts(value[name])


def masked(row: InputRow, columns: Sequence[str]) -> InputRow:
    """Return the row with a mask for the value of each payload column, or for all of a row that cannot be read."""
    if not columns:
        return row
    if row.value is None:
        detail = "a value of the row cannot be read" if row.reason == _UNREADABLE else row.detail
        return InputRow(row.number, None, row.reason, detail, json.dumps(MASK).encode())
    return InputRow(row.number, {name: MASK if name in columns else value for name, value in row.value.items()})
