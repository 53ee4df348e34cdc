"""Tables of figures in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from treadle.core.figures import Figures, cell_text, money
from treadle.core.harmless import one_line
from treadle.tasks.estimate import Estimate
from treadle.tasks.stage_report import StageReport


def report_view(title: str, report: StageReport) -> Group:
    """A stage's report: sentences, then its tables."""
    heading = [Text(one_line(title), style="bold"), *(Text(one_line(line)) for line in report.sentences)]
    return Group(*heading, figures_view(report.figures))


def estimate_view(estimate: Estimate) -> Group:
    """What an instance may use, said to be an estimate, with what it stands on."""
    if estimate.num_units is None:
        title = f"{estimate.address}: estimate for 1,000 questions"
    else:
        title = f"{estimate.address}: estimate for {estimate.num_units:,} {estimate.unit}s ({estimate.counted})"
    lines = [Text(one_line(title), style="bold"), Text(one_line(f"Basis: {estimate.basis}."))]
    lines += [Text(one_line(f"- assumed: {line}"), style="dim") for line in estimate.assumptions]
    return Group(*lines, _table(_estimated(estimate)))


def _estimated(estimate: Estimate) -> Figures:
    roles = estimate.roles
    rows: list[tuple[str | int, ...]] = [
        (one.role, one.model, one.calls, one.prompt_tokens, one.completion_tokens, _cost(one.cost)) for one in roles
    ]
    if len(roles) > 1:
        counts = (sum(getattr(one, name) for one in roles) for name in ("calls", "prompt_tokens", "completion_tokens"))
        rows.append(("all", "", *counts, _cost(estimate.cost)))
    header: tuple[str, ...] = ("role", "model", "requests", "prompt tokens", "sampled tokens", "cost")
    if all(one.cost is None for one in roles):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return Figures("", header, tuple(rows))


def _cost(cost: float | None) -> str:
    return "?" if cost is None else money(cost)


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
