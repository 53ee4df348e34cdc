"""The stage `report`: scores of several models side by side, as tables of numbers, as markdown and as a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from treadle.core.schemas import COMPARISONS, SUMMARY
from treadle.core.stage import Rows, Stage, StageContext
from treadle.eval.config import ReportSettings
from treadle.eval.markdown import render_report
from treadle.eval.metrics import dataset_figures
from treadle.eval.scored_rollout import COLUMNS, ScoredRollout
from treadle.eval.summary import check_names, model_rows


def run_report(context: StageContext) -> Mapping[str, Any]:
    """Sum up the scores; returns counts. Raises ConfigError for a data set with the name of an average."""
    settings: ReportSettings = context.settings
    tables = context.inputs["scores"]
    context.progress.start(sum(table.num_rows for table in tables), 0, "rollouts")
    models = _collect(tables, context)
    datasets = sorted({rollout.dataset for rollouts in models.values() for rollout in rollouts})
    check_names(datasets)
    rows: list[dict[str, Any]] = []
    for model, rollouts in models.items():
        rows += model_rows(model, dataset_figures(rollouts, settings.areas), settings)
    context.write(SUMMARY.kind, rows)
    context.add_file(SUMMARY.kind, "report.md", render_report(rows, settings.title).encode())
    context.add_file(SUMMARY.kind, "summary.json", orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    context.add_file(SUMMARY.kind, "summary.csv", as_csv(rows, SUMMARY.schema.names))
    return {
        "num_rollouts": sum(map(len, models.values())),
        "num_models": len(models),
        "num_datasets": len(datasets),
        "num_undecided": sum(rollout.score is None for rollouts in models.values() for rollout in rollouts),
    }


def _collect(tables: Sequence[Rows], context: StageContext) -> dict[str, list[ScoredRollout]]:
    models: dict[str, list[ScoredRollout]] = {}
    for table in tables:
        for batch in table.batches([*COLUMNS, "model"]):
            for row in batch.to_pylist():
                models.setdefault(row["model"], []).append(ScoredRollout.from_row(row))
            context.progress.advance(batch.num_rows)
    return models


def as_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    """Comma-separated values in UTF-8 with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


REPORT = Stage(
    name="report",
    version=2,
    settings=ReportSettings,
    consumes={"scores": "scores"},
    produces=(SUMMARY, COMPARISONS),
    run=run_report,
)
