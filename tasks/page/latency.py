"""Build the section on rollout latency, from the stages' telemetry.

Times differ between runs with equal rollouts. They are therefore shown only on this page, never in a report's tables.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from treadle.core.figures import Cell, Figures
from treadle.core.runs.records import StageRecord
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY
from treadle.environments.rollouts.tool_counts import MAX_TOOLS, OTHERS
from treadle.report.page.charts import format_number, parts_chart
from treadle.report.page.document import Fold, Part, Section
from treadle.tasks.page.models import EvaluatedModel
from treadle.tasks.page.rollout_times import Times, times_of_row
from treadle.tasks.page.sources import PageRun
from treadle.tasks.page.turn_times import turn_times_table
from treadle.tasks.summaries.report_tables import report_tables

_READING = (
    "Duration of a rollout, from its first request to its end: seconds depend on the machines and on "
    "how many rollouts ran at once, so compare models that ran under equal conditions."
)
_NOTE = "In model: mean time waiting for completions, with retries; in tools: mean time in tool calls."
_UNMEASURED = (
    "Not measured, and in none of these figures: ended by infrastructure, continued after an interruption, or "
    "the log of their stage no longer exists."
)


RolloutTimes = list[Times | None]
"""Seconds of each of one model's rollouts on one or more data sets; None for a rollout without measured seconds."""


def _known(times: RolloutTimes) -> list[Times]:
    return [one for one in times if one is not None]


def _means(times: Sequence[Times]) -> Times:
    """Return the mean seconds over rollouts, of which there is at least one."""
    total = statistics.fmean(one.total for one in times)
    return Times(total, statistics.fmean(one.model for one in times), statistics.fmean(one.tools for one in times))


def latency_section(models: Sequence[EvaluatedModel]) -> list[Section]:
    """Return the section on seconds per rollout, if any were measured."""
    by_model: dict[str, dict[str, RolloutTimes]] = {}
    for source in dict.fromkeys(model.source for model in models):
        own = {model.name: model.label for model in models if model.source is source}
        report = next(model.report for model in models if model.source is source)
        for name, datasets in _measured(source, report).items():
            if name in own:
                by_model[own[name]] = datasets
    over_all: dict[str, RolloutTimes] = {label: list(chain(*found.values())) for label, found in by_model.items()}
    known = {label: measured for label, times in over_all.items() if (measured := _known(times))}
    if not known:
        return []
    bars = {label: _parts(_means(measured)) for label, measured in known.items()}
    parts: list[Part] = [
        parts_chart("Mean seconds of a rollout", "seconds", ("model", "tools", "the rest"), bars),
        _table("Seconds of a rollout", ("model",), [((label,), one) for label, one in over_all.items()]),
        *turn_times_table(models),
    ]
    if (by_tool := _by_tool(known)).rows:
        parts.append(by_tool)
    names = dict.fromkeys(name for model in models for name in model.datasets)
    if len(names) > 1:
        rows = [
            ((name, label), datasets[name])
            for name in names
            for label, datasets in by_model.items()
            if name in datasets
        ]
        title = "Seconds of a rollout by data set"
        parts.append(Fold(title, [_table(title, ("data set", "model"), rows)]))
    return [Section("latency", "Time", _READING, parts)]


def _measured(source: PageRun, report: StageRecord) -> dict[str, dict[str, RolloutTimes]]:
    """Return the seconds of the rollouts in a report, by model and data set."""
    found: dict[str, dict[str, RolloutTimes]] = {}
    for given, prefix in report_tables(report):
        times = _times(source, source.maker(given))
        for row in source.rows(given.artifact, given.address, ("rollout_key", "model", "dataset")):
            datasets = found.setdefault(prefix + row["model"], {})
            datasets.setdefault(row["dataset"], []).append(times.get(row["rollout_key"]))
    return found


def _times(source: PageRun, scores: StageRecord | None) -> dict[str, Times]:
    """Return the seconds of each scored rollout with known times, by rollout key."""
    makers = [source.maker(given) for given in scores.inputs.get("rollouts", ())] if scores is not None else []
    return {
        row["rollout_key"]: times
        for record in makers
        if record is not None
        for row in source.telemetry(record, ROLLOUT_TELEMETRY.kind)
        if (times := times_of_row(row)) is not None
    }


def _parts(means: Times) -> tuple[float, float, float]:
    return means.model, means.tools, max(0.0, means.total - means.model - means.tools)


def _by_tool(known: Mapping[str, Sequence[Times]]) -> Figures:
    """Return a table of the seconds of each model's calls by tool, the tools that take most time first."""
    totals = Counter[str]()
    for one in chain(*known.values()):
        totals.update({tool: seconds for tool, (_, seconds) in one.by_tool.items()})
    names = [tool for tool, _ in totals.most_common(MAX_TOOLS)]
    rows: list[tuple[Cell, ...]] = []
    for label, times in known.items():
        calls: dict[str, list[tuple[int, float]]] = {}
        for tool, found in (of_tool for one in times for of_tool in one.by_tool.items()):
            calls.setdefault(tool if tool in names else OTHERS, []).append(found)
        for tool in (name for name in (*names, OTHERS) if name in calls):
            count, seconds = sum(one for one, _ in calls[tool]), sum(one for _, one in calls[tool])
            rows.append((label, tool, count, format_number(seconds / count), format_number(seconds / len(times))))
    header = ("model", "tool", "calls", "seconds per call", "seconds per rollout")
    return Figures("Seconds in tools", header, tuple(rows), num_names=2)


def _table(title: str, first: tuple[str, ...], named: Sequence[tuple[tuple[str, ...], RolloutTimes]]) -> Figures:
    is_complete = all(None not in times for _, times in named)
    rows: list[tuple[Cell, ...]] = []
    for names, times in named:
        measured = _known(times)
        values: tuple[str, ...] = ("-",) * 5
        if measured:
            means, (p50, p95) = _means(measured), np.percentile([one.total for one in measured], [50, 95]).tolist()
            values = tuple(map(format_number, (means.total, p50, p95, means.model, means.tools)))
        rows.append((*names, len(times), *values, *(() if is_complete else (times.count(None),))))
    header = (*first, "rollouts", "mean", "median", "95th percentile", "in model", "in tools")
    if is_complete:
        return Figures(title, header, tuple(rows), _NOTE)
    return Figures(title, (*header, "not measured"), tuple(rows), f"{_NOTE} {_UNMEASURED}")
