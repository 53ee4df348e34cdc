"""Run the stage `report`: compare the scores of several models in tables, markdown and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from treadle.core.errors import StageFailed
from treadle.core.runs.stage import Rows, StageContext
from treadle.eval.config import ReportSettings
from treadle.eval.dataset_figures import dataset_figures
from treadle.eval.figures.prices import rollout_cost
from treadle.eval.scored_rollout import COLUMNS, ScoredRollout
from treadle.eval.tool_names import CommonTools
from treadle.report.comparison_rows import comparison_rows
from treadle.report.files import as_csv, as_json
from treadle.report.groups import group_rows, group_tables, question_groups
from treadle.report.layout import by_model, main_line, summary_lines
from treadle.report.markdown import render_report
from treadle.report.radar import draw_radar, radar_axes
from treadle.report.summary import check_environments, check_names, label_prefixes, model_rows
from treadle.report.tables import COMPARISONS, GROUPS, SUMMARY

Row = dict[str, Any]


def run_report(context: StageContext) -> Mapping[str, Any]:
    """Summarise the scores and return counts.

    Raise ConfigError if a data set has the name of an average, StageFailed if there are no scores.
    """
    settings: ReportSettings = context.settings
    tables = context.inputs["scores"]
    context.progress.start(sum(table.num_rows for table in tables), 0, "rollouts")
    models = _collect(tables, context)
    if not models:
        raise StageFailed(f"{context.address}: there are no scores to report; name models in flow.models")
    datasets = sorted({rollout.dataset for rollouts in models.values() for rollout in rollouts})
    check_names(datasets)
    environments: dict[str, set[str]] = {}
    for rollout in (one for rollouts in models.values() for one in rollouts):
        environments.setdefault(rollout.dataset, set()).add(rollout.environment)
    check_environments(environments)
    tools = CommonTools.of(rollout for rollouts in models.values() for rollout in rollouts)
    models = {model: list(map(tools.apply, rollouts)) for model, rollouts in models.items()}
    rows = [
        row
        for model, rollouts in models.items()
        for row in model_rows(model, dataset_figures(rollouts, settings.areas, tools.names), settings)
    ]
    comparisons = comparison_rows(models, settings)
    context.write(SUMMARY.kind, rows)
    context.write(COMPARISONS.kind, comparisons)
    known = question_groups(context.inputs.get("questions", ()), settings.group_by)
    groups = [row for model, rollouts in models.items() for row in group_rows(model, rollouts, known, settings)]
    context.write(GROUPS.kind, groups)
    for name, content in _files(rows, comparisons, groups, settings).items():
        context.add_file(SUMMARY.kind, name, content)
    return {
        "num_rollouts": sum(map(len, models.values())),
        "num_models": len(models),
        "num_datasets": len(datasets),
        "num_undecided": sum(rollout.score is None for rollouts in models.values() for rollout in rollouts),
        "num_comparisons": len(comparisons),
    }


def _collect(tables: Sequence[Rows], context: StageContext) -> dict[str, list[ScoredRollout]]:
    settings: ReportSettings = context.settings
    prices = {**settings.model_prices, **settings.prices}
    models: dict[str, list[ScoredRollout]] = {}
    places = zip(context.producers["scores"], (table.digest for table in tables), strict=True)
    for table, prefix in zip(tables, label_prefixes(list(places)), strict=True):
        if prefix is None:
            context.progress.advance(table.num_rows)
            continue
        for batch in table.batches([*COLUMNS, "model"]):
            for row in batch.to_pylist():
                rollout = ScoredRollout.from_row(row)
                cost = rollout_cost(rollout, prices.get(row["model"]), settings.tool_fees)
                models.setdefault(prefix + row["model"], []).append(replace(rollout, cost=cost))
            context.progress.advance(batch.num_rows)
    return models


def _files(
    rows: Sequence[Row], comparisons: Sequence[Row], groups: Sequence[Row], settings: ReportSettings
) -> dict[str, bytes]:
    return {
        "report.md": render_report(rows, comparisons, settings, group_tables(groups)).encode(),
        "summary.json": as_json(rows, comparisons, groups),
        "summary.csv": as_csv(rows, SUMMARY.schema.names),
        "radar.svg": draw_radar(radar_axes(_radar_figures(rows))),
    }


def _radar_figures(rows: Sequence[Row]) -> dict[str, dict[str, float | None]]:
    """Return the figures of each model's main average, or of its only data set."""
    main = {model: main_line(lines) for model, lines in by_model(summary_lines(rows)).items()}
    return {model: {name: line.value(name) for name in line.figures} for model, line in main.items()}
