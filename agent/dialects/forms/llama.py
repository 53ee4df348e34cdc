"""Read calls as Llama 3 models write them: JSON objects {"name": …, "parameters": {…}} that are the whole turn."""

from __future__ import annotations

import json
import re

from treadle.agent.dialects.forms.base import CallText, call_of, read_call

PYTHON_TAG = "<|python_tag|>"
_DECODER = json.JSONDecoder()
_BETWEEN = re.compile(r"[\s;,]*")


class LlamaForm:
    """Form of Llama 3.1 to 3.3: JSON objects, separated by semicolons or white space, or in a list."""

    name = "llama"
    markers = re.compile(r"<\|\s*python_tag\s*\|>", re.IGNORECASE)

    def find(self, text: str) -> list[CallText]:
        """See `ToolForm`; a turn that does not begin with a JSON object or the tag has no calls."""
        tag = text.find(PYTHON_TAG)
        start = tag + len(PYTHON_TAG) if tag >= 0 else 0
        begin = _skip(text, start)
        if text[begin : begin + 1] == "[":
            return self._listed(text, begin)
        calls: list[CallText] = []
        while text[begin : begin + 1] == "{":
            try:
                value, end = _DECODER.raw_decode(text, begin)
            except (json.JSONDecodeError, RecursionError):
                # An object that is not JSON is a call only if it names itself one.
                if tag >= 0 or '"name"' in text[begin:]:
                    calls.append(read_call(begin, len(text), text[begin:], "parameters"))
                break
            if "name" not in value:
                break
            calls.append(call_of(begin, end, value, _key(value)))
            begin = _skip(text, end)
        return calls

    def _listed(self, text: str, begin: int) -> list[CallText]:
        """Return the calls of a list; they share its place, which the first one has."""
        try:
            values, end = _DECODER.raw_decode(text, begin)
        except (json.JSONDecodeError, RecursionError):
            return []
        if not values or not all(isinstance(value, dict) and "name" in value for value in values):
            return []
        places = [(begin, end), *[(end, end)] * (len(values) - 1)]
        return [call_of(*place, value, _key(value)) for place, value in zip(places, values, strict=True)]

    def begins_call(self, text: str) -> bool:
        """See `ToolForm`."""
        return PYTHON_TAG in text or (text.lstrip().startswith("{") and '"name"' in text)

    def is_written_in(self, example: str) -> bool:
        """See `ToolForm`."""
        return '"parameters"' in example and "<tool_call>" not in example


def _key(value: dict[str, object]) -> str:
    return "arguments" if "arguments" in value and "parameters" not in value else "parameters"


def _skip(text: str, position: int) -> int:
    found = _BETWEEN.match(text, position)
    return found.end() if found else position
