"""Format the rows of the tables `summary` and `comparisons` for markdown, terminal and page.

Titles, units and placement of figures come from `metrics.Figure`. Markdown and terminal show shares as fractions with
three decimals; the page shows per cent with one decimal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.core.figures import Cell, Figures, money
from treadle.eval.averages import ALL, AVERAGES, EVERY, headline_datasets
from treadle.eval.figures.attempts import PASS_AT, is_over_attempts, num_attempts_of
from treadle.eval.metrics import (
    MAIN_FIGURES,
    figures_in,
    heading_of,
    is_figure,
    is_money,
    is_share,
    needs,
    title_of,
)

_INTERVALS = ("accuracy", "score", "reward")
"""Headline columns that show an interval."""
COMPARISON = ("data set", "figure", "questions", "first", "second", "difference [95 %]", "p by Holm", "won, lost")
NUM_NAMES = 2
"""Number of leading columns with names, which are left-aligned, without the environment; numbers are right-aligned."""


MIXED_NOTE = "Averages over several environments have only figures that all of their data sets have; never rewards"
"""Note on averages over several environments."""


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """All rows of the summary for one model and data set."""

    model: str
    dataset: str
    environments: tuple[str, ...]
    """Names of the environments of the tasks."""
    num_datasets: int
    """Number of data sets that the line averages; 1 for the line of a data set."""
    num_rollouts: int
    num_questions: int
    figures: dict[str, Mapping[str, Any]]
    """Figure name -> its row of the summary."""

    def value(self, figure: str) -> float | None:
        """Return the value of a figure, or None if it is absent or has no value."""
        return self.figures[figure]["value"] if figure in self.figures else None

    def counts(self, what: str) -> dict[str, int]:
        """Return rollout counts by one property, such as `status`."""
        return {
            name.removeprefix(f"{what}:"): int(row["value"])
            for name, row in self.figures.items()
            if name.startswith(f"{what}:")
        }

    @property
    def num_undecided(self) -> int:
        """Number of rollouts without a verdict."""
        return int(self.figures["accuracy"]["num_undecided"]) if "accuracy" in self.figures else 0

    def num_without_majority(self, figure: str) -> int:
        """Return the number of rollouts that a conciseness figure leaves out because their votes have no majority."""
        return self.counts("votes").get("undecided", 0) if needs(figure, "votes") else 0

    def as_dict(self) -> dict[str, Any]:
        """Return the line as a JSON-compatible dict."""
        columns = ("value", "low", "high", "method", "num_undecided")
        return {
            "model": self.model,
            "dataset": self.dataset,
            "environments": list(self.environments),
            "num_datasets": self.num_datasets,
            "num_rollouts": self.num_rollouts,
            "num_questions": self.num_questions,
            "figures": {name: {key: row[key] for key in columns} for name, row in self.figures.items()},
        }


def summary_lines(rows: Iterable[Mapping[str, Any]]) -> list[SummaryLine]:
    """Group the rows of the summary by model and data set, in their order."""
    found: dict[tuple[str, str], SummaryLine] = {}
    for row in rows:
        key = row["model"], row["dataset"]
        if key not in found:
            num_datasets, num_rollouts, num_questions = (
                row[name] for name in ("num_datasets", "num_rollouts", "num_questions")
            )
            environments = tuple(row["environments"])
            found[key] = SummaryLine(*key, environments, num_datasets, num_rollouts, num_questions, {})
        found[key].figures[row["figure"]] = row
    return list(found.values())


def by_model(given: Iterable[SummaryLine]) -> dict[str, dict[str, SummaryLine]]:
    """Map model -> data set or average -> its line."""
    models: dict[str, dict[str, SummaryLine]] = {}
    for line in given:
        models.setdefault(line.model, {})[line.dataset] = line
    return models


def datasets_of(names: Collection[str]) -> list[str]:
    """Return the data sets among the names of a model's lines. A single data set may be named like an average."""
    return [name for name in names if len(names) == 1 or name not in AVERAGES]


def main_dataset(names: Iterable[str]) -> str | None:
    """Return the name of the line that represents a model: `all`, or its only data set; None if there is neither."""
    given = dict.fromkeys(names)
    return ALL if ALL in given else next(iter(given)) if len(given) == 1 else None


def main_line(lines: Mapping[str, SummaryLine]) -> SummaryLine:
    """Return the line that represents a model, else its first line. There must be at least one."""
    return lines[main_dataset(lines) or next(iter(lines))]


def members(names: Collection[str], line: str, headline: Collection[str]) -> list[str]:
    """Return the data sets that a line of a model covers, given the names of all its lines and the headline.

    Empty for the averages `math` and `knowledge`, whose members cannot be derived from the names.
    """
    datasets = datasets_of(names)
    if line in datasets:
        return [line]
    return headline_datasets(datasets, headline) if line == ALL else datasets if line == EVERY else []


def average_sentences(given: Iterable[SummaryLine]) -> list[str]:
    """Return a sentence per average with the number of its data sets; several if that differs between models."""
    lines, found = list(given), dict[str, None]()
    num_known = {model: len(datasets_of(names)) for model, names in by_model(lines).items()}
    for line in lines:
        if line.num_datasets > 1:
            number, most = line.num_datasets, num_known[line.model]
            over = f"{number:,} data sets" if number == most else f"{number:,} of {most:,} data sets"
            chosen = " (the headline)" if line.dataset == ALL and number < most else ""
            found[f"{line.dataset}: mean over {over}{chosen}, each with the same weight"] = None
    return list(found)


def _digits(size: float) -> int:
    """Return the number of decimals for numbers of this size: fewer for large ones."""
    return 0 if size >= 100 else 1 if size >= 10 else 2


def _scale_and_digits(name: str, *, in_percent: bool, digits: int) -> tuple[float, int]:
    """Return the scale factor and decimals for showing a figure. `digits` applies to figures that are not shares."""
    if is_share(name):
        return (100.0, 1) if in_percent else (1.0, 3)
    return 1.0, digits


def fixed(value: float, digits: int, *, sign: str = "") -> str:
    """Format a number with this many decimals. A number that rounds to 0 has no minus sign."""
    text = f"{value:{sign},.{digits}f}"
    # Avoid "-0.00".
    return text if float(text.replace(",", "")) else f"{0:{sign}.{digits}f}"


def figure_cell(line: SummaryLine, name: str, *, in_percent: bool = False, with_interval: bool = False) -> str:
    """Format a figure for a table cell, `-` without a value, followed by the number of undecided votes."""
    num_without_majority = line.num_without_majority(name)
    text = figure_text(name, line.figures.get(name), in_percent=in_percent, with_interval=with_interval)
    return f"{text} ({num_without_majority:,} open)" if num_without_majority else text


def figure_text(
    name: str, row: Mapping[str, Any] | None, *, in_percent: bool = False, with_interval: bool = False
) -> str:
    """Format a figure, given its row with value, low and high; `-` without a value."""
    if row is None or row["value"] is None:
        return "-"
    scale, digits = _scale_and_digits(name, in_percent=in_percent, digits=_digits(abs(row["value"])))
    text = _amount(name, row["value"] * scale, digits)
    if with_interval and row["low"] is not None and row["high"] is not None:
        text += f" [{_amount(name, row['low'] * scale, digits)}, {_amount(name, row['high'] * scale, digits)}]"
    return text


def _amount(name: str, value: float, digits: int) -> str:
    """Format a figure: an amount of money with as many digits as it needs, any other number with `digits` decimals."""
    if math.isinf(value):
        return "\N{INFINITY}"
    return money(value) if is_money(name) else fixed(value, digits)


def short_interval_cell(line: SummaryLine, name: str) -> str:
    """Format a share with its interval in compact form."""
    row = line.figures.get(name)
    if row is None or row["value"] is None:
        return "-"
    return f"{row['value']:.3f} ({_short(row['low'])}\N{EN DASH}{_short(row['high'])})"


def _short(share: float) -> str:
    return "1.0" if share > 0.995 else f"{share:.2f}".removeprefix("0")


def figure_heading(name: str, *, in_percent: bool) -> str:
    """Return the title of a figure with its unit."""
    return f"{title_of(name)}, %" if in_percent and is_share(name) else title_of(name)


def p_text(value: float) -> str:
    """Format a p-value."""
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def compared_texts(row: Mapping[str, Any], *, in_percent: bool = False, sign: str = "") -> tuple[str, str, str]:
    """Format the first value, the second value and the difference with its interval, from a row of `comparisons`.

    Figures that are not shares get one extra decimal, so that the difference is visible.
    """
    widest = max(abs(row[name]) for name in ("difference", "low", "high") if row[name] is not None)
    scale, digits = _scale_and_digits(row["figure"], in_percent=in_percent, digits=_digits(widest) + 1)
    first, second = (fixed(row[name] * scale, digits) for name in ("first_value", "second_value"))
    difference = fixed(row["difference"] * scale, digits, sign=sign)
    if row["low"] is not None and row["high"] is not None:
        low, high = (fixed(row[name] * scale, digits, sign=sign) for name in ("low", "high"))
        difference += f" [{low}, {high}]"
    return first, second, difference


def rollouts_cell(line: SummaryLine) -> str:
    """Format the number of rollouts, and how many of them have no verdict."""
    unscored = line.num_undecided
    return f"{line.num_rollouts:,} ({unscored:,} unscored)" if unscored else f"{line.num_rollouts:,}"


def _table(
    header: Iterable[str], given: Iterable[SummaryLine], cells: Callable[[SummaryLine], Iterable[Cell]]
) -> Figures:
    """Return a table with a row per line: its model and data set, its environment if there are several, its cells."""
    lines = list(given)
    named = has_environments(lines)
    rows = tuple(
        (line.model, line.dataset, *([", ".join(line.environments)] if named else []), *cells(line)) for line in lines
    )
    header = ("model", "data set", *(["environment"] if named else []), *header)
    return Figures("", header, rows, num_names=NUM_NAMES + named)


def has_environments(lines: Iterable[SummaryLine]) -> bool:
    """Return whether tasks of lines belong to more than one environment."""
    return len({name for line in lines for name in line.environments}) > 1


def shown_figures(names: Iterable[str], lines: Sequence[SummaryLine]) -> list[str]:
    """Return those of the named figures that any of these lines has; a data set has figures by how it is scored."""
    return [name for name in names if any(name in line.figures for line in lines)]


def headline_table(given: Iterable[SummaryLine]) -> Figures:
    """Return the table of the headline figures."""
    lines = list(given)
    names = shown_figures(figures_in("headline"), lines)

    def cell(line: SummaryLine, name: str) -> str:
        if name == "score":
            return short_interval_cell(line, name)
        return figure_cell(line, name, with_interval=name in _INTERVALS)

    header = (f"{heading_of(name)} [95 %]" if name in _INTERVALS else heading_of(name) for name in names)
    return _table(("rollouts", *header), lines, lambda line: (rollouts_cell(line), *(cell(line, n) for n in names)))


def behaviour_table(given: Iterable[SummaryLine]) -> Figures:
    """Return the table of behaviour figures. Undecided votes are shown with the share."""
    lines = list(given)
    names = shown_figures(figures_in("behaviour"), lines)
    return _table(map(heading_of, names), lines, lambda line: (figure_cell(line, name) for name in names))


def pass_names(given: Iterable[SummaryLine]) -> list[str]:
    """Return the names of pass@k that any line has, sorted by k."""
    found = {name for line in given for name in line.figures if name.startswith(PASS_AT)}
    return sorted(found, key=num_attempts_of)


def pass_at_k_table(given: Iterable[SummaryLine]) -> Figures:
    """Return the table of pass@k with intervals, of the lines that have any."""
    lines = [line for line in given if pass_names([line])]
    names = pass_names(lines)
    header = (f"{name} [95 %]" for name in names)
    return _table(header, lines, lambda line: (figure_cell(line, name, with_interval=True) for name in names))


def attempts_table(given: Iterable[SummaryLine]) -> Figures:
    """Return the table of the other figures over attempts, of the lines that have any."""
    found = dict.fromkeys(
        name for line in given for name in line.figures if is_over_attempts(name) and not name.startswith(PASS_AT)
    )
    lines = [line for line in given if found.keys() & line.figures.keys()]
    return _table(found, lines, lambda line: (figure_cell(line, name) for name in found))


def all_figures(title: str, lines: Mapping[str, SummaryLine], *, in_percent: bool = False) -> Figures:
    """Return a table of every figure that any line has, one per row. Columns are lines by name, at least one."""
    names = dict.fromkeys(name for line in lines.values() for name in line.figures if is_figure(name))
    rows = tuple(
        (
            figure_heading(name, in_percent=in_percent),
            *(figure_cell(line, name, in_percent=in_percent, with_interval=True) for line in lines.values()),
        )
        for name in names
        if any(line.value(name) is not None for line in lines.values())
    )
    return Figures(title, ("figure", *lines), rows)


def agreement_table(given: Iterable[SummaryLine]) -> Figures:
    """Return the agreement of several judges on answers for which all of them have a verdict."""

    def cells(line: SummaryLine) -> tuple[Cell, ...]:
        values = (line.value(name) for name in _AGREEMENT)
        shared = int(line.value("num_judged_jointly") or 0)
        return shared, *("-" if value is None else fixed(value, 3) for value in values)

    lines = (line for line in given if "num_judged_jointly" in line.figures)
    return _table(("judged by all", "agreement", "kappa"), lines, cells)


_AGREEMENT = ("judge_agreement", "judge_kappa")


def comparison_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of one row of `comparisons`, in the order of COMPARISON."""
    is_of_questions = row["figure"] in MAIN_FIGURES and row["method"] != "combined"
    return (
        row["dataset"],
        heading_of(row["figure"]),
        f"{row['num_questions']:,}" + (f" ({row['num_dropped']:,} left out)" if row["num_dropped"] else ""),
        *compared_texts(row),
        p_text(row["p_adjusted"]),
        f"{len(row['gained']):,}, {len(row['lost']):,}" if is_of_questions else "",
    )


def count_table(given: Iterable[SummaryLine], what: str) -> Figures:
    """Return the table of rollout counts by one property, such as `status`; the most frequent value first."""
    lines = list(given)
    totals = sum((Counter(line.counts(what)) for line in lines), Counter[str]())
    order = sorted(totals, key=lambda name: (-totals[name], name))

    def cells(line: SummaryLine) -> list[int]:
        counts = line.counts(what)
        return [counts.get(name, 0) for name in order]

    return _table(order, lines, cells)
