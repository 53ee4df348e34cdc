"""Tables of figures for people: made once, shown in a terminal, as markdown and in a web page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_SPECIAL = re.compile(r"([\\`*\[\]<>|~$&]|(?<![^\W_])_|_(?![^\W_]))")

Cell = str | int
"""A number that is counted is given as one; everything else as the text that people read."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One table. The first column holds names; the others stand to the right."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    """One sentence below."""


def plain(text: str) -> str:
    """Text without control and other invisible characters, which could drive a terminal or break a table."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def escape(text: str) -> str:
    """Text that no markdown reader takes for markup, on one line."""
    return _SPECIAL.sub(r"\\\1", plain(text))


def cell_text(cell: Cell) -> str:
    """A cell as it is read."""
    return f"{cell:,}" if isinstance(cell, int) else plain(cell)


def money(amount: float) -> str:
    """An amount of the currency in which prices are given: small ones with enough digits to be told from nothing."""
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.3g}"


def render_figures(tables: Sequence[Figures], *, level: int = 2) -> str:
    """Tables as markdown, each under its title; `level`: number of # before it."""
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
