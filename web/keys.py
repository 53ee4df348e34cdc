"""Compute the keys of record entries: of a search by its words and language, of a page by its URL. Pure."""

from __future__ import annotations

import unicodedata

from treadle.core.config import digest_json
from treadle.web.types import Language

KEY_CHARS = 32


def search_key(query: str, language: Language) -> str:
    """Return the key of a search (32 hex digits).

    White space does not count. Letter case and punctuation do: C, C# and C++ differ.
    """
    return digest_json(["search", 1, language, " ".join(unicodedata.normalize("NFC", query).split())])[:KEY_CHARS]


def page_key(url: str) -> str:
    """Return the key of a page (32 hex digits); `url` is in the normal form of `urls.checked_url`."""
    return digest_json(["page", 1, url])[:KEY_CHARS]


def loose_key(query: str) -> str:
    """Return the key of a search by its words only, in lower case without punctuation, as ET-Agent records them."""
    kept = "".join(" " if unicodedata.category(char)[0] in "PS" else char for char in query.casefold())
    return digest_json(["loose", 1, " ".join(kept.split())])[:KEY_CHARS]
