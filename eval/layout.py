"""What the report's tables show, once for markdown and terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.core.figures import plain

HEADLINE = ("model", "data set", "rollouts", "accuracy [95 %]", "P [95 %]", "efficiency", "calls", "tokens")
BEHAVIOUR = ("model", "data set", "success", "strict", "ran well", "concise", "with calls", "P/1000", "L", "tool use")
COMPARISON = ("data set", "figure", "questions", "first", "second", "difference [95 %]", "p by Holm", "won, lost")


_OF_VOTES = frozenset({"conciseness", "conciseness_tool_users"})


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

    def num_open(self, figure: str) -> int:
        """Rollouts left out of a share of conciseness because their votes have no majority."""
        return self.counts("votes").get("undecided", 0) if figure in _OF_VOTES else 0

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
    """Cells of one line, in the order of HEADLINE."""
    rollouts = f"{line.num_rollouts:,}"
    if unscored := line.figures["score"]["num_undecided"]:
        rollouts += f" ({unscored:,} unscored)"
    return [
        plain(line.model),
        plain(line.dataset),
        rollouts,
        with_interval(line, "accuracy"),
        with_interval(line, "score", short=True),
        number(line.value("efficiency"), ".3f"),
        number(line.value("calls_requested"), ".2f"),
        number(line.value("completion_tokens"), ",.0f"),
    ]


def behaviour_cells(line: Line) -> list[str]:
    """Cells of one line, in the order of BEHAVIOUR; undecided votes stand with the share of the others."""
    concise = number(line.value("conciseness"), ".3f")
    if undecided := line.num_open("conciseness"):
        concise += f" ({undecided:,} open)"
    return [
        plain(line.model),
        plain(line.dataset),
        number(line.value("successful_execution"), ".3f"),
        number(line.value("successful_execution_strict"), ".3f"),
        number(line.value("call_success"), ".1%"),
        concise,
        number(line.value("conciseness_tool_users"), ".3f"),
        number(line.value("reasoning_length"), ".2f"),
        number(line.value("reasoning_tokens"), ",.0f"),
        number(line.value("tool_use"), ".1%"),
    ]


def passes(given: Iterable[Line]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of pass@k with intervals, of the lines that have any."""
    lines = [line for line in given if any(name.startswith("pass@") for name in line.figures)]
    names = sorted(
        {name for line in lines for name in line.figures if name.startswith("pass@")},
        key=lambda name: int(name.removeprefix("pass@")),
    )
    body = [[plain(line.model), plain(line.dataset), *(with_interval(line, name) for name in names)] for line in lines]
    return ["model", "data set", *(f"{name} [95 %]" for name in names)], body


def comparison_cells(row: Mapping[str, Any]) -> list[str]:
    """Cells of one row of `comparisons`, in the order of COMPARISON."""
    digits = _digits(row)
    first, second, difference = (fixed(row[name], digits) for name in ("first_value", "second_value", "difference"))
    if row["low"] is not None and row["high"] is not None:
        difference += f" [{fixed(row['low'], digits)}, {fixed(row['high'], digits)}]"
    is_of_questions = row["figure"] == "score" and row["method"] != "combined"
    return [
        plain(row["dataset"]),
        row["figure"].replace("_", " "),
        f"{row['num_questions']:,}" + (f" ({row['num_dropped']:,} left out)" if row["num_dropped"] else ""),
        first,
        second,
        difference,
        f"{row['p_adjusted']:.3f}" if row["p_adjusted"] >= 0.001 else "< 0.001",
        f"{len(row['gained']):,}, {len(row['lost']):,}" if is_of_questions else "",
    ]


def _digits(row: Mapping[str, Any]) -> int:
    """As many as the difference needs to be seen, and three for shares."""
    if abs(row["first_value"]) <= 1 and abs(row["second_value"]) <= 1:
        return 3
    told = max(abs(row[name]) for name in ("difference", "low", "high") if row[name] is not None)
    return 1 if told >= 10 else 2 if told >= 1 else 3


def fixed(value: float, digits: int, *, sign: str = "") -> str:
    """A number with so many digits behind the point; one that rounds to 0 has no minus."""
    text = f"{value:{sign},.{digits}f}"
    return text if float(text.replace(",", "")) else f"{0:{sign}.{digits}f}"


def with_interval(line: Line, figure: str, *, short: bool = False) -> str:
    """A share with its interval."""
    value = line.value(figure)
    if value is None:
        return "-"
    low, high = line.figures[figure]["low"], line.figures[figure]["high"]
    if short:
        return f"{value:.3f} ({_short(low)}\N{EN DASH}{_short(high)})"
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _short(share: float) -> str:
    return "1.0" if share > 0.995 else f"{share:.2f}".removeprefix("0")


def number(value: float | None, form: str) -> str:
    """A number, or `-` for none."""
    return "-" if value is None else format(value, form)


def count_table(given: Iterable[Line], what: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of numbers of rollouts by one thing, such as `status`; the most frequent stand first."""
    counts = [(line.model, line.dataset, line.counts(what)) for line in given]
    totals: dict[str, int] = {}
    for _, _, numbers in counts:
        for name, count in numbers.items():
            totals[name] = totals.get(name, 0) + count
    order = sorted(totals, key=lambda name: (-totals[name], name))
    body = [[model, dataset, *(f"{numbers.get(name, 0):,}" for name in order)] for model, dataset, numbers in counts]
    return ["model", "data set", *order], body


def is_text_column(index: int) -> bool:
    """Whether a column holds names, which stand to the left; numbers stand to the right."""
    return index < 2


def widths(table: Sequence[Sequence[str]]) -> list[int]:
    """Width of each column in characters."""
    return [max(len(row[index]) for row in table) for index in range(len(table[0]))]
