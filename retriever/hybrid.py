"""Combine the rankings by words and by vectors, by their ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.retriever.bm25 import FOLDER, WordRanker
from treadle.retriever.config import DenseSettings
from treadle.retriever.dense.index import DenseIndex
from treadle.retriever.documents import DocumentStore
from treadle.retriever.index import IndexInfo, Ranking

if TYPE_CHECKING:
    from treadle.retriever.dense.encoders import Encoder

FUSED_DEPTH = 100
"""Minimum number of documents from each ranking; it is fixed, so that a larger `top_n` does not change the first
results."""


def reciprocal_ranks(rankings: Iterable[Sequence[int]], top_n: int, k: int = 60) -> Ranking:
    """Fuse rankings by the sum of 1 / (k + rank), ranks from 1 (reciprocal rank fusion); ties in corpus order."""
    scores: dict[int, list[float]] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, start=1):
            scores.setdefault(row, []).append(1.0 / (k + rank))
    # fsum: equal ranks give an equal sum, whichever ranking they come from.
    fused = [(row, math.fsum(parts)) for row, parts in scores.items()]
    return sorted(fused, key=lambda item: (-item[1], item[0]))[:top_n]


class HybridIndex(DenseIndex):
    """An index by words and by vectors; like a dense index, it can return the whole corpus."""

    def __init__(
        self, folder: Path, info: IndexInfo, documents: DocumentStore, settings: DenseSettings, encoder: Encoder
    ) -> None:
        super().__init__(folder, info, documents, settings, encoder)
        self._words = WordRanker(folder / FOLDER)

    def _rank(self, queries: Sequence[str], top_n: int) -> list[Ranking]:
        depth = min(max(top_n, FUSED_DEPTH), self.num_documents)
        by_vector = super()._rank(queries, depth)
        by_word = [self._words.rank(query, depth) for query in queries]
        return [
            reciprocal_ranks(([row for row, _ in words], [row for row, _ in vectors]), top_n)
            for words, vectors in zip(by_word, by_vector, strict=True)
        ]
