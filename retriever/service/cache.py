"""Cache the results of earlier queries, as row numbers and scores, in bounded memory."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from cachetools import LRUCache

from treadle.retriever.index import Ranking

_BYTES_PER_ENTRY = 400
"""Approximate size of an entry without its query and numbers."""


@dataclass(frozen=True, slots=True)
class _Entry:
    rows: array[int]
    scores: array[float]
    query_chars: int


def _size(entry: _Entry) -> int:
    return _BYTES_PER_ENTRY + 4 * entry.query_chars + 16 * len(entry.rows)


class RankingCache:
    """A least-recently-used cache of the rankings of one index; a new index gets an empty cache."""

    def __init__(self, max_bytes: int) -> None:
        self._entries: LRUCache[tuple[str, int], _Entry] = LRUCache(max_bytes, getsizeof=_size)

    @property
    def num_bytes(self) -> int:
        """Approximate memory in use."""
        return int(self._entries.currsize)

    def get(self, query: str, top_n: int) -> Ranking | None:
        """Return the ranking of a query, or None."""
        entry = self._entries.get((query, top_n))
        return None if entry is None else list(zip(entry.rows, entry.scores, strict=True))

    def put(self, query: str, top_n: int, ranking: Ranking) -> None:
        """Store a ranking, unless it is larger than the whole cache."""
        rows = array("q", [row for row, _ in ranking])
        entry = _Entry(rows, array("d", [score for _, score in ranking]), len(query))
        if _size(entry) <= self._entries.maxsize:
            self._entries[query, top_n] = entry
