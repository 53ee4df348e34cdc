"""Define what every index does: answer queries with the best documents of one corpus.

BM25, dense and hybrid indexes differ only in how they rank. Queries, ties, limits and returned documents are handled
here, the same for all. See docs/behaviour/retrieval.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from treadle.retriever.corpus import Document
from treadle.retriever.documents import DocumentStore

MAX_QUERY_CHARS = 4_096
"""Maximum length of a query, which is truncated to it: no real query is longer, and tokenising megabytes would delay
others."""

Ranking = list[tuple[int, float]]
"""Row numbers of documents with their scores, in descending order of score, ties in corpus order, no row twice."""


@dataclass(frozen=True, slots=True)
class Hit(Document):
    """A document that was found. The score depends on the engine: BM25, inner product, or sum of reciprocal ranks."""

    score: float


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """The description of an index, as `GET /info` of a service shows it."""

    engine: str
    """How the index ranks: `bm25`, `dense` or `hybrid`."""
    fingerprint: str
    """Hex digest of everything that determines the index's answers; usable as a key of result caches."""
    num_documents: int
    num_bytes: int
    """Size of all files of the index in bytes."""
    encoder: str | None = None
    dimension: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The index's own description, from its `index.json`."""


class Index(ABC):
    """A finished index, open for reading. Several threads may call `search` and `search_batch` at once."""

    def __init__(self, folder: Path, info: IndexInfo, documents: DocumentStore) -> None:
        self.folder = folder
        self.info = info
        self.documents = documents

    @property
    def num_documents(self) -> int:
        """Number of documents (after chunking) that can be found."""
        return self.info.num_documents

    def search(self, query: str, top_n: int) -> list[Hit]:
        """Return at most `top_n` documents, best first, equal scores in corpus order.

        Returns none for a blank query or a `top_n` below 1. No document is returned twice.
        """
        return self.search_batch([query], top_n)[0]

    def search_batch(self, queries: Sequence[str], top_n: int) -> list[list[Hit]]:
        """Search for each query, and return the results in order; raise ModelError if an encoder fails."""
        return [[self._hit(row, score) for row, score in ranking] for ranking in self.rank_batch(queries, top_n)]

    def rank_batch(self, queries: Sequence[str], top_n: int) -> list[Ranking]:
        """Return the results of `search_batch` as row numbers and scores, for fusion and measurements."""
        rankings: list[Ranking] = [[] for _ in queries]
        # Encodable text only: a lone surrogate would make a tokenizer fail in the middle of a batch.
        asked = [query[:MAX_QUERY_CHARS].encode("utf-8", "replace").decode("utf-8") for query in queries]
        places = [place for place, query in enumerate(asked) if query.strip()]
        if places and top_n > 0:
            found = self._rank([asked[place] for place in places], min(top_n, self.num_documents))
            for place, ranking in zip(places, found, strict=True):
                rankings[place] = ranking
        return rankings

    @abstractmethod
    def _rank(self, queries: Sequence[str], top_n: int) -> list[Ranking]:
        """Rank for queries that are not blank; 1 <= top_n <= number of documents."""

    def _hit(self, row: int, score: float) -> Hit:
        document = self.documents[row]
        return Hit(document.id, document.title, document.text, score)

    def close(self) -> None:  # noqa: B027
        """Release resources other than memory-mapped files, such as an encoder's connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
