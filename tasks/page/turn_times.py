"""Build the table of turns and seconds next to accuracy, with the seconds of parallel calls.

Times come from telemetry and the calls of rollouts, so the table is only on this page, never in a report's tables.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from treadle.core.figures import Cell, Figures
from treadle.core.runs.records import StageRecord
from treadle.environments.mixture import environments_of
from treadle.environments.planning.figures import CallTimes, batches, call_times
from treadle.environments.planning.stored import stored_settings
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY, ROLLOUTS
from treadle.report.page.charts import format_number
from treadle.tasks.page.models import EvaluatedModel
from treadle.tasks.page.rollout_times import Times, times_of_row
from treadle.tasks.page.sources import PageRun, Row
from treadle.tasks.summaries.report_tables import report_tables

TITLE = "Turns and time next to accuracy"
_SCORES = ("rollout_key", "model", "environment", "correct", "num_turns", "prompt_tokens", "completion_tokens")
_NOTE = (
    "Means per rollout, and the median of its seconds. Tools, one by one: the calls one after the other; in tools: as "
    "the rollout waited for them."
)
_PLANNING_NOTE = (
    " Of planning agents, in batches: the longest call of each turn; critical path: the longest chain of calls that "
    "wait for each other; speed-up: one by one by in batches."
)


@dataclass(slots=True)
class _Group:
    """Rollouts of one model in one environment."""

    scored: list[Row] = field(default_factory=list)
    times: list[Times] = field(default_factory=list)
    calls: list[CallTimes] = field(default_factory=list)
    """Seconds of the tool calls, one entry per rollout of a planning agent whose times are known."""


def turn_times_table(models: Sequence[EvaluatedModel]) -> list[Figures]:
    """Return the table with a row per model and environment; empty if nothing was measured."""
    groups: dict[tuple[str, str], _Group] = {}
    for source in dict.fromkeys(model.source for model in models):
        own = {model.name: model.label for model in models if model.source is source}
        report = next(model.report for model in models if model.source is source)
        for (name, environment), group in _groups(source, report).items():
            if name in own:
                groups[own[name], environment] = group
    if not any(group.times for group in groups.values()):
        return []
    has_plans = any(group.calls for group in groups.values())
    is_mixed = len({environment for _, environment in groups}) > 1
    header = (
        "model", *(["environment"] if is_mixed else []), "rollouts", "right, %", "turns", "sampled tokens",
        "tools, one by one", *(["in batches", "critical path", "speed-up"] if has_plans else []), "in tools", "median",
    )  # fmt: skip
    rows = tuple(
        (label, *([environment] if is_mixed else []), *_cells(group, has_plans))
        for (label, environment), group in groups.items()
    )
    return [Figures(TITLE, header, rows, _NOTE + (_PLANNING_NOTE if has_plans else ""), num_names=1 + is_mixed)]


def _groups(source: PageRun, report: StageRecord) -> dict[tuple[str, str], _Group]:
    """Return the rollouts in a report, by model and environment."""
    found: dict[tuple[str, str], _Group] = {}
    for given, prefix in report_tables(report):
        scores = source.maker(given)
        makers = [source.maker(one) for one in scores.inputs.get("rollouts", ())] if scores is not None else []
        times: dict[str, Times] = {}
        calls: dict[str, CallTimes] = {}
        for record in filter(None, makers):
            of_record, of_calls = _times(source, record)
            times |= of_record
            calls |= of_calls
        for row in source.rows(given.artifact, given.address, _SCORES):
            group = found.setdefault((prefix + row["model"], row["environment"]), _Group())
            group.scored.append(row)
            if (key := row["rollout_key"]) in times:
                group.times.append(times[key])
                group.calls += [calls[key]] if key in calls else []
    return found


def _times(source: PageRun, record: StageRecord) -> tuple[dict[str, Times], dict[str, CallTimes]]:
    """Return two mappings by rollout key: the seconds of rollouts, and the seconds of planning agents' tool calls."""
    log = source.telemetry(record, ROLLOUT_TELEMETRY.kind)
    times = {row["rollout_key"]: one for row in log if (one := times_of_row(row)) is not None}
    by_key = {row["rollout_key"]: row.get("call_times") or [] for row in log if row["rollout_key"] in times}
    return times, _call_times(source, record, by_key)


def _call_times(source: PageRun, record: StageRecord, by_key: Mapping[str, list[Row]]) -> dict[str, CallTimes]:
    """Return the seconds of the tool calls of each rollout of a planning agent, by rollout key.

    `by_key` has the measured seconds of the calls. The rollouts table is read only if an environment has plans.
    """
    named = environments_of(record.settings if isinstance(record.settings, Mapping) else {})
    dialects = {
        name: settings.turn_dialect
        for name in named
        if (settings := stored_settings(record.settings, name)) is not None
    }
    if not dialects:
        return {}
    found: dict[str, CallTimes] = {}
    ref = record.outputs.get(ROLLOUTS.kind)
    for row in source.each_row(ref, record.address, ("rollout_key", "environment", "segments", "tool_calls")):
        if row["environment"] in dialects and (times := by_key.get(row["rollout_key"])) is not None:
            segments, calls = orjson.loads(row["segments"]), orjson.loads(row["tool_calls"])
            found[row["rollout_key"]] = call_times(batches(segments, calls, dialects[row["environment"]]), times)
    return found


def _cells(group: _Group, has_plans: bool) -> tuple[Cell, ...]:
    decided = [float(row["correct"]) for row in group.scored if row["correct"] is not None]
    counted = [float(row["completion_tokens"]) for row in group.scored if row["prompt_tokens"] > 0]
    turns = [float(row["num_turns"]) for row in group.scored]
    of_plans: tuple[Cell, ...] = ()
    if has_plans:
        batch_s = sum(one.batch_s for one in group.calls)
        speed_up = sum(one.sequential_s for one in group.calls) / batch_s if batch_s else None
        of_plans = (
            _mean([one.batch_s for one in group.calls]),
            _mean([one.critical_path_s for one in group.calls]),
            "-" if speed_up is None else f"{speed_up:.2f}",
        )
    return (
        len(group.scored),
        f"{100 * statistics.fmean(decided):.1f}" if decided else "-",
        _mean(turns),
        _mean(counted),
        _mean([sum(seconds for _, seconds in one.by_tool.values()) for one in group.times]),
        *of_plans,
        _mean([one.tools for one in group.times]),
        format_number(statistics.median(one.total for one in group.times)) if group.times else "-",
    )


def _mean(values: Sequence[float]) -> str:
    return format_number(statistics.fmean(values)) if values else "-"
