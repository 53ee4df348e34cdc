"""An index whose searches can be stopped and made to fail, over documents that say their own number."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from treadle.retriever.corpus import Document
from treadle.retriever.documents import DocumentStore, write_documents
from treadle.retriever.index import Index, IndexInfo, Ranking


class HeldIndex(Index):
    """Finds the documents whose text holds a word of the query, in order; waits for `go` while it is `held`."""

    def __init__(self, folder: Path, texts: Sequence[str], ids: Sequence[str] | None = None) -> None:
        documents = [Document(ids[row] if ids else str(row), f"Title {row}", text) for row, text in enumerate(texts)]
        list(write_documents(folder, documents))
        info = IndexInfo("bm25", "f" * 64, len(texts), 1)
        super().__init__(folder, info, DocumentStore(folder))
        self.texts = texts
        self.held = False
        self.began = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.batches: list[list[str]] = []
        self.failure: Exception | None = None
        self.closed = False

    def _rank(self, queries: Sequence[str], top_n: int) -> list[Ranking]:
        self.batches.append(list(queries))
        self.began.release()
        if self.held:
            self.go.acquire()
        if self.failure is not None:
            raise self.failure
        return [self._found(query)[:top_n] for query in queries]

    def _found(self, query: str) -> Ranking:
        words = set(query.split())
        scored = [(row, float(len(words & set(text.split())))) for row, text in enumerate(self.texts)]
        return sorted([(row, score) for row, score in scored if score], key=lambda one: (-one[1], one[0]))

    def close(self) -> None:
        self.closed = True
