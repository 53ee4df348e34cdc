"""Read and write calls as Hermes and Qwen models do: JSON objects between <tool_call> and </tool_call>."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import orjson

from treadle.agent.dialects.forms.base import CallText, read_call, schemas_text
from treadle.agent.tools.schema import ToolSchema

OPENING = "<tool_call>"
CLOSING = "</tool_call>"
_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder()
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
    """Form of Hermes, Qwen 2.5 and Qwen 3; also the one for templates that know no tools."""

    name = "hermes"
    markers = _MARKERS

    def find(self, text: str) -> list[CallText]:
        """See `ToolForm`."""
        calls = []
        position = 0
        while (start := text.find(OPENING, position)) >= 0:
            closing = _closing(text, start + len(OPENING))
            if closing < 0:
                break
            position = closing + len(CLOSING)
            calls.append(read_call(start, position, text[start + len(OPENING) : closing].strip(), "arguments"))
        return calls

    def begins_call(self, text: str) -> bool:
        """See `ToolForm`."""
        return OPENING in text

    def is_written_in(self, example: str) -> bool:
        """See `ToolForm`."""
        return OPENING in example and '"arguments"' in example


def _closing(text: str, begin: int) -> int:
    """Return the offset of the marker that ends a call; -1 if there is none. Strings of its JSON may spell markers."""
    try:
        _, end = _DECODER.raw_decode(text, _after_space(text, begin))
    except (json.JSONDecodeError, RecursionError):
        return text.find(CLOSING, begin)
    end = _after_space(text, end)
    return end if text.startswith(CLOSING, end) else text.find(CLOSING, begin)


def _after_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position


def write_call(name: str, arguments: str) -> str:
    """Return the text of a call; `arguments` is JSON text, or what a model wrote in its place."""
    try:
        orjson.loads(arguments or "{}")
        written = arguments or "{}"
    except orjson.JSONDecodeError:
        written = orjson.dumps(arguments).decode()
    if "<" in written:
        # Only strings of JSON contain it, so the escape means the same and can end no block.
        written = written.replace("<", "\\u003c")
    spelled = orjson.dumps(name).decode().replace("<", "\\u003c")
    return f'{OPENING}\n{{"name": {spelled}, "arguments": {written}}}\n{CLOSING}'


def system_text(tools: Sequence[ToolSchema]) -> str:
    """Return the part of a system message that tells a model of its tools."""
    return _SYSTEM.format(tools=schemas_text(tools))


def added_text(tools: Sequence[ToolSchema]) -> str:
    """Return the message that tells a model of tools that were added during an episode."""
    return _ADDED.format(tools=schemas_text(tools))


def response_text(text: str) -> str:
    """Return a result for a template that has no role for it."""
    return f"<tool_response>\n{text}\n</tool_response>"
