"""What the report's tables show, once for markdown and terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Line:
    """All rows of the summary for one model and data set."""

    model: str
    dataset: str
    num_rollouts: int
    num_questions: int
    figures: dict[str, Mapping[str, Any]]
    """Name -> its row of the summary."""

    def value(self, figure: str) -> float | None:
        """The figure; None where it is not there, or has no value."""
        return self.figures[figure]["value"] if figure in self.figures else None

    def counts(self, what: str) -> dict[str, int]:
        """Numbers of rollouts by one thing, such as `status`."""
        return {
            name.removeprefix(f"{what}:"): int(row["value"])
            for name, row in self.figures.items()
            if name.startswith(f"{what}:")
        }

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        columns = ("value", "low", "high", "method", "num_undecided")
        return {
            "model": self.model,
            "dataset": self.dataset,
            "num_rollouts": self.num_rollouts,
            "num_questions": self.num_questions,
            "figures": {name: {key: row[key] for key in columns} for name, row in self.figures.items()},
        }


def summary_lines(rows: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Rows of the summary by model and data set, in their order."""
    found: dict[tuple[str, str], Line] = {}
    for row in rows:
        key = row["model"], row["dataset"]
        if key not in found:
            found[key] = Line(*key, row["num_rollouts"], row["num_questions"], {})
        found[key].figures[row["figure"]] = row
    return list(found.values())


def headline_cells(line: Line) -> list[str]:
    """Cells of one line, in the order of HEADLINE.

    Efficiency divides by tool calls, so it is left out (`-`) where no tool was ever used.
    """
    rollouts = f"{line.num_rollouts:,}"
    if unscored := line.figures["score"]["num_undecided"]:
        rollouts += f" ({unscored:,} unscored)"
    return [
        plain(line.model),
        plain(line.dataset),
        rollouts,
        with_interval(line, "accuracy"),
        with_interval(line, "f1"),
        number(line.value("efficiency") if line.value("tool_use") else None, ".3f"),
        number(line.value("calls_requested"), ".2f"),
        number(line.value("tool_use"), ".1%"),
        number(line.value("completion_tokens"), ",.0f"),
    ]


def with_interval(line: Line, figure: str) -> str:
    """A share with its interval."""
    value = line.value(figure)
    if value is None:
        return "-"
    row = line.figures[figure]
    return f"{value:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def number(value: float | None, form: str) -> str:
    """A number, or `-` for none."""
    return "-" if value is None else format(value, form)


def status_table(given: Iterable[Line]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of counts per status; only statuses that occur have a column, the most frequent first."""
    counts = [(line.model, line.dataset, line.counts("status")) for line in given]
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
