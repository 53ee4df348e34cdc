"""The report as markdown: readable as it is, and on any page that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.core.figures import escape
from treadle.eval.layout import HEADLINE, headline_cells, is_text_column, status_table, summary_lines, widths

_EXPLANATION = """\
- **accuracy**: share of rollouts judged right. A rollout that did not end with an answer is wrong.
- **[95 %]**: for accuracy the Wilson interval, over questions where a question was answered more than once; for F1 a
  bootstrap over questions. Where two intervals overlap widely, the difference may be chance.
- **F1**: token overlap with the best gold answer.
- **efficiency**: score divided by requested tool calls (by 1 without calls), averaged; `-` where no tool was used.
- **calls**, **tokens**: requested and sampled per rollout; **tool use**: share of rollouts with a call.
- **all**: counts are sums, everything else is the unweighted mean over the data sets.
- Rollouts without a verdict (`unscored`) are left out of the means.
"""


def render_report(rows: Sequence[dict[str, Any]], title: str) -> str:
    """The whole report from the rows of the summary."""
    given = summary_lines(rows)
    statuses, counts = status_table(given)
    parts = [
        f"# {escape(title)}",
        render_table(HEADLINE, [headline_cells(line) for line in given]),
        _EXPLANATION.rstrip(),
        "## How rollouts ended",
        render_table([escape(status) for status in statuses], counts),
    ]
    return "\n\n".join(parts) + "\n"


def render_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A pipe table with aligned columns. The text columns of the body are escaped; everything else is ours."""
    escaped = [[escape(cell) if is_text_column(index) else cell for index, cell in enumerate(row)] for row in body]
    cells = [list(header), *escaped]
    width = [max(size, 3) for size in widths(cells)]
    lines = [_line(row, width) for row in cells]
    ruler = ["-" * size if is_text_column(index) else "-" * (size - 1) + ":" for index, size in enumerate(width)]
    return "\n".join([lines[0], _line(ruler, width), *lines[1:]])


def _line(cells: Sequence[str], width: Sequence[int]) -> str:
    padded = [
        cell.ljust(size) if is_text_column(index) else cell.rjust(size)
        for index, (cell, size) in enumerate(zip(cells, width, strict=True))
    ]
    return f"| {' | '.join(padded)} |"
