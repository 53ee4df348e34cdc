"""Convert a finished report to the formats of `treadle export report`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from treadle.core.errors import ConfigError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.records import InputRef, StageRecord
from treadle.core.runs.run import Run
from treadle.core.schemas import COMPARISONS, SUMMARY
from treadle.eval.config import ScoresSettings
from treadle.eval.legacy_report import QUESTION_COLUMNS, ROLLOUT_COLUMNS, SCORE_COLUMNS, legacy_report
from treadle.report.stage import as_csv, as_json
from treadle.tasks.summaries.report_tables import report_tables

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
    """Return the file content: json, csv, comparisons, md or legacy; raise RunError if inputs no longer exist."""
    summary = run.rows(record.outputs[SUMMARY.kind])
    if format_name == "md":
        return summary.read_file("report.md")
    if format_name == "csv":
        return as_csv(list(summary.rows()), SUMMARY.schema.names)
    if format_name == "legacy":
        figures = _legacy(run, record)
        return orjson.dumps(figures, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    comparisons = list(run.rows(record.outputs[COMPARISONS.kind]).rows())
    if format_name == "comparisons":
        return as_csv(comparisons, COMPARISONS.schema.names)
    return as_json(list(summary.rows()), comparisons)


def _legacy(run: Run, record: StageRecord) -> dict[str, Any]:
    """Return the legacy report, from the scores that the report read and their rollouts and questions."""
    scores = report_tables(record)
    makers = [_maker(run, ref) for ref, _ in scores]
    rollouts = [ref for maker in makers for ref in maker.inputs["rollouts"]]
    questions = dict.fromkeys(ref.artifact for maker in makers for ref in maker.inputs["questions"])
    return legacy_report(
        _scored(run, scores, makers),
        _rows(run, rollouts, ROLLOUT_COLUMNS),
        itertools.chain.from_iterable(run.rows(artifact).rows(QUESTION_COLUMNS) for artifact in questions),
    )


def _scored(
    run: Run, tables: Sequence[tuple[InputRef, str]], makers: Sequence[StageRecord]
) -> Iterator[dict[str, Any]]:
    """Yield rows of scores with the model names of the report, and whether judges can decide about them."""
    for (ref, prefix), maker in zip(tables, makers, strict=True):
        judges = ScoresSettings.model_validate(maker.settings).options.judges
        domains = judges.domains if judges.models else ()
        for row in run.rows(ref.artifact).rows(SCORE_COLUMNS):
            has_judge = row["judge_status"] is not None or row["domain"] in domains
            yield {**row, "model": prefix + row["model"], "has_judge": has_judge}


def _maker(run: Run, ref: InputRef) -> StageRecord:
    """Return the record that made an input; raise RunError if it has been replaced since."""
    made = run.record(Address.parse(ref.address))
    if made is None or made.outputs.get(ref.artifact.kind) != ref.artifact:
        raise RunError(f"{ref.address} has been rerun since the report; run the report again")
    return made


def _rows(run: Run, refs: Sequence[InputRef], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    for ref in refs:
        yield from run.rows(ref.artifact).rows(columns)
