"""Tables of figures in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from treadle.core.figures import Figures, cell_text
from treadle.core.harmless import one_line
from treadle.tasks.stage_report import StageReport


def report_view(title: str, report: StageReport) -> Group:
    """A stage's report: sentences, then its tables."""
    heading = [Text(one_line(title), style="bold"), *(Text(one_line(line)) for line in report.sentences)]
    return Group(*heading, figures_view(report.figures))


def figures_view(figures: Sequence[Figures]) -> Group:
    """Tables one below the other, empty ones left out."""
    parts: list[RenderableType] = []
    for one in figures:
        if one.rows:
            parts += [Text(f"\n{one_line(one.title)}", style="bold"), _table(one)]
            parts += [Text(one_line(one.note), style="dim")] if one.note else []
    return Group(*parts)


def _table(figures: Figures) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for index, name in enumerate(figures.header):
        is_name = index == 0 or all(cell_text(row[index])[:1].isalpha() for row in figures.rows)
        table.add_column(Text(one_line(name)), justify="left" if is_name else "right", overflow="fold")
    for row in figures.rows:
        table.add_row(*(Text(cell_text(cell)) for cell in row))
    return table
