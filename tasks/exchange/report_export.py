"""Convert a finished report to the formats of `treadle export report`."""

from __future__ import annotations

from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.schemas import COMPARISONS, SUMMARY
from treadle.report.stage import as_csv, as_json

_FORMATS = {".json": "json", ".csv": "csv", ".md": "md", ".txt": "md", "": "md"}


def format_by_name(file: Path) -> str:
    """Return the format that a file name implies; raise ConfigError if it implies none."""
    if (found := _FORMATS.get(file.suffix.lower())) is None:
        raise ConfigError(
            f"{file}: {file.suffix} is the extension of no format; name one with --format, or use .json, .csv "
            "or .md; `treadle report` makes a page for browsers"
        )
    return found


def report_content(run: Run, record: StageRecord, format_name: str) -> bytes:
    """Return the file content: json, csv, comparisons or md."""
    summary = run.rows(record.outputs[SUMMARY.kind])
    if format_name == "md":
        return summary.read_file("report.md")
    if format_name == "csv":
        return as_csv(list(summary.rows()), SUMMARY.schema.names)
    comparisons = list(run.rows(record.outputs[COMPARISONS.kind]).rows())
    if format_name == "comparisons":
        return as_csv(comparisons, COMPARISONS.schema.names)
    return as_json(list(summary.rows()), comparisons)
