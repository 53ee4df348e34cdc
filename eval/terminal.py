"""The report's headline as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from treadle.core.figures import plain
from treadle.eval.layout import HEADLINE, headline_cells, is_text_column

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 130
"""Characters from which the whole headline fits with names of usual length."""
_NARROW = ("data set", "n", "accuracy, 95 %", "F1", "effic.", "calls", "tools", "tokens")


def summary_table(rows: Iterable[Mapping[str, Any]], title: str | None = None, width: int | None = None) -> Table:
    """A table of the summary's rows; names are shown as plain text, never as markup, and never cut off.

    In fewer than WIDE characters models become headings, the interval of F1 is left out and numbers are shorter.
    """
    given = list(rows)
    if width is None or width >= WIDE:
        return _table(HEADLINE, [headline_cells(row) for row in given], title)
    body: list[Sequence[str]] = []
    for model, of_model in groupby(given, key=lambda row: row["model"]):
        body.append((model,))
        body += [_narrow_cells(row) for row in of_model]
    return _table(_NARROW, body, title, narrow=True)


def _table(header: Sequence[str], body: Sequence[Sequence[str]], title: str | None, *, narrow: bool = False) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=None if title is None else Text(plain(title)), box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(header):
        is_name = index == 0 if narrow else is_text_column(index)
        table.add_column(Text(name), justify="left" if is_name else "right", no_wrap=not is_name, overflow="fold")
    for cells in body:
        is_heading = len(cells) == 1
        table.add_row(*(Text(plain(cell), style="bold" if is_heading else "") for cell in cells))
    return table


def _narrow_cells(row: Mapping[str, Any]) -> list[str]:
    wide = headline_cells(row)
    interval = f"({_short(row['accuracy_low'])}\N{EN DASH}{_short(row['accuracy_high'])})"
    return [
        f"  {row['dataset']}",
        wide[2].replace(" unscored", ""),
        f"{row['accuracy']:.3f} {interval}",
        f"{row['f1']:.3f}",
        wide[5],
        wide[6],
        f"{row['tool_use']:.0%}",
        wide[8],
    ]


def _short(share: float) -> str:
    return "1.0" if share > 0.995 else f"{share:.2f}".removeprefix("0")
