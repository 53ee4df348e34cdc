"""Define tables of figures that are shown in a terminal, as markdown and in a web page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_SPECIAL = re.compile(r"([\\`*\[\]<>|~$&]|(?<![^\W_])_|_(?![^\W_]))")
_NUMBER = r"[-+]?[\d.,]+"
_INTERVAL = re.compile(
    rf"(?:{_NUMBER} \[{_NUMBER}, {_NUMBER}\]|[A-Za-z0-9@ /]+ \[95 %\]|< [\d.]+)(?: \([\d,]+ open\))?"
)
"""Pattern of numbers with intervals, and of headings of such columns; their brackets are not escaped in markdown."""

Cell = str | int
"""Cell of a table: a count as an integer, anything else as the text to show."""


@dataclass(frozen=True, slots=True)
class Figures:
    """A table of figures. The first `num_names` columns hold names; columns of numbers are right-aligned."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    """One sentence below the table."""
    num_names: int = 1

    def is_text(self, column: int) -> bool:
        """Return whether a column holds words, which are left-aligned, rather than numbers."""
        cells = (row[column] for row in self.rows if column < len(row))
        return column < self.num_names or any(isinstance(cell, str) and cell[:1].isalpha() for cell in cells)

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return the rows for JSON, with the columns' headings as keys."""
        rows = ([cell if isinstance(cell, int) else plain(cell) for cell in row] for row in self.rows)
        return [dict(zip(self.header, row, strict=True)) for row in rows]


def plain(text: str) -> str:
    """Replace control and other invisible characters, which could drive a terminal or break a table."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def escape(text: str) -> str:
    """Escape text on one line so that no markdown reader takes it for markup."""
    return _SPECIAL.sub(r"\\\1", plain(text))


def cell_text(cell: Cell) -> str:
    """Return a cell as text."""
    return f"{cell:,}" if isinstance(cell, int) else plain(cell)


def money(amount: float) -> str:
    """Format an amount in the currency of the prices, with enough digits to tell a small amount from zero."""
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.3g}"


def render_figures(tables: Sequence[Figures], *, level: int = 2) -> str:
    """Render tables as markdown, each under its title; `level` is the number of # before the title."""
    return "\n\n".join(_render(table, level) for table in tables if table.rows)


def _render(table: Figures, level: int) -> str:
    note = f"\n\n{escape(table.note)}" if table.note else ""
    return f"{'#' * level} {escape(table.title)}\n\n{render_table(table)}{note}"


def render_table(table: Figures) -> str:
    """Render a table as markdown with aligned columns, without its title and note; `None.` if it has no rows."""
    if not table.rows:
        return "None."
    cells = [[_escaped(cell_text(cell)) for cell in row] for row in (table.header, *table.rows)]
    width = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    names = table.num_names
    ruler = ["-" * size if index < names else "-" * (size - 1) + ":" for index, size in enumerate(width)]
    return "\n".join(_line(row, width, names) for row in (cells[0], ruler, *cells[1:]))


def _escaped(cell: str) -> str:
    return cell if _INTERVAL.fullmatch(cell) else escape(cell)


def _line(row: Sequence[str], width: Sequence[int], num_names: int) -> str:
    sized = enumerate(zip(row, width, strict=True))
    padded = (cell.ljust(size) if index < num_names else cell.rjust(size) for index, (cell, size) in sized)
    return f"| {' | '.join(padded)} |"


def duration(seconds: float) -> str:
    """Return a duration as in `40 s`, `7 min`, `2.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:,.1f} h"
