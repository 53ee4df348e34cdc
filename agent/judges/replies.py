"""Parse replies of judge models strictly: a reply has the requested form, or it is unreadable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from treadle.core.untrusted.json_text import load_json

_FENCED = re.compile(r"\A```(?:json)?\s*(\{.*\})\s*```\Z", re.DOTALL)
_IGNORED = r"[\s*_`\"'“”‘’()\[\].:,#>-]*"


def match_word(text: str, words: tuple[str, ...]) -> str | None:
    """Return the word that a text consists of, in lower case; None if it is anything but one of `words`.

    Letter case, white space, quotes and emphasis around the word do not matter, and reasoning up to `</think>` is
    ignored.
    """
    pattern = rf"{_IGNORED}({'|'.join(words)})!?{_IGNORED}"
    match = re.fullmatch(pattern, text.rpartition("</think>")[2], re.IGNORECASE)
    return None if match is None else match[1].lower()


def final_block(text: str, name: str) -> str:
    """Return the content of the block `<name>…</name>` that ends a text; the whole text if there is no such tag.

    Reasoning up to `</think>` is dropped, and only the last such block counts. If that block is not closed, or if text
    follows it, the text is returned with its tags, so that it cannot be read as a word.
    """
    reply = text.rpartition("</think>")[2].strip()
    _, opening, rest = reply.rpartition(f"<{name}>")
    inside, closing, after_block = rest.partition(f"</{name}>")
    return inside if opening and closing and not after_block else reply


def json_object(text: str) -> Mapping[str, Any]:
    """Return the JSON object that a text consists of; empty if it is anything else.

    Reasoning up to `</think>` and a code fence around the object are ignored.
    """
    reply = text.rpartition("</think>")[2].strip()
    fenced = _FENCED.match(reply)
    try:
        found = load_json((fenced[1] if fenced else reply).encode())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
