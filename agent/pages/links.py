"""Find the URLs that a model, or a client of the service, asks to read. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_BAR = re.compile(r"(?<!\\)\|")
_MARKDOWN = re.compile(r"\[[^\]]*\]\((https?://[^\s)]+)\)", re.IGNORECASE)
_IN_TEXT = re.compile(r"https?://[^\s<>\"]+", re.IGNORECASE)
_WHOLE = re.compile(r"https?://\S.*", re.IGNORECASE)
_AROUND = "<>\"'`"
_AFTER = ".,;:!?)]}"
"""Characters that end a sentence or close a bracket rather than belong to a URL in a text."""


def split_links(argument: str) -> list[str]:
    r"""Return the non-empty parts of a text between `|` characters, stripped; `\|` is a `|` inside a part."""
    parts = (part.replace("\\|", "|").strip() for part in _BAR.split(argument))
    return [part for part in parts if part]


def find_urls(texts: Sequence[str]) -> list[str]:
    """Return the URL of each text: that of a Markdown link, the text itself, or the first one in it.

    Texts without an http(s) URL are left out. The order is kept.
    """
    found = map(_url_of, texts)
    return [url for url in found if url]


def _url_of(text: str) -> str:
    text = text.strip().strip(_AROUND)
    if link := _MARKDOWN.search(text):
        return link[1]
    if _WHOLE.fullmatch(text) and not re.search(r"\s", text):
        return text
    first = _IN_TEXT.search(text)
    return first[0].rstrip(_AFTER + _AROUND) if first else ""
