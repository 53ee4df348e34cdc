"""Read the messages of a chat request, whose contents may be lists of texts and pictures."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

PICTURE = "[picture]"
"""Placeholder for a picture in the text of a message."""
_URL = "data:image/png;base64,"


class BadParts(ValueError):
    """Messages that the tutor does not read; the message is for the client."""


def read_parts(messages: Sequence[Any]) -> tuple[list[dict[str, str]], tuple[bytes, ...]]:
    """Return messages whose contents are texts, and all their pictures in their order. Raises BadParts."""
    texts: list[dict[str, str]] = []
    pictures: list[bytes] = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadParts("every message needs role and content")
        content = message.get("content")
        if isinstance(content, list):
            content = "\n".join(_text(part, pictures) for part in content)
        if not isinstance(content, str):
            raise BadParts("the content of a message is a text, or a list of texts and pictures")
        texts.append({**message, "content": content})
    return texts, tuple(pictures)


def _text(part: Any, pictures: list[bytes]) -> str:
    """Return the text of a part; its picture is added to the others."""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    picture = part.get("image_url") if isinstance(part, dict) else None
    url = picture.get("url") if isinstance(picture, dict) else None
    if not isinstance(url, str) or not url.startswith(_URL):
        raise BadParts("a part of a message is a text, or a PNG picture as a data URL")
    try:
        pictures.append(base64.b64decode(url.removeprefix(_URL), validate=True))
    except binascii.Error as error:
        raise BadParts(f"a picture is no base64: {error}") from None
    return PICTURE
