"""Render tables in a terminal, with names and model text as plain text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from treadle.core.figures import Figures, cell_text, plain
from treadle.core.untrusted.sanitize import sanitize

if TYPE_CHECKING:
    from rich.table import Table

GAP = 2
"""Spaces between columns."""


def terminal_table(
    table: Figures,
    *,
    unwrapped: Collection[int] = (),
    columns: Sequence[int] | None = None,
    styles: Mapping[str, str] | None = None,
    gap: int = GAP,
    header_style: str = "bold",
) -> Table:
    """Return a table for `rich`, with its note as the caption. A row of one cell is a heading of the rows below it.

    `unwrapped`: numbers of columns that are kept on one line; `columns`: numbers of the columns to show, None for all;
    `styles`: text of a cell -> its style.
    """
    from rich.table import Table
    from rich.text import Text

    shown = Table(
        title=Text(plain(table.title)) if table.title else None,
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, gap, 0, 0),
        header_style=header_style,
        caption=Text(sanitize(table.note)) if table.note else None,
    )
    kept = range(len(table.header)) if columns is None else columns
    for index in kept:
        shown.add_column(
            Text(plain(table.header[index])),
            justify="left" if table.is_text(index) else "right",
            no_wrap=index in unwrapped,
            overflow="fold",
        )
    for row in table.rows:
        bold = "bold" if len(row) == 1 < len(table.header) else ""
        cells = [row[index] for index in kept if index < len(row)]
        shown.add_row(*(Text(cell_text(cell), style=(styles or {}).get(str(cell), bold)) for cell in cells))
    return shown
