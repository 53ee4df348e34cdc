"""Read calls as Llama 3 models write them: JSON objects {"name": …, "parameters": {…}} that are the whole turn."""

from __future__ import annotations

import json
import re

import orjson

from treadle.agent.dialects.forms.base import CallText, call_of, read_call

PYTHON_TAG = "<|python_tag|>"
_NAME = '"name"'
_DECODER = json.JSONDecoder()
_BETWEEN = re.compile(r"[\s;,]*")


class LlamaForm:
    """Form of Llama 3.1 to 3.3: JSON objects, separated by semicolons or white space, or in a list."""

    name = "llama"
    markers = re.compile(r"<\|\s*python_tag\s*\|>", re.IGNORECASE)

    def find(self, text: str) -> list[CallText]:
        """See `ToolForm`. Calls begin after `<|python_tag|>` or, without this tag, at the beginning of the turn."""
        tag = text.find(PYTHON_TAG)
        begin = _skip(text, tag + len(PYTHON_TAG) if tag >= 0 else 0)
        if text[begin : begin + 1] == "[":
            return _listed(text, begin)
        calls: list[CallText] = []
        while text[begin : begin + 1] == "{":
            end = _json_end(text, begin)
            if end is None:
                # Text that is not valid JSON is a faulty call if it follows the tag or has a name, else plain text.
                if tag >= 0 or _NAME in text[begin:]:
                    calls.append(read_call(begin, len(text), text[begin:], "parameters"))
                break
            call = _call_in(text, begin, end, is_tagged=tag >= 0)
            if call is None:
                break
            calls.append(call)
            begin = _skip(text, end)
        return calls

    def begins_call(self, text: str) -> bool:
        """See `ToolForm`."""
        if PYTHON_TAG in text:
            return True
        begin = _skip(text, 0)
        if text[begin : begin + 1] not in ("{", "["):
            return False
        return bool(self.find(text)) or (_NAME in text and _json_end(text, begin) is None)

    def is_written_in(self, example: str) -> bool:
        """See `ToolForm`."""
        return '"parameters"' in example and "<tool_call>" not in example


def _json_end(text: str, begin: int) -> int | None:
    """Return the offset after the JSON value that begins at `begin`; None if there is none."""
    try:
        return _DECODER.raw_decode(text, begin)[1]
    except (ValueError, RecursionError):  # ValueError: also a number of thousands of digits
        return None


def _call_in(text: str, begin: int, end: int, *, is_tagged: bool) -> CallText | None:
    """Return the call in a JSON object; None if the object is no call, such as an answer in JSON.

    An object with a name but without parameters is a call only if `<|python_tag|>` precedes it (`is_tagged`).
    """
    data = text[begin:end]
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:  # Python reads more than JSON, such as NaN
        return read_call(begin, end, data, "parameters") if _NAME in data else None
    is_call = _is_call(value) or (is_tagged and "name" in value)
    return call_of(begin, end, value, _key(value)) if is_call else None


def _listed(text: str, begin: int) -> list[CallText]:
    """Return the calls in the JSON list at `begin`; an empty list unless all its items are calls.

    The first call has the offsets of the whole list; the others have an empty range at its end.
    """
    end = _json_end(text, begin)
    try:
        values = orjson.loads(text[begin:end]) if end is not None else []
    except orjson.JSONDecodeError:
        values = []
    if end is None or not values or not all(map(_is_call, values)):
        return []
    places = [(begin, end), *[(end, end)] * (len(values) - 1)]
    return [call_of(*place, value, _key(value)) for place, value in zip(places, values, strict=True)]


def _is_call(value: object) -> bool:
    return isinstance(value, dict) and "name" in value and ("parameters" in value or "arguments" in value)


def _key(value: dict[str, object]) -> str:
    return "arguments" if "arguments" in value and "parameters" not in value else "parameters"


def _skip(text: str, position: int) -> int:
    found = _BETWEEN.match(text, position)
    return found.end() if found else position
