"""Search BM25 indexes that FlashRAG built with bm25s.

The folder holds bm25s' arrays (memory-mapped here), and the vocabulary and stop words of the tokenizer of the corpus.
Queries use that tokenizer, stemmer included; newer versions of FlashRAG omit the stemmer for queries.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from treadle.core.errors import ConfigError, DataError
from treadle.retriever.documents import DocumentStore
from treadle.retriever.index import Index, IndexInfo, Ranking

_TOKENIZER_FILES = ("vocab.tokenizer.json", "stopwords.tokenizer.json")


class PreparedBm25Index(Index):
    """A BM25 index of bm25s; row i of its arrays is document i of the corpus."""

    def __init__(self, folder: Path, info: IndexInfo, documents: DocumentStore, prepared: Path) -> None:
        """Open the index.

        Raises ConfigError without bm25s, DataError if the folder is not one of its indexes or has another number of
        rows.
        """
        super().__init__(folder, info, documents)
        try:
            import bm25s
        except ImportError:
            raise ConfigError("an index of bm25s needs that package; install treadle with its extra flashrag") from None
        import Stemmer

        try:
            # numba only affects speed, and may not be installed.
            self._engine: Any = bm25s.BM25.load(
                prepared, mmap=True, override_params={"backend": "numpy"}, show_progress=False
            )
            self._tokenizer: Any = bm25s.tokenization.Tokenizer(stemmer=Stemmer.Stemmer("english"))
            self._tokenizer.load_vocab(prepared)
            self._tokenizer.load_stopwords(prepared)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{prepared} is not a bm25s index with {' and '.join(_TOKENIZER_FILES)}: {error}") from None
        num_rows = int(self._engine.scores["num_docs"])
        if num_rows != len(documents):
            raise DataError(f"{prepared} has {num_rows:,} rows for {len(documents):,} documents: another corpus")
        self._lock = threading.Lock()

    def _rank(self, queries: Any, top_n: int) -> list[Ranking]:
        return [self._rank_one(query, top_n) for query in queries]

    def _rank_one(self, query: str, top_n: int) -> Ranking:
        import numpy as np

        with self._lock:  # The tokenizer and its stemmer keep state.
            (ids,) = self._tokenizer.tokenize([query], update_vocab=False, show_progress=False, allow_empty=False)
        known = [number for number in ids if number < self._num_terms]
        if not known:
            return []
        scores = self._engine.get_scores_from_ids(known)
        found = np.flatnonzero(scores > 0)
        if len(found) > top_n:
            least = np.partition(scores[found], len(found) - top_n)[len(found) - top_n]
            found = found[scores[found] >= least]
        best = found[np.argsort(-scores[found], kind="stable")][:top_n]
        return [(int(row), float(scores[row])) for row in best]

    @property
    def _num_terms(self) -> int:
        return len(self._engine.scores["indptr"]) - 1
