"""Turn results of MCP tools into outcomes. Servers are not trusted: text is cleaned, and binary content stays out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from treadle.agent.tools.outcome import ToolOutcome, clip
from treadle.agent.tools.python import clean
from treadle.core.untrusted.sanitize import one_line, sanitized_json
from treadle.web.pages.control_tokens import without_known_tokens

if TYPE_CHECKING:
    from mcp_types import CallToolResult

MAX_PARTS = 1000
_MAX_LABEL_CHARS = 200
# All but tab and newline, with terminal sequences as a whole.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff]")


def outcome_of(result: CallToolResult, max_chars: int) -> ToolOutcome:
    """Return the outcome of a call: `error` if the server reports one, else `ok` or `empty`."""
    parts = [_text(part) for part in result.content[:MAX_PARTS]]
    if len(result.content) > MAX_PARTS:
        parts.append(f"[{len(result.content) - MAX_PARTS} further parts are not shown]")
    has_text = any(part.type == "text" for part in result.content)
    if result.structured_content is not None and not has_text:
        parts.append(_json(result.structured_content))
    text = shown("\n".join(filter(None, parts)), max_chars)
    if result.is_error:
        return ToolOutcome("error", text or "The tool reported an error without a text.")
    return ToolOutcome("ok" if text else "empty", text)


def error_outcome(message: str, code: int, max_chars: int) -> ToolOutcome:
    """Return the outcome of a call that the server refused with a JSON-RPC error."""
    return ToolOutcome("error", shown(message, max_chars) or "The call failed.", note=f"JSON-RPC error {code}")


def shown(text: str, max_chars: int) -> str:
    """Return the text of a server for the model: no control characters, no control tokens, at most `max_chars`."""
    # Clipped twice: cleaning a huge text is slow, and escapes make it longer.
    plain = clean(_CONTROL.sub("", clip(text, 4 * max_chars).replace("\r\n", "\n").replace("\r", "\n")))
    return clip(without_known_tokens(plain), max_chars)


def is_plain(text: str) -> bool:
    """Return whether a text can be shown unchanged."""
    return shown(text, len(text)) == clean(text)


def label(text: object) -> str:
    """Return a short text of a server on one line, for messages."""
    line = one_line(str(text))
    return line if len(line) <= _MAX_LABEL_CHARS else f"{line[:_MAX_LABEL_CHARS]}..."


def _text(part: Any) -> str:
    """Return the text of a part of a result; for a part that is no text, return a notice with its type and size."""
    if part.type == "text":
        return str(part.text)
    if part.type in ("image", "audio"):
        return f"[{part.type} {label(part.mime_type)}, {_size(len(part.data) * 3 // 4)}, not shown]"
    if part.type == "resource_link":
        has_size = "" if part.size is None else f", {_size(part.size)}"
        return f"[link to {label(part.uri)}{_kind(part.mime_type)}{has_size}]"
    resource = part.resource
    size = len(resource.text.encode("utf-8", "replace")) if hasattr(resource, "text") else len(resource.blob) * 3 // 4
    return f"[resource {label(resource.uri)}{_kind(resource.mime_type)}, {_size(size)}, not shown]"


def _kind(mime_type: str | None) -> str:
    return "" if mime_type is None else f", {label(mime_type)}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes} bytes" if num_bytes < 1024 else f"{num_bytes / 1024:.0f} KiB"


def _json(value: Any) -> str:
    try:
        return sanitized_json(value)
    except (TypeError, ValueError, RecursionError):  # an integer of more than 64 bits, or invalid unicode
        return "[structured content that is not plain JSON, not shown]"
