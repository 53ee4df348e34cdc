"""What every index can do: answer queries with the best documents of one corpus.

BM25, dense and hybrid indexes differ in how they rank; queries, ties, limits and the documents that come back are the
same for all and decided here. Documented in docs/behaviour/retrieval.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from treadle.retriever.corpus import Document
from treadle.retriever.documents import DocumentStore

MAX_QUERY_CHARS = 4_096
"""A longer query is cut: no honest one comes near, and tokenising megabytes would hold up the others."""

Ranking = list[tuple[int, float]]
"""Row numbers of documents with their scores: falling scores, equal ones in corpus order, no row twice."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found. What its score means is the engine's: BM25, inner product, or sum of reciprocal ranks."""

    id: str
    title: str
    text: str
    score: float

    @property
    def contents(self) -> str:
        """Title line and text, as in the corpus."""
        return Document(self.id, self.title, self.text).contents


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """What an index says of itself; `GET /info` of a service shows it."""

    engine: str
    """bm25, dense or hybrid."""
    fingerprint: str
    """Hex digest of all that decides what the index answers; a key for caches of results."""
    num_documents: int
    num_bytes: int
    """Of all its files."""
    encoder: str | None = None
    dimension: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The index's own description, as in its `index.json`."""


class Index(ABC):
    """A finished index, open for reading. `search` and `search_batch` may be called from many threads at once."""

    def __init__(self, folder: Path, info: IndexInfo, documents: DocumentStore) -> None:
        self.folder = folder
        self.info = info
        self.documents = documents

    @property
    def num_documents(self) -> int:
        """Documents (after chunking) that can be found."""
        return self.info.num_documents

    def search(self, query: str, top_n: int) -> list[Hit]:
        """At most `top_n` documents, best first, equal scores in corpus order.

        A blank query, or `top_n` below 1, finds nothing. No document comes twice, whatever `top_n` is.
        """
        return self.search_batch([query], top_n)[0]

    def search_batch(self, queries: Sequence[str], top_n: int) -> list[list[Hit]]:
        """What `search` finds for each query, in their order; raises ModelError where an encoder fails."""
        return [[self._hit(row, score) for row, score in ranking] for ranking in self.rank_batch(queries, top_n)]

    def rank_batch(self, queries: Sequence[str], top_n: int) -> list[Ranking]:
        """The same as row numbers, for fusion and measurements."""
        rankings: list[Ranking] = [[] for _ in queries]
        # Text as it can be encoded: a lone surrogate would stop a tokenizer in the middle of a batch.
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
        """Give back what is more than memory-mapped files, such as an encoder's connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
