"""The report's headline as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from treadle.eval.layout import HEADLINE, headline_cells, is_text_column, plain

if TYPE_CHECKING:
    from rich.table import Table


def summary_table(rows: Iterable[Mapping[str, Any]], title: str | None = None) -> Table:
    """A table of the summary's rows; names are shown as plain text, never as markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=None if title is None else Text(plain(title)))
    for index, name in enumerate(HEADLINE):
        table.add_column(Text(name), justify="left" if is_text_column(index) else "right", no_wrap=not index)
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in headline_cells(row)))
    return table
