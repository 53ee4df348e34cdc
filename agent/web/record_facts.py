"""What a record holds, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from treadle.agent.web.types import Entry, SearchEntry


@dataclass
class RecordFacts:
    """Counts of entries.

    Attributes:
        providers: Searches by who answered.
        empty: Searches that found nothing.
        refused: Searches that their provider did not take.
        failures: Pages that could not be had, by why.
        read: Pages with a text.
        oldest: When the first was recorded, as it says itself; `newest` likewise. Empty where there are none.
        num_bytes: Of the entries as JSON.
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
        """Searches."""
        return self.providers.total()

    @property
    def num_pages(self) -> int:
        """Pages, with those that could not be had."""
        return self.read + self.failures.total()

    def counted(self, entry: Entry) -> Entry:
        """Count an entry, and hand it on."""
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
    """The counts of some entries, which are held one at a time."""
    facts = RecordFacts()
    for entry in entries:
        facts.counted(entry)
    return facts
