"""Format the tables of a report as JSON, CSV or markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.report.problems import compared_diagnoses, problems_markdown
from treadle.report.tables import COMPARISONS, GROUPS, SUMMARY

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of a cell that make a spreadsheet read it as a formula, or that it skips before a formula."""


def as_json(
    rows: Sequence[Mapping[str, Any]], comparisons: Sequence[Mapping[str, Any]], groups: Sequence[Mapping[str, Any]]
) -> bytes:
    """Return the tables as JSON, row by row."""
    tables = {"summary": list(rows), "comparisons": list(comparisons), "groups": list(groups)}
    return orjson.dumps(tables, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def as_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    """Return UTF-8 CSV with a header. Null cells are empty, and lists are joined by spaces.

    Text that a spreadsheet would read as a formula, such as a name that begins with `=`, is prefixed with an
    apostrophe.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _csv_cell(cell) for name, cell in row.items()})
    return text.getvalue().encode()


def _csv_cell(cell: Any) -> Any:
    if isinstance(cell, list):
        return " ".join(cell)
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def report_content(run: Run, record: StageRecord, format_name: str) -> bytes:
    """Return the report of a record as `json`, `csv` (the figures), `comparisons` (the comparisons as CSV) or `md`.

    Markdown has a section on likely problems of those rollouts and scores that still exist.
    """
    summary = run.rows(record.outputs[SUMMARY.kind])
    if format_name == "md":
        parts = [summary.read_file("report.md").decode().rstrip(), *problems_markdown(compared_diagnoses(record, run))]
        return ("\n\n".join(parts) + "\n").encode()
    if format_name == "csv":
        return as_csv(list(summary.rows()), SUMMARY.schema.names)
    comparisons = list(run.rows(record.outputs[COMPARISONS.kind]).rows())
    if format_name == "comparisons":
        return as_csv(comparisons, COMPARISONS.schema.names)
    return as_json(list(summary.rows()), comparisons, list(run.rows(record.outputs[GROUPS.kind]).rows()))
