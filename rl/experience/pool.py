"""Hold the records of one workspace, without duplicates, and find those that fit a task with BM25."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from treadle.core.errors import DataError
from treadle.rl.experience.record import Experience, are_duplicates

MAX_QUERY_CHARS = 8_000


class ExperiencePool:
    """Records of a workspace in the order in which they were added; records of other workspaces are skipped."""

    def __init__(self, workspace: str, similarity: float, records: Iterable[Experience] = ()) -> None:
        self.workspace = workspace
        self.records: list[Experience] = []
        self._similarity = similarity
        self._words: list[frozenset[str]] = []
        self._index: _Index | None = None
        for one in records:
            self.add(one)

    def __len__(self) -> int:
        return len(self.records)

    def add(self, record: Experience) -> bool:
        """Add a record unless it belongs to another workspace or repeats an earlier one; return whether it did."""
        if record.workspace != self.workspace:
            return False
        words = record.words()
        if not words or any(are_duplicates(words, known, self._similarity) for known in self._words):
            return False
        self.records.append(record)
        self._words.append(words)
        self._index = None
        return True

    def find(self, query: str, top_k: int) -> list[Experience]:
        """Return at most `top_k` records that share a word with the query, the best first."""
        if not self.records:
            return []
        if self._index is None:
            self._index = _Index(self.records)
        return [self.records[row] for row in self._index.rank(query[:MAX_QUERY_CHARS], top_k)]


class _Index:
    """Ranker of records; its files are deleted when they have been opened."""

    def __init__(self, records: Sequence[Experience]) -> None:
        # Imported here: configurations import this package, and the index needs packages of its own.
        from treadle.retriever.bm25 import WordRanker, build
        from treadle.retriever.corpus import Document

        self._ranker: WordRanker | None = None
        with (
            tempfile.TemporaryDirectory(prefix="treadle-experience-", ignore_cleanup_errors=True) as folder,
            # Records of stop words alone have no word that could be searched for.
            contextlib.suppress(DataError),
        ):
            build(Path(folder), (Document(one.key, one.situation, one.advice) for one in records))
            # The index is memory-mapped, so its files may be deleted while it is in use.
            self._ranker = WordRanker(Path(folder))

    def rank(self, query: str, top_k: int) -> list[int]:
        """Return the rows of the best records."""
        return [] if self._ranker is None else [row for row, _ in self._ranker.rank(query, top_k)]


def shown_text(records: Sequence[Experience]) -> str:
    """Return records as a numbered list; empty without any."""
    return "\n".join(f"{number}. {one.text}" for number, one in enumerate(records, 1))
