"""Tables of a page as a reader finds them: by section and caption, cells by row and column."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass
class PageTable:
    """One table of a page."""

    section: str
    title: str = ""
    """Its caption; else the summary of the fold that it stands in alone."""
    rows: list[list[str]] = field(default_factory=list)
    """The header first."""
    note: str = ""

    def row(self, *names: str) -> dict[str, str]:
        """Column -> cell, of the only row that begins with these names."""
        (found,) = (row for row in self.rows[1:] if tuple(row[: len(names)]) == names)
        return dict(zip(self.rows[0], found, strict=True))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[PageTable] = []
        self.texts: dict[str, str] = {}
        """Section -> everything that is said in it, charts included."""
        self._section = ""
        self._open: list[tuple[str, str]] = []
        self._summary = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "section":
            self._section = given["id"] or ""
        elif tag == "summary":
            self._summary = ""
        elif tag == "table":
            self.tables.append(PageTable(self._section, self._summary))
        elif tag == "caption":
            self.tables[-1].title = ""
        elif tag == "tr":
            self.tables[-1].rows.append([])
        elif tag in ("th", "td"):
            self.tables[-1].rows[-1].append("")
        if tag not in ("meta", "link", "br"):
            self._open.append((tag, given.get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tag, kind = self._open[-1] if self._open else ("", "")
        self.texts[self._section] = self.texts.get(self._section, "") + data
        if tag == "summary":
            self._summary += data
        elif tag == "caption":
            self.tables[-1].title += data
        elif tag in ("th", "td"):
            self.tables[-1].rows[-1][-1] += data
        elif tag == "p" and kind == "note" and self.tables:
            self.tables[-1].note += data


class PageReader:
    """A page by its sections."""

    def __init__(self, page: bytes) -> None:
        """Parse a rendered page."""
        reader = _Reader()
        reader.feed(page.decode())
        self._tables = reader.tables
        self._texts = reader.texts

    def text(self, section: str) -> str:
        """Return the text of a section, with single blanks."""
        return " ".join(self._texts[section].split())

    def table(self, section: str, title: str, *, number: int = 0) -> PageTable:
        """Return a table by its caption; `number`: which one of those with that caption."""
        found = [one for one in self._tables if (one.section, one.title) == (section, title)]
        assert found, [(one.section, one.title) for one in self._tables]
        return found[number]
