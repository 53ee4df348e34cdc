"""Define tables of figures that are shown in a terminal, as markdown and in a web page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_SPECIAL = re.compile(r"([\\`*\[\]<>|~$&]|(?<![^\W_])_|_(?![^\W_]))")

Cell = str | int
"""Cell of a table: a count as an integer, anything else as the text to show."""


@dataclass(frozen=True, slots=True)
class Figures:
    """A table of figures. The first column holds names; the others are right-aligned."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    """One sentence below the table."""


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
    body = [[escape(cell_text(cell)) for cell in row] for row in table.rows]
    cells = [[escape(name) for name in table.header], *body]
    width = [max(3, *(len(row[index]) for row in cells)) for index in range(len(table.header))]
    ruler = ["-" * width[0], *("-" * (size - 1) + ":" for size in width[1:])]
    lines = [_line(cells[0], width), f"| {' | '.join(ruler)} |", *(_line(row, width) for row in cells[1:])]
    note = ["", escape(table.note)] if table.note else []
    return "\n".join([f"{'#' * level} {escape(table.title)}", "", *lines, *note])


def _line(row: Sequence[str], width: Sequence[int]) -> str:
    padded = [row[0].ljust(width[0]), *(cell.rjust(size) for cell, size in zip(row[1:], width[1:], strict=True))]
    return f"| {' | '.join(padded)} |"
