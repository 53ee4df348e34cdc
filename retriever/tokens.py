"""Split text into words for BM25; documents and queries use the same code."""

from __future__ import annotations

import re
import threading
import unicodedata
from typing import Any

_TOKEN_PATTERN = r"\w+"
_TOKEN = re.compile(_TOKEN_PATTERN)
# Function words that nearly every document has. The list also removes question words from queries.
_STOPWORD_TEXT = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with what which who whom whose when where how does do did"
)
_STOPWORDS = frozenset(_STOPWORD_TEXT.split())

RULES = {
    "pattern": _TOKEN_PATTERN,
    "fold": "NFKC casefold",
    "stemmer": "snowball english",
    "stop_words": _STOPWORD_TEXT,
}
"""Everything that determines the words of a text; part of an index's identity."""


class Tokenizer:
    """A tokenizer into case-folded, stemmed words and numbers without stop words; thread-safe."""

    def __init__(self) -> None:
        self._local = threading.local()

    def words(self, text: str) -> list[str]:
        """Return the words of a document or query, in order."""
        folded = unicodedata.normalize("NFKC", text).casefold()
        words = [word for word in _TOKEN.findall(folded) if word not in _STOPWORDS]
        stemmed: list[str] = self._stemmer().stemWords(words)
        return stemmed

    def _stemmer(self) -> Any:
        # A stemmer has internal buffers, so threads cannot share one.
        if not hasattr(self._local, "stemmer"):
            import Stemmer

            self._local.stemmer = Stemmer.Stemmer("english")
        return self._local.stemmer
