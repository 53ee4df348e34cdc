"""Find records of experience by words (BM25) or by vectors of an encoder, with code of the package `retriever`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from treadle.core.errors import DataError
from treadle.retriever.config import EncoderSettings
from treadle.rl.experience.record import Experience

if TYPE_CHECKING:
    from treadle.retriever.dense.encoders import Encoder

Ranker = Callable[[str, int], list[int]]
"""Function from a query and a number k to the indices of at most k records, the best first."""


class Finder(Protocol):
    """Way to find records."""

    def ranker(self, records: Sequence[Experience]) -> Ranker:
        """Return a function that ranks these records."""
        ...


class WordFinder:
    """Finder by BM25; it finds only records that share a word with the query."""

    def ranker(self, records: Sequence[Experience]) -> Ranker:
        """See `Finder`."""
        # Imported here: configurations import this package, and the index needs packages of its own.
        from treadle.retriever.bm25 import WordRanker, build
        from treadle.retriever.corpus import Document

        with (
            tempfile.TemporaryDirectory(prefix="treadle-experience-", ignore_cleanup_errors=True) as folder,
            # `build` fails if all records consist of stop words: there is no word to search for.
            contextlib.suppress(DataError),
        ):
            build(Path(folder), (Document(one.key, one.situation, one.advice) for one in records))
            # The index is memory-mapped, so its files may be deleted while it is in use.
            words = WordRanker(Path(folder))
            return lambda query, top_k: [row for row, _ in words.rank(query, top_k)]
        return lambda query, top_k: []


class VectorFinder:
    """Finder by the inner product of vectors; it finds as many records as asked for, if there are so many."""

    def __init__(self, settings: EncoderSettings) -> None:
        """Use an encoder, which is opened by the first call of `ranker`."""
        self._settings = settings
        self._encoder: Encoder | None = None

    def ranker(self, records: Sequence[Experience]) -> Ranker:
        """See `Finder`. Raises ConfigError, EngineError and ModelError as encoders do."""
        from treadle.retriever.dense.open_encoder import open_encoder

        encoder = self._encoder = self._encoder or open_encoder(self._settings)
        vectors = encoder.encode_passages([one.text for one in records])

        def rank(query: str, top_k: int) -> list[int]:
            scores = vectors @ encoder.encode_queries([query])[0]
            order = sorted(range(len(records)), key=lambda row: (-float(scores[row]), row))
            return order[:top_k]

        return rank


def open_finder(encoder: EncoderSettings | None) -> Finder:
    """Return a finder by the vectors of an encoder, or by words if `encoder` is None."""
    return WordFinder() if encoder is None else VectorFinder(encoder)
