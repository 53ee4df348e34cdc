"""Count the entries of a web record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from treadle.web.types import Entry, SearchEntry


@dataclass
class RecordFacts:
    """Counts of entries.

    Attributes:
        providers: Searches by provider.
        empty: Searches that found nothing.
        refused: Searches that their provider refused.
        failures: Pages that could not be fetched, by reason.
        read: Pages with a text.
        oldest: Earliest `recorded_at`; empty if there are no entries. `newest` is the latest.
        num_bytes: Size of the entries as JSON.
    """

    providers: Counter[str] = field(default_factory=Counter)
    empty: int = 0
    refused: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    read: int = 0
    oldest: str = ""
    newest: str = ""
    num_bytes: int = 0

    @property
    def num_searches(self) -> int:
        """Number of searches."""
        return self.providers.total()

    @property
    def num_pages(self) -> int:
        """Number of pages, including those that could not be fetched."""
        return self.read + self.failures.total()

    def counted(self, entry: Entry) -> Entry:
        """Count an entry and return it."""
        if isinstance(entry, SearchEntry):
            self.providers[entry.provider] += 1
            self.refused += entry.failure is not None
            self.empty += not entry.hits and not entry.text and entry.failure is None
        elif entry.failure is None:
            self.read += 1
        else:
            self.failures[entry.failure] += 1
        self.oldest = min(self.oldest or entry.recorded_at, entry.recorded_at)
        self.newest = max(self.newest, entry.recorded_at)
        self.num_bytes += len(entry.to_json())
        return entry


def facts_of(entries: Iterable[Entry]) -> RecordFacts:
    """Return the counts of some entries, holding one at a time."""
    facts = RecordFacts()
    for entry in entries:
        facts.counted(entry)
    return facts
