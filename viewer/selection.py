"""Parse and build selections of trajectories: filters, sort order and page, as encoded in a URL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode

FILTERS: Mapping[str, str] = {
    "instance": "Made by",
    "verdict": "Verdict",
    "status": "How it ended",
    "dataset": "Data set",
    "environment": "Environment",
    "model": "Model",
    "operator": "Operator",
    "tool": "Tool",
    "tools": "Tool calls",
    "sft_outcome": "Fine-tuning",
}
"""Filter columns with their headings, in the order of the page."""

SORTS: Mapping[str, str] = {name: name for name in ("score", "turns", "calls", "tokens", "seconds")}
"""Columns by which the list can be sorted, with their names on the page."""

PAGE_ROWS = 50
_MAX_CHARS = 1000
_MAX_VALUES = 1000


@dataclass(frozen=True, slots=True)
class Selection:
    """A query for trajectories. Queries that differ only in `page` select the same rows, and compare as equal."""

    filters: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Column -> accepted values. Columns without values are left out."""
    text: str = ""
    question: str = ""
    """Key of the only question; empty for all."""
    sort: str = ""
    """Sort column, prefixed with `-` for descending order; empty for the order in which rows were written."""
    page: int = field(default=1, compare=False)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> Selection:
        """Parse the query parameters of a URL. Unknown names and invalid numbers are ignored."""
        given = list(pairs)[:_MAX_VALUES]
        single = {name: value for name, value in given if name in ("q", "question", "sort", "page")}
        chosen = {name: frozenset(value for other, value in given if other == name) for name in FILTERS}
        page = single.get("page", "")
        sort = single.get("sort", "")
        return cls(
            filters={name: values for name, values in chosen.items() if values},
            text=single.get("q", "").strip()[:_MAX_CHARS],
            question=single.get("question", "")[:_MAX_CHARS],
            sort=sort if sort.removeprefix("-") in SORTS else "",
            page=max(int(page), 1) if page.isascii() and page.isdecimal() and len(page) < 10 else 1,
        )

    def __hash__(self) -> int:
        return hash((frozenset(self.filters.items()), self.text, self.question, self.sort))

    @property
    def is_all(self) -> bool:
        """True if nothing is filtered out."""
        return not (self.filters or self.text or self.question)

    def toggled(self, name: str, value: str) -> Selection:
        """Return a copy with a value of a column added or removed, at the first page."""
        values = self.filters.get(name, frozenset()) ^ {value}
        filters = {other: values if other == name else self.filters.get(other, frozenset()) for other in FILTERS}
        return replace(self, filters={other: found for other, found in filters.items() if found}, page=1)

    def with_only(self, **changes: str | int) -> Selection:
        """Return a copy with another text, question or order at the first page, or with another page."""
        return replace(self, **{"page": 1, **changes})  # type: ignore[arg-type]

    def pairs(self) -> list[tuple[str, str]]:
        """Return the query parameters that `of` parses."""
        pairs = [(name, value) for name, values in self.filters.items() for value in sorted(values)]
        singles = (("q", self.text), ("question", self.question), ("sort", self.sort))
        pairs += [(name, value) for name, value in singles if value]
        return pairs + ([("page", str(self.page))] if self.page > 1 else [])

    def query(self) -> str:
        """Return the query string with its question mark; empty if there are no parameters."""
        pairs = self.pairs()
        return "?" + urlencode(pairs, errors="surrogatepass") if pairs else ""
