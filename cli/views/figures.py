"""Render tables of figures in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from treadle.core.figures import Figures, cell_text, money
from treadle.core.untrusted.sanitize import one_line
from treadle.report.terminal_table import GAP, terminal_table
from treadle.stages.report import StageReport
from treadle.tasks.estimate.figures import Estimate


def report_view(title: str, report: StageReport) -> Group:
    """Render a stage's report: sentences, then its tables."""
    return Group(sentences_view(title, report), figures_view(report.figures))


def sentences_view(title: str, report: StageReport) -> Group:
    """Render a stage's report without its tables."""
    return Group(Text(one_line(title), style="bold"), *(Text(one_line(line)) for line in report.sentences))


def estimate_view(estimate: Estimate) -> Group:
    """Render the estimate of an instance with its basis and assumptions."""
    if estimate.num_units is None:
        title = f"{estimate.address}: estimate for 1,000 questions"
    else:
        title = (
            f"{estimate.address}: estimate for {estimate.num_units:,} {estimate.unit}s ({estimate.num_units_source})"
        )
    lines = [Text(one_line(title), style="bold"), Text(one_line(f"Basis: {estimate.basis}."))]
    lines += [Text(one_line(f"- assumed: {line}"), style="dim") for line in estimate.assumptions]
    if estimate.num_searches:
        pages = f" and at most {estimate.num_pages:,} pages" if estimate.num_pages else ""
        lines.append(
            Text(f"The web: about {estimate.num_searches:,} searches{pages}; recorded ones are not requested again.")
        )
    return Group(*lines, _Fitted(_estimated(estimate)))


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
    """Render tables one below the other, skipping empty ones."""
    parts: list[RenderableType] = []
    for one in figures:
        if one.rows:
            parts += [Text(f"\n{one_line(one.title)}", style="bold"), _Fitted(one)]
            parts += [Text(one_line(one.note), style="dim")] if one.note else []
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class _Fitted:
    """Table fitted to the terminal's width: in a narrow terminal, columns without counts are left out."""

    figures: Figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept: Sequence[int] = range(len(self.figures.header))
        gap = GAP if _width(self.figures, kept) + GAP * len(kept) <= options.max_width else 1
        if _width(self.figures, kept) + gap * len(kept) > options.max_width:
            kept = [index for index in kept if any(row[index] not in (0, "-") for row in self.figures.rows)]
        table = replace(self.figures, title="", note="")
        yield terminal_table(table, unwrapped=(0,), columns=kept, gap=gap, header_style="dim")


def _width(figures: Figures, kept: Sequence[int]) -> int:
    """Return the minimum width of the columns in characters: cells unwrapped, headings wrapped at words."""
    return sum(
        max([*map(len, figures.header[index].split()), *(len(cell_text(row[index])) for row in figures.rows)])
        for index in kept
    )
