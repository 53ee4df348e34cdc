"""Build the section on rollout latency, from the stages' telemetry.

Times differ between runs with equal rollouts. They are therefore shown only on this page, never in a report's tables.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from treadle.core.figures import Cell, Figures
from treadle.core.runs.records import StageRecord
from treadle.core.schemas import ROLLOUT_TELEMETRY
from treadle.report.page.charts import StackedSum, format_number, parts_chart
from treadle.report.page.document import Fold, Part, Section
from treadle.tasks.page.models import EvaluatedModel
from treadle.tasks.page.sources import PageRun, Row
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
_SLACK_S = 0.01
"""Tolerance by which the parts of a rollout may exceed its total time: they are measured with different clocks."""


class Times(NamedTuple):
    """Seconds of one rollout."""

    total: float
    model: float
    """Seconds waiting for completions."""
    tools: float


@dataclass(slots=True)
class RolloutTimes:
    """Times of one model's rollouts on one or more data sets."""

    times: list[Times] = field(default_factory=list)
    num_unmeasured: int = 0

    @property
    def means(self) -> Times:
        """Mean times; at least one rollout must be measured."""
        return Times(*(statistics.fmean(values) for values in zip(*self.times, strict=True)))

    def add(self, times: Times | None) -> None:
        """Count a rollout; None for one without times."""
        if times is None:
            self.num_unmeasured += 1
        else:
            self.times.append(times)

    @classmethod
    def of(cls, parts: Iterable[RolloutTimes]) -> RolloutTimes:
        """Merge the times of several data sets."""
        total = cls()
        for part in parts:
            total.times += part.times
            total.num_unmeasured += part.num_unmeasured
        return total


def latency_section(models: Sequence[EvaluatedModel]) -> list[Section]:
    """Return the section on seconds per rollout, if any were measured."""
    by_model: dict[str, dict[str, RolloutTimes]] = {}
    for source in dict.fromkeys(model.source for model in models):
        own = {model.name: model.label for model in models if model.source is source}
        report = next(model.report for model in models if model.source is source)
        for name, datasets in _measured(source, report).items():
            if name in own:
                by_model[own[name]] = datasets
    over_all = {label: RolloutTimes.of(datasets.values()) for label, datasets in by_model.items()}
    known = {label: measured for label, measured in over_all.items() if measured.times}
    if not known:
        return []
    bars = [StackedSum(label, _parts(measured.means)) for label, measured in known.items()]
    parts: list[Part] = [
        parts_chart("Mean seconds of a rollout", "seconds", ("model", "tools", "the rest"), bars),
        _table("Seconds of a rollout", ("model",), [((label,), one) for label, one in over_all.items()]),
    ]
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
    """Return model -> data set -> times of the rollouts in a report."""
    found: dict[str, dict[str, RolloutTimes]] = {}
    for given, prefix in report_tables(report):
        times = _times(source, source.maker(given))
        for row in source.rows(given.artifact, given.address, ("rollout_key", "model", "dataset")):
            datasets = found.setdefault(prefix + row["model"], {})
            datasets.setdefault(row["dataset"], RolloutTimes()).add(times.get(row["rollout_key"]))
    return found


def _times(source: PageRun, scores: StageRecord | None) -> dict[str, Times]:
    """Return key of a scored rollout -> its times, for rollouts with known times."""
    makers = [source.maker(given) for given in scores.inputs.get("rollouts", ())] if scores is not None else []
    return {
        row["rollout_key"]: times
        for record in makers
        if record is not None
        for row in source.telemetry(record, ROLLOUT_TELEMETRY.kind)
        if (times := _of_row(row)) is not None
    }


def _of_row(row: Row) -> Times | None:
    """Return the times of a telemetry row; None if the rollout was resumed.

    For a resumed rollout the parts cover all attempts, but the total only the last one.
    """
    times = Times(row["seconds"], row["model_seconds"], row["tool_seconds"])
    return times if times.model + times.tools <= times.total + _SLACK_S else None


def _parts(means: Times) -> tuple[float, float, float]:
    return means.model, means.tools, max(0.0, means.total - means.model - means.tools)


def _table(title: str, first: tuple[str, ...], named: Sequence[tuple[tuple[str, ...], RolloutTimes]]) -> Figures:
    is_complete = not any(measured.num_unmeasured for _, measured in named)
    rows: list[tuple[Cell, ...]] = []
    for names, measured in named:
        values: tuple[str, ...] = ("-",) * 5
        if measured.times:
            total = np.asarray([times.total for times in measured.times])
            means, (p50, p95) = measured.means, np.percentile(total, [50, 95]).tolist()
            values = tuple(map(format_number, (means.total, p50, p95, means.model, means.tools)))
        unmeasured = () if is_complete else (measured.num_unmeasured,)
        rows.append((*names, len(measured.times) + measured.num_unmeasured, *values, *unmeasured))
    header = (*first, "rollouts", "mean", "median", "95th percentile", "in model", "in tools")
    if is_complete:
        return Figures(title, header, tuple(rows), _NOTE)
    return Figures(title, (*header, "not measured"), tuple(rows), f"{_NOTE} {_UNMEASURED}")
