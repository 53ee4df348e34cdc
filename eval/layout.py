"""How the rows of summary and comparisons are shown: once for markdown, terminal and page.

Titles, units and places of figures are those of `metrics.Figure`. Texts show shares as they are, with three digits
behind the point; the page in per cent, with one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.core.figures import Figures, plain
from treadle.eval.averages import ALL, AVERAGES, EVERY, of_headline
from treadle.eval.metrics import PASS_AT, heading_of, is_figure, is_share, needs, placed, title_of

_INTERVALS = ("accuracy", "score")
"""Columns of the headline with room for intervals."""


def _header(*before: str, figures: Sequence[str], with_interval: Collection[str] = ()) -> tuple[str, ...]:
    return (*before, *(f"{heading_of(name)} [95 %]" if name in with_interval else heading_of(name) for name in figures))


HEADLINE = _header("model", "data set", "rollouts", figures=placed("headline"), with_interval=_INTERVALS)
BEHAVIOUR = _header("model", "data set", figures=placed("behaviour"))
COMPARISON = ("data set", "figure", "questions", "first", "second", "difference [95 %]", "p by Holm", "won, lost")
NUM_NAMES = 2
"""Columns of these tables that hold names, which stand to the left; numbers stand to the right."""
AGREEMENT = ("model", "data set", "judged by all", "agreement", "kappa")


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
        return self.counts("votes").get("undecided", 0) if needs(figure, "votes") else 0

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


def by_model(given: Iterable[Line]) -> dict[str, dict[str, Line]]:
    """Model -> data set or average -> its line."""
    models: dict[str, dict[str, Line]] = {}
    for line in given:
        models.setdefault(line.model, {})[line.dataset] = line
    return models


def datasets_of(names: Collection[str]) -> list[str]:
    """The data sets among the names of a model's lines; a lone one may be called as an average is."""
    return [name for name in names if len(names) == 1 or name not in AVERAGES]


def main_dataset(names: Iterable[str]) -> str | None:
    """Which line stands for a model: `all`, or its only data set; None of several data sets without an average."""
    given = dict.fromkeys(names)
    return ALL if ALL in given else next(iter(given)) if len(given) == 1 else None


def main_line(lines: Mapping[str, Line]) -> Line:
    """The same of a model's lines by name, at least one."""
    return lines[main_dataset(lines) or next(iter(lines))]


def members(names: Collection[str], line: str, headline: Collection[str]) -> list[str]:
    """The data sets that a line of a model is over, by the names of all its lines and of the headline.

    None where only the name of the average says it: mathematics, knowledge.
    """
    datasets = datasets_of(names)
    if line in datasets:
        return [line]
    return of_headline(datasets, headline) if line == ALL else datasets if line == EVERY else []


def _digits(size: float) -> int:
    """Behind the point, for numbers of this size: few for large ones."""
    return 0 if size >= 100 else 1 if size >= 10 else 2


def _form(name: str, *, in_percent: bool, digits: int) -> tuple[float, int]:
    """By what a figure is multiplied to be shown, and the digits behind the point; `digits`: of what is no share."""
    if is_share(name):
        return (100.0, 1) if in_percent else (1.0, 3)
    return 1.0, digits


def fixed(value: float, digits: int, *, sign: str = "") -> str:
    """A number with so many digits behind the point; one that rounds to 0 has no minus."""
    text = f"{value:{sign},.{digits}f}"
    return text if float(text.replace(",", "")) else f"{0:{sign}.{digits}f}"


def figure_cell(line: Line, name: str, *, in_percent: bool = False, with_interval: bool = False) -> str:
    """A figure as it stands in a table, `-` for none; with votes that are open."""
    value, num_open = line.value(name), line.num_open(name)
    text = "-"
    if value is not None:
        row, (scale, digits) = line.figures[name], _form(name, in_percent=in_percent, digits=_digits(abs(value)))
        text = fixed(value * scale, digits)
        if with_interval and row["low"] is not None and row["high"] is not None:
            text += f" [{fixed(row['low'] * scale, digits)}, {fixed(row['high'] * scale, digits)}]"
    return f"{text} ({num_open:,} open)" if num_open else text


def short_interval_cell(line: Line, name: str) -> str:
    """A share with its interval in little room."""
    row = line.figures.get(name)
    if row is None or row["value"] is None:
        return "-"
    return f"{row['value']:.3f} ({_short(row['low'])}\N{EN DASH}{_short(row['high'])})"


def _short(share: float) -> str:
    return "1.0" if share > 0.995 else f"{share:.2f}".removeprefix("0")


def figure_heading(name: str, *, in_percent: bool) -> str:
    """The title of a figure with its unit."""
    return f"{title_of(name)}, %" if in_percent and is_share(name) else title_of(name)


def p_text(value: float) -> str:
    """A p-value."""
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def compared_texts(row: Mapping[str, Any], *, in_percent: bool = False, sign: str = "") -> tuple[str, str, str]:
    """First value, second value and difference with its interval, of a row of `comparisons`.

    What is no share has a digit more than such a number alone has, so that the difference is seen.
    """
    told = max(abs(row[name]) for name in ("difference", "low", "high") if row[name] is not None)
    scale, digits = _form(row["figure"], in_percent=in_percent, digits=_digits(told) + 1)
    first, second = (fixed(row[name] * scale, digits) for name in ("first_value", "second_value"))
    difference = fixed(row["difference"] * scale, digits, sign=sign)
    if row["low"] is not None and row["high"] is not None:
        low, high = (fixed(row[name] * scale, digits, sign=sign) for name in ("low", "high"))
        difference += f" [{low}, {high}]"
    return first, second, difference


def rollouts_cell(line: Line) -> str:
    """Rollouts, and how many of them have no verdict."""
    unscored = line.figures["score"]["num_undecided"]
    return f"{line.num_rollouts:,} ({unscored:,} unscored)" if unscored else f"{line.num_rollouts:,}"


def headline_cells(line: Line) -> list[str]:
    """Cells of one line, in the order of HEADLINE."""
    cells = [
        short_interval_cell(line, name)
        if name == "score"
        else figure_cell(line, name, with_interval=name in _INTERVALS)
        for name in placed("headline")
    ]
    return [plain(line.model), plain(line.dataset), rollouts_cell(line), *cells]


def behaviour_cells(line: Line) -> list[str]:
    """Cells of one line, in the order of BEHAVIOUR; undecided votes stand with the share of the others."""
    return [plain(line.model), plain(line.dataset), *(figure_cell(line, name) for name in placed("behaviour"))]


def pass_names(given: Iterable[Line]) -> list[str]:
    """Names of pass@k that any line has, by k."""
    found = {name for line in given for name in line.figures if name.startswith(PASS_AT)}
    return sorted(found, key=lambda name: int(name.removeprefix(PASS_AT)))


def passes(given: Iterable[Line]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of pass@k with intervals, of the lines that have any."""
    lines = [line for line in given if pass_names([line])]
    names = pass_names(lines)
    body = [
        [plain(line.model), plain(line.dataset), *(figure_cell(line, name, with_interval=True) for name in names)]
        for line in lines
    ]
    return ["model", "data set", *(f"{name} [95 %]" for name in names)], body


def all_figures(title: str, lines: Mapping[str, Line], *, in_percent: bool = False) -> Figures:
    """Every figure that any of the lines has, one a row; lines as columns, by their names, at least one."""
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


def agreement_rows(given: Iterable[Line]) -> list[list[str]]:
    """Rows of AGREEMENT: how far several judges agree on the answers that all of them have a verdict on."""
    return [
        [
            plain(line.model),
            plain(line.dataset),
            f"{line.value('num_judged_jointly') or 0:,.0f}",
            *("-" if (value := line.value(name)) is None else fixed(value, 3) for name in _AGREEMENT),
        ]
        for line in given
        if "num_judged_jointly" in line.figures
    ]


_AGREEMENT = ("judge_agreement", "judge_kappa")


def comparison_cells(row: Mapping[str, Any]) -> list[str]:
    """Cells of one row of `comparisons`, in the order of COMPARISON."""
    is_of_questions = row["figure"] == "score" and row["method"] != "combined"
    return [
        plain(row["dataset"]),
        heading_of(row["figure"]),
        f"{row['num_questions']:,}" + (f" ({row['num_dropped']:,} left out)" if row["num_dropped"] else ""),
        *compared_texts(row),
        p_text(row["p_adjusted"]),
        f"{len(row['gained']):,}, {len(row['lost']):,}" if is_of_questions else "",
    ]


def count_table(given: Iterable[Line], what: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of numbers of rollouts by one thing, such as `status`; the most frequent stand first."""
    counts = [(plain(line.model), plain(line.dataset), line.counts(what)) for line in given]
    totals: dict[str, int] = {}
    for _, _, numbers in counts:
        for name, count in numbers.items():
            totals[name] = totals.get(name, 0) + count
    order = sorted(totals, key=lambda name: (-totals[name], name))
    body = [[model, dataset, *(f"{numbers.get(name, 0):,}" for name in order)] for model, dataset, numbers in counts]
    return ["model", "data set", *order], body


def widths(table: Sequence[Sequence[str]]) -> list[int]:
    """Width of each column in characters."""
    return [max(len(row[index]) for row in table) for index in range(len(table[0]))]
