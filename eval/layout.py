"""What the report's tables show, once for markdown and terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from treadle.core.figures import plain

HEADLINE = (
    "model",
    "data set",
    "rollouts",
    "accuracy [95 %]",
    "F1 [95 %]",
    "efficiency",
    "calls",
    "tool use",
    "tokens",
)


def headline_cells(row: Mapping[str, Any]) -> list[str]:
    """Cells of one row of the summary, in the order of HEADLINE.

    Efficiency divides by tool calls, so it is left out (`-`) where no tool was ever used.
    """
    rollouts = f"{row['num_rollouts']:,}"
    if row["num_scorer_failed"]:
        rollouts += f" ({row['num_scorer_failed']:,} unscored)"
    return [
        plain(row["model"]),
        plain(row["dataset"]),
        rollouts,
        f"{row['accuracy']:.3f} [{row['accuracy_low']:.3f}, {row['accuracy_high']:.3f}]",
        f"{row['f1']:.3f} [{row['f1_low']:.3f}, {row['f1_high']:.3f}]",
        f"{row['efficiency']:.3f}" if row["tool_use"] else "-",
        f"{row['calls_requested']:.2f}",
        f"{row['tool_use']:.1%}",
        f"{row['completion_tokens']:,.0f}",
    ]


def status_table(rows: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of counts per status; only statuses that occur have a column, the most frequent first."""
    counts = [(row["model"], row["dataset"], orjson.loads(row["statuses"])) for row in rows]
    totals: dict[str, int] = {}
    for _, _, statuses in counts:
        for status, count in statuses.items():
            totals[status] = totals.get(status, 0) + count
    order = sorted(totals, key=lambda status: (-totals[status], status))
    body = [
        [model, dataset, *(f"{statuses.get(status, 0):,}" for status in order)] for model, dataset, statuses in counts
    ]
    return ["model", "data set", *order], body


def is_text_column(index: int) -> bool:
    """Whether a column holds names, which stand to the left; numbers stand to the right."""
    return index < 2


def widths(table: Sequence[Sequence[str]]) -> list[int]:
    """Width of each column in characters."""
    return [max(len(row[index]) for row in table) for index in range(len(table[0]))]
