"""Words as BM25 sees them; documents and queries go through the same code."""

from __future__ import annotations

import re
import threading
import unicodedata
from typing import Any

_TOKEN_PATTERN = r"\w+"
_TOKEN = re.compile(_TOKEN_PATTERN)
# Function words that nearly every document has. Question words are left out of queries by the same list.
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
"""What decides the words of a text; part of an index's identity."""


class Tokenizer:
    """Words and numbers, case folded, without stop words, stemmed. One object serves many threads."""

    def __init__(self) -> None:
        self._local = threading.local()

    def words(self, text: str) -> list[str]:
        """Tokens of a document or query, in order."""
        folded = unicodedata.normalize("NFKC", text).casefold()
        words = [word for word in _TOKEN.findall(folded) if word not in _STOPWORDS]
        stemmed: list[str] = self._stemmer().stemWords(words)
        return stemmed

    def _stemmer(self) -> Any:
        # A stemmer holds buffers of its own, so threads may not share one.
        if not hasattr(self._local, "stemmer"):
            import Stemmer

            self._local.stemmer = Stemmer.Stemmer("english")
        return self._local.stemmer
