"""Write the request to the person: one message with pictures of the agent's page and of the target page."""

from __future__ import annotations

from typing import Any

from treadle.core.llm.wire import image_part

PNG = "image/png"
_HELPER = "You are a helpful assistant."
_SHOWN = "Picture 1, the assistant's page:"
_NOTHING = "Picture 1, the assistant's page: nothing was shown."
_WANTED = "Picture 2, the page that you want:"


def comparing_messages(instructions: str, shown: bytes | None, wanted: bytes) -> list[dict[str, Any]]:
    """Return the request for the person's reply, from PNG pictures; it has no text of the task or of the agent."""
    own = [_text(_NOTHING)] if shown is None else [_text(_SHOWN), image_part(shown, PNG)]
    parts = [_text(instructions), *own, _text(_WANTED), image_part(wanted, PNG)]
    return [{"role": "system", "content": _HELPER}, {"role": "user", "content": parts}]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
