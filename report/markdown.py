"""Render the report as markdown that is also readable as plain text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from treadle.core.figures import cell_text, escape
from treadle.eval.averages import ALL, EVERY
from treadle.eval.config import ReportSettings
from treadle.report.layout import (
    AGREEMENT,
    BEHAVIOUR,
    COMPARISON,
    HEADLINE,
    NUM_NAMES,
    SummaryLine,
    agreement_rows,
    all_figures,
    behaviour_cells,
    by_model,
    comparison_cells,
    count_table,
    headline_cells,
    members,
    pass_at_k_table,
    summary_lines,
    widths,
)

Row = Mapping[str, Any]

_HEADLINE_EXPLANATION = """\
- **accuracy**: share of rollouts judged right. A rollout that did not end with an answer is wrong.
- **P**: correctness, 1 or 0 for mathematics and options, token F1 with the best gold answer for knowledge.
- **[95 %]**: interval over questions. If two intervals overlap widely, the difference may be chance; the
  comparisons below pair the questions and are more sensitive.
- **efficiency**: P divided by requested tool calls (by 1 without calls), averaged; `-` where no tool was used.
- **calls**, **tokens**: requested and sampled per rollout.
- Rollouts without a verdict (`unscored`) are left out of accuracy, P and efficiency.
"""

_BEHAVIOUR_EXPLANATION = """\
- **success**: P divided by failed calls (by 1 without one); **strict**: by 1 plus failed calls.
- **ran well**: share of all executed calls that did not fail.
- **concise**: share of rollouts without a wasted call, by a judge's votes; **with calls**: of those that made calls;
  `open`: rollouts whose votes have no majority, left out. A rollout without calls counts as concise; `-`: no majority.
- **P/1000**: P per thousand tokens of reasoning; **L**: these tokens; **tool use**: share of rollouts with a call.
"""

_COMPARISON_EXPLANATION = """\
- **difference**: second minus first, on the same questions, with its 95 % interval.
- **p by Holm**: probability of a difference at least this large between equal models, adjusted for all comparisons of
  this report. From 0.05 on, the difference may be chance.
- **won, lost**: questions that only the second, or only the first, gets mostly right.
"""

_AGREEMENT_EXPLANATION = """\
- **judged by all**: answers on which all judges have a verdict. Answers that the rule accepts are not judged, so the
  easy ones, on which judges agree, are missing.
- **agreement**: share of pairs of verdicts that are the same; **kappa**: agreement beyond chance (1: full, 0: none).
"""


def render_report(rows: Sequence[Row], comparisons: Sequence[Row], settings: ReportSettings) -> str:
    """Render the whole report from the rows of the summary and the comparisons."""
    given = summary_lines(rows)
    parts = [
        f"# {escape(settings.title)}",
        render_table(HEADLINE, [headline_cells(line) for line in given]),
        _HEADLINE_EXPLANATION + _averages(given, settings),
        *_passes(given),
        "## Behaviour",
        render_table(BEHAVIOUR, [behaviour_cells(line) for line in given]),
        _BEHAVIOUR_EXPLANATION.rstrip(),
        *_comparisons(comparisons),
        "## All figures [95 %]",
        *_all_figures(given),
        "## How rollouts ended",
        _counts(given, "status"),
        "## Who decided",
        _counts(given, "scorer"),
        *_judged(given),
    ]
    return "\n\n".join(parts) + "\n"


def _passes(given: Sequence[SummaryLine]) -> Iterator[str]:
    header, body = pass_at_k_table(given)
    if body:
        yield "## pass@k"
        yield render_table(header, body)
        yield "- **pass@k**: probability that at least one of k rollouts of a question is right."


def _averages(given: Sequence[SummaryLine], settings: ReportSettings) -> str:
    """Return the explanation of the averages, with a note if they differ between models."""
    datasets = {line.dataset for line in given}
    chosen = sorted(datasets.intersection(settings.headline))
    over = f"the headline data sets ({', '.join(map(escape, chosen))})" if chosen else "the data sets"
    every = "; **every**: over all data sets" if EVERY in datasets else ""
    averaged = [frozenset(members(lines, ALL, settings.headline)) for lines in by_model(given).values() if ALL in lines]
    unlike = (
        "\n- The averages cover different data sets, so they do not show which model is better."
        if len(set(averaged)) > 1
        else ""
    )
    return (
        f"- **all**: unweighted mean over {over}{every}.\n"
        "- **math**, **knowledge**: the same over math data sets, and over all others. Counts are sums."
        f"{unlike}"
    )


def _all_figures(given: Sequence[SummaryLine]) -> Iterator[str]:
    """Yield one table per data set and average, with models as columns."""
    for name in dict.fromkeys(line.dataset for line in given):
        table = all_figures(name, {line.model: line for line in given if line.dataset == name})
        yield f"### {escape(table.title)}"
        header, body = [escape(cell) for cell in table.header], [list(map(cell_text, row)) for row in table.rows]
        yield render_table(header, body, num_names=1)
    yield "- **F1 as published**: with punctuation kept, to compare with published tables."


def _comparisons(comparisons: Sequence[Row]) -> Iterator[str]:
    if not comparisons:
        return
    yield "## Comparisons"
    for (first, second), group in groupby(comparisons, key=lambda row: (row["first"], row["second"])):
        rows = list(group)
        yield f"First {escape(first)}, second {escape(second)}:"
        yield render_table(COMPARISON, [comparison_cells(row) for row in rows])
        for note in dict.fromkeys(row["note"] for row in rows if row["note"]):
            yield f"Not directly comparable: {escape(note)}."
    yield _COMPARISON_EXPLANATION.rstrip()


def _counts(given: Sequence[SummaryLine], what: str) -> str:
    header, body = count_table(given, what)
    return render_table([escape(name) for name in header], body)


def _judged(given: Sequence[SummaryLine]) -> Iterator[str]:
    if not any(line.counts("judge_status") for line in given):
        yield "No judge was used: rules decided P."
        return
    yield "Answers that judges were asked about, by result:"
    yield _counts(given, "judge_status")
    if body := agreement_rows(given):
        yield "Agreement of the judges:"
        yield render_table(AGREEMENT, body)
        yield _AGREEMENT_EXPLANATION.rstrip()


def render_table(header: Sequence[str], body: Sequence[Sequence[str]], *, num_names: int = NUM_NAMES) -> str:
    """Render a pipe table with aligned columns. The first `num_names` columns hold names, which are escaped."""
    escaped = [[escape(cell) if index < num_names else cell for index, cell in enumerate(row)] for row in body]
    cells = [list(header), *escaped]
    width = [max(size, 3) for size in widths(cells)]
    lines = [_line(row, width, num_names) for row in cells]
    ruler = ["-" * size if index < num_names else "-" * (size - 1) + ":" for index, size in enumerate(width)]
    return "\n".join([lines[0], _line(ruler, width, num_names), *lines[1:]])


def _line(cells: Sequence[str], width: Sequence[int], num_names: int) -> str:
    padded = [
        cell.ljust(size) if index < num_names else cell.rjust(size)
        for index, (cell, size) in enumerate(zip(cells, width, strict=True))
    ]
    return f"| {' | '.join(padded)} |"
