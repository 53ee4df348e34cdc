"""Hold the records of one workspace without duplicates, and find those that fit a task."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from treadle.rl.experience.finders import Finder, Ranker, WordFinder
from treadle.rl.experience.record import Experience, are_duplicates

MAX_QUERY_CHARS = 8_000


class ExperiencePool:
    """Records of a workspace in the order in which they were added; `find` is thread-safe."""

    def __init__(
        self, workspace: str, similarity: float, records: Iterable[Experience] = (), finder: Finder | None = None
    ) -> None:
        """Add the given records with `add`; `finder` searches the pool, by words (BM25) if it is None."""
        self.workspace = workspace
        self.records: list[Experience] = []
        self._similarity = similarity
        self._words: list[frozenset[str]] = []
        self._finder = finder or WordFinder()
        self._lock = threading.Lock()
        self._ranker: Ranker | None = None
        self._num_ranked = 0
        for one in records:
            self.add(one)

    def __len__(self) -> int:
        return len(self.records)

    def add(self, record: Experience) -> bool:
        """Add a record unless it is of another workspace, empty, or a duplicate; return whether it was added."""
        if record.workspace != self.workspace:
            return False
        words = record.words()
        if not words or any(are_duplicates(words, known, self._similarity) for known in self._words):
            return False
        self.records.append(record)
        self._words.append(words)
        return True

    def find(self, query: str, top_k: int) -> list[Experience]:
        """Return at most `top_k` records that fit a query, the best first. Raises ModelError if an encoder fails."""
        if not self.records or not query.strip():
            return []
        with self._lock:
            records = list(self.records)
            if self._ranker is None or self._num_ranked != len(records):
                self._ranker, self._num_ranked = self._finder.ranker(records), len(records)
            return [records[row] for row in self._ranker(query[:MAX_QUERY_CHARS], top_k)]


def shown_text(records: Sequence[Experience]) -> str:
    """Return records as a numbered list; empty without any."""
    return "\n".join(f"{number}. {one.text}" for number, one in enumerate(records, 1))
