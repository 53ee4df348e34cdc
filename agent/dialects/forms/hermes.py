"""Read and write calls as Hermes and Qwen models do: JSON objects between <tool_call> and </tool_call>."""

from __future__ import annotations

import re
from collections.abc import Sequence

import orjson

from treadle.agent.dialects.forms.base import CallText, read_call, schemas_text
from treadle.agent.tools.schema import ToolSchema

OPENING = "<tool_call>"
CLOSING = "</tool_call>"
_SPELLED_MARKERS = 16
"""Most closing markers inside the strings of one call; without this limit, hostile text takes quadratic time."""
_MARKERS = re.compile(r"<\s*/?\s*(?:tool_call|tool_response|tools)\s*>", re.IGNORECASE)

_SYSTEM = """You can call these tools:
<tools>
{tools}
</tools>

To call one, write its name and arguments as JSON; several calls may follow each other:
<tool_call>
{{"name": "…", "arguments": {{…}}}}
</tool_call>

End your turn after the calls. Their results follow between <tool_response> and </tool_response>."""
_ADDED = """You can now also call these tools:
<tools>
{tools}
</tools>"""


class HermesForm:
    """Form of Hermes, Qwen 2.5 and Qwen 3; it is also used with templates that have no place for tools."""

    name = "hermes"
    markers = _MARKERS

    def find(self, text: str) -> list[CallText]:
        """See `ToolForm`."""
        calls = []
        position = 0
        while (start := text.find(OPENING, position)) >= 0:
            call = _call_from(text, start)
            if call is None:
                break
            calls.append(call)
            position = call.end
        return calls

    def begins_call(self, text: str) -> bool:
        """See `ToolForm`."""
        return OPENING in text

    def is_written_in(self, example: str) -> bool:
        """See `ToolForm`."""
        return OPENING in example and '"arguments"' in example


def _call_from(text: str, start: int) -> CallText | None:
    """Return the call that begins at a marker; None if it is incomplete.

    Strings of its JSON may contain closing markers. So the call ends at the first closing marker with valid JSON before
    it; if there is none such, it ends at the first closing marker of all. Without a closing marker, the rest of the
    text is the call if it is valid JSON; servers read it in the same way.
    """
    begin = start + len(OPENING)
    first: CallText | None = None
    position = begin
    for _ in range(_SPELLED_MARKERS + 1):
        closing = text.find(CLOSING, position)
        if closing < 0:
            break
        position = closing + len(CLOSING)
        data = text[begin:closing].strip()
        try:
            orjson.loads(data)
        except orjson.JSONDecodeError:
            first = first or read_call(start, position, data, "arguments")
            if not _ends_in_string(data):
                break
        else:
            return read_call(start, position, data, "arguments")
    if position > begin:
        return first
    call = read_call(start, len(text), text[begin:].strip(), "arguments")
    return None if call.error else call


def _ends_in_string(data: str) -> bool:
    """Return whether a string of JSON is open at the end of a text."""
    return data.replace("\\\\", "").replace('\\"', "").count('"') % 2 == 1


def write_call(name: str, arguments: str) -> str:
    """Return the text of a call; if a model wrote `arguments` that are not JSON, they are written as a JSON string."""
    try:
        orjson.loads(arguments or "{}")
        written = arguments or "{}"
    except orjson.JSONDecodeError:
        written = orjson.dumps(arguments).decode()
    if "<" in written:
        # In JSON, `<` occurs only in strings, so its escape does not change the call, and no string closes the block.
        written = written.replace("<", "\\u003c")
    spelled = orjson.dumps(name).decode().replace("<", "\\u003c")
    return f'{OPENING}\n{{"name": {spelled}, "arguments": {written}}}\n{CLOSING}'


def escape_calls(text: str) -> str:
    """Return text of a turn in which no call can begin or end."""
    return text.replace(OPENING, "&lt;tool_call>").replace(CLOSING, "&lt;/tool_call>")


def system_text(tools: Sequence[ToolSchema]) -> str:
    """Return the part of a system message that tells a model of its tools."""
    return _SYSTEM.format(tools=_told(tools))


def added_text(tools: Sequence[ToolSchema]) -> str:
    """Return the message that tells a model of tools that were added during an episode."""
    return _ADDED.format(tools=_told(tools))


def _told(tools: Sequence[ToolSchema]) -> str:
    """Return schemas as JSON with all markers escaped, because tool servers may have written texts of the schemas."""
    return _MARKERS.sub(lambda found: found[0].replace("<", "\\u003c"), schemas_text(tools))


def response_text(text: str) -> str:
    """Return the text of a tool result for a user message, for templates without a role for results."""
    return f"<tool_response>\n{text}\n</tool_response>"
