"""Show the report's headline as tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from treadle.agent.contract import DEFAULT_ENVIRONMENT
from treadle.core.figures import Figures
from treadle.eval.metrics import FIGURES, MAIN_FIGURES, figures_in, heading_of
from treadle.report.layout import (
    COMPARISON,
    MIXED_NOTE,
    SummaryLine,
    agreement_table,
    average_sentences,
    by_model,
    comparison_cells,
    count_table,
    datasets_of,
    figure_cell,
    has_environments,
    headline_table,
    main_dataset,
    main_line,
    rollouts_cell,
    short_interval_cell,
    shown_figures,
    summary_lines,
)
from treadle.report.terminal_table import terminal_table

if TYPE_CHECKING:
    from rich.table import Table

MIN_FULL_WIDTH = 110
"""Terminal width from which the full headline fits, with names of usual length."""
_NARROW = {"accuracy": "accuracy, 95 %", "efficiency": "effic.", "tool_use": "tools"}
"""Shorter headings for narrow terminals. Columns are those of the headline and the share of rollouts with tool calls.
"""

_DIFFERENT_DATASETS = "The averages cover different data sets, so they do not show which model is better"


def summary_table(rows: Iterable[Mapping[str, Any]], title: str | None = None, width: int | None = None) -> Table:
    """Return a table of the summary. Names are shown as plain text, not markup, and are never truncated.

    Below MIN_FULL_WIDTH characters, models become headings, the interval of the score P is left out and numbers are
    shorter.
    """
    given = summary_lines(rows)
    if width is None or width >= MIN_FULL_WIDTH:
        return _table(replace(headline_table(given), title=title or "", note=_caption(given)))
    names = shown_figures(_narrow_figures(), given)
    body: list[tuple[str, ...]] = []
    for model, of_model in groupby(given, key=lambda line: line.model):
        body.append((model,))
        body += (_narrow_cells(line, names, with_environment=has_environments(given)) for line in of_model)
    headings = [_NARROW.get(name, heading_of(name)) for name in names]
    return _table(Figures(title or "", ("data set", "n", *headings), tuple(body), _caption(given)))


def _caption(given: Iterable[SummaryLine]) -> str:
    """Return a note on the data sets that each average covers, and on data sets that only some models have."""
    lines = list(given)
    asked = {tuple(sorted(datasets_of(of_model))) for of_model in by_model(lines).values()}
    over = average_sentences(lines)
    over += [MIXED_NOTE] if any(len(line.environments) > 1 for line in lines) else []
    return "\n".join([*over, *([_DIFFERENT_DATASETS] if len(asked) > 1 else [])])


def comparison_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return a table of the main comparisons: each pair on the average over data sets, or on its only data set."""
    body: list[tuple[str, ...]] = []
    notes: dict[str, None] = {}
    for (first, second), of_pair in groupby(rows, key=lambda row: (row["first"], row["second"])):
        body.append((f"{first}, then {second}",))
        for row in main_comparisons(list(of_pair)):
            dataset, figure, _, *numbers, _ = comparison_cells(row)
            body.append((f"  {dataset}", figure, *numbers))
            if row["note"]:
                notes[f"{first}, then {second}: {row['note']}"] = None
    header = ("compared", *COMPARISON[1:2], *COMPARISON[3:7])
    return _table(Figures("", header, tuple(body), "\n".join(notes)))


def judges_table(rows: Iterable[Mapping[str, Any]]) -> Table | None:
    """Return a table of the scorers and judges that decided about each model's answers, with the judges' agreement.

    Returns None if no judge was asked.
    """
    given = summary_lines(rows)
    if not any(line.counts("judge_status") for line in given):
        return None
    main = [main_line(lines) for lines in by_model(given).values()]
    table, agreement = count_table(main, "scorer"), agreement_table(main)
    if not agreement.rows:
        return _table(replace(table, title="Who decided"))
    of_model = {row[0]: row[agreement.num_names :] for row in agreement.rows}
    header = (*table.header, *agreement.header[agreement.num_names :])
    none = ("-",) * len(agreement.header[agreement.num_names :])
    body = tuple((*row, *of_model.get(row[0], none)) for row in table.rows)
    return _table(Figures("Who decided", header, body, num_names=table.num_names))


def main_comparisons(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the main rows of one pair: all figures of the average or only data set, else only the score rows."""
    main = main_dataset(row["dataset"] for row in rows)
    return [row for row in rows if (row["figure"] in MAIN_FIGURES if main is None else row["dataset"] == main)]


def _table(table: Figures) -> Table:
    return terminal_table(table, unwrapped=range(table.num_names, len(table.header)))


def _narrow_figures() -> tuple[str, ...]:
    return tuple(name for name in FIGURES if name in (*figures_in("headline"), "tool_use"))


def _narrow_cells(line: SummaryLine, names: Iterable[str], *, with_environment: bool) -> tuple[str, ...]:
    cells = [short_interval_cell(line, name) if name == "accuracy" else figure_cell(line, name) for name in names]
    is_named = with_environment and len(line.environments) == 1 and line.environments != (DEFAULT_ENVIRONMENT,)
    environment = f" ({line.environments[0]})" if is_named else ""
    return f"  {line.dataset}{environment}", rollouts_cell(line).replace(" unscored", ""), *cells
