"""Which trajectories a page is about: the filters, the order and the page, as they stand in its address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode

FILTERS: Mapping[str, str] = {
    "instance": "Made by",
    "verdict": "Verdict",
    "status": "How it ended",
    "dataset": "Data set",
    "model": "Model",
    "operator": "Operator",
    "tools": "Tool calls",
    "fate": "Fine-tuning",
}
"""Columns that trajectories are filtered by, in the order of the page, with their headings."""

SORTS: Mapping[str, str] = {"score": "score", "calls": "calls", "tokens": "tokens"}
"""Columns that trajectories are sorted by, with their names."""

PAGE_ROWS = 50
_MOST_CHARS = 1000
_MOST_VALUES = 1000


@dataclass(frozen=True, slots=True)
class Selection:
    """What is asked for. Equal ones select the same, page aside."""

    filters: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Column -> values of which a row has one; columns without values are left out."""
    text: str = ""
    question: str = ""
    """Key of the only question; empty for all."""
    sort: str = ""
    """Column, behind `-` from high to low; empty for the order in which they were written."""
    page: int = 1

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> Selection:
        """From the pairs of an address; what is not known, or no number, is passed over."""
        given = list(pairs)[:_MOST_VALUES]
        single = {name: value for name, value in given if name in ("q", "question", "sort", "page")}
        chosen = {name: frozenset(value for other, value in given if other == name) for name in FILTERS}
        page = single.get("page", "")
        sort = single.get("sort", "")
        return cls(
            filters={name: values for name, values in chosen.items() if values},
            text=single.get("q", "").strip()[:_MOST_CHARS],
            question=single.get("question", "")[:_MOST_CHARS],
            sort=sort if sort.removeprefix("-") in SORTS else "",
            page=max(int(page), 1) if page.isascii() and page.isdecimal() and len(page) < 10 else 1,
        )

    @property
    def key(self) -> tuple[object, ...]:
        """Hashable; the same for all pages."""
        return (*self.filters.items(), self.text, self.question, self.sort)

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return not (self.filters or self.text or self.question)

    def toggled(self, name: str, value: str) -> Selection:
        """With a value of a column taken in or out, from the first page on."""
        values = self.filters.get(name, frozenset()) ^ {value}
        filters = {other: values if other == name else self.filters.get(other, frozenset()) for other in FILTERS}
        return replace(self, filters={other: found for other, found in filters.items() if found}, page=1)

    def with_only(self, **changes: str | int) -> Selection:
        """With another text, question or order, from the first page on, or on another page."""
        return replace(self, **{"page": 1, **changes})  # type: ignore[arg-type]

    def pairs(self) -> list[tuple[str, str]]:
        """What `of` reads back."""
        pairs = [(name, value) for name, values in self.filters.items() for value in sorted(values)]
        singles = (("q", self.text), ("question", self.question), ("sort", self.sort))
        pairs += [(name, value) for name, value in singles if value]
        return pairs + ([("page", str(self.page))] if self.page > 1 else [])

    def query(self) -> str:
        """As it stands in an address, with its question mark; empty where there is nothing to say."""
        pairs = self.pairs()
        return "?" + urlencode(pairs, errors="surrogatepass") if pairs else ""
