"""The stage `report`: scores of several models side by side, as a table of numbers and as markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from treadle.core.errors import ConfigError, StageFailed
from treadle.core.schemas import SUMMARY
from treadle.core.stage import Rows, Stage, StageContext
from treadle.eval.config import ReportSettings
from treadle.eval.markdown import render_report
from treadle.eval.statistics import Interval, average_interval, mean_interval, share_interval

OVERALL = "all"
"""The name under which the data sets of a model are summed up."""

_COLUMNS = (
    "model",
    "dataset",
    "question_key",
    "status",
    "correct",
    "f1",
    "efficiency",
    "calls_requested",
    "completion_tokens",
)
_MEANS = ("efficiency", "calls_requested", "tool_use", "completion_tokens")


@dataclass(slots=True)
class _Group:
    """Sums over the rollouts of one model on one data set; per question only what the intervals need."""

    num_rollouts: int = 0
    num_scorer_failed: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    questions: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    """Question key -> number right, sum of F1, rollouts with a verdict."""

    def add(self, row: Mapping[str, Any]) -> None:
        self.num_rollouts += 1
        self.statuses[row["status"]] += 1
        right, f1, count = self.questions.get(row["question_key"], (0.0, 0.0, 0))
        if row["correct"] is None:
            self.num_scorer_failed += 1
        else:
            right, f1, count = right + row["correct"], f1 + row["f1"], count + 1
            self.sums["efficiency"] += row["efficiency"]
            self.sums["calls_requested"] += row["calls_requested"]
            self.sums["tool_use"] += row["calls_requested"] > 0
            self.sums["completion_tokens"] += row["completion_tokens"]
        self.questions[row["question_key"]] = (right, f1, count)


@dataclass(frozen=True, slots=True)
class _Summary:
    """One row of the summary, before it is flattened."""

    row: dict[str, Any]
    accuracy: Interval
    f1: Interval


def run_report(context: StageContext) -> Mapping[str, Any]:
    """Sum up the scores; returns counts and each model's overall accuracy. Raises StageFailed without verdicts."""
    settings: ReportSettings = context.settings
    tables = context.inputs["scores"]
    context.progress.start(sum(table.num_rows for table in tables), 0, "rollouts")
    groups = _collect(tables, context)
    rows = summarize(groups, settings)
    context.write(SUMMARY.kind, rows)
    context.add_file(SUMMARY.kind, "report.md", render_report(rows, settings.title).encode())
    return {
        "num_rollouts": sum(group.num_rollouts for group in groups.values()),
        "num_models": len({model for model, _ in groups}),
        "num_datasets": len({dataset for _, dataset in groups}),
        "num_scorer_failed": sum(group.num_scorer_failed for group in groups.values()),
    }


def _collect(tables: Sequence[Rows], context: StageContext) -> dict[tuple[str, str], _Group]:
    groups: dict[tuple[str, str], _Group] = {}
    for table in tables:
        for batch in table.batches(_COLUMNS):
            for row in batch.to_pylist():
                groups.setdefault((row["model"], row["dataset"]), _Group()).add(row)
            context.progress.advance(batch.num_rows)
    return groups


def summarize(groups: Mapping[tuple[str, str], _Group], settings: ReportSettings) -> list[dict[str, Any]]:
    """Rows of the summary: models in the order of appearance, data sets by name, then their unweighted mean."""
    rows: list[dict[str, Any]] = []
    for model in dict.fromkeys(model for model, _ in groups):
        own = {dataset: group for (name, dataset), group in groups.items() if name == model}
        if OVERALL in own:
            raise ConfigError(f"a data set may not be called {OVERALL!r}: the report uses this name; rename it")
        parts = [_summarize(model, dataset, own[dataset], settings) for dataset in sorted(own)]
        rows += [part.row for part in parts]
        if len(parts) > 1:
            rows.append(_average(model, parts))
    return rows


def _summarize(model: str, dataset: str, group: _Group, settings: ReportSettings) -> _Summary:
    num_scored = group.num_rollouts - group.num_scorer_failed
    if num_scored == 0:
        raise StageFailed(
            f"model {model} on data set {dataset}: none of {group.num_rollouts} rollouts has a verdict; "
            "run its scores again"
        )
    scored = [question for question in group.questions.values() if question[2]]
    accuracy = share_interval([(right, count) for right, _, count in scored])
    f1 = mean_interval(
        [(f1, count) for _, f1, count in scored], num_samples=settings.bootstrap_samples, seed=settings.seed
    )
    row = {
        "model": model,
        "dataset": dataset,
        "num_rollouts": group.num_rollouts,
        "num_questions": len(group.questions),
        "num_scorer_failed": group.num_scorer_failed,
        "num_failed": group.statuses["failed"],
        **_interval_columns(accuracy, f1),
        **{name: group.sums[name] / num_scored for name in _MEANS},
        "statuses": _statuses_json(group.statuses),
    }
    return _Summary(row, accuracy, f1)


def _average(model: str, parts: Sequence[_Summary]) -> dict[str, Any]:
    """Counts are sums; everything else is the mean over data sets, each with the same weight."""
    statuses: Counter[str] = Counter()
    for part in parts:
        statuses.update(orjson.loads(part.row["statuses"]))
    counts = ("num_rollouts", "num_questions", "num_scorer_failed", "num_failed")
    return {
        "model": model,
        "dataset": OVERALL,
        **{name: sum(part.row[name] for part in parts) for name in counts},
        **_interval_columns(
            average_interval(part.accuracy for part in parts), average_interval(part.f1 for part in parts)
        ),
        **{name: sum(part.row[name] for part in parts) / len(parts) for name in _MEANS},
        "statuses": _statuses_json(statuses),
    }


def _interval_columns(accuracy: Interval, f1: Interval) -> dict[str, Any]:
    return {
        "accuracy": accuracy.mean,
        "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
        "interval": accuracy.method,
        "f1": f1.mean,
        "f1_low": f1.low,
        "f1_high": f1.high,
    }


def _statuses_json(statuses: Iterable[tuple[str, int]] | Mapping[str, int]) -> str:
    return orjson.dumps(dict(statuses), option=orjson.OPT_SORT_KEYS).decode()


REPORT = Stage(
    name="report",
    version=1,
    settings=ReportSettings,
    consumes={"scores": "scores"},
    produces=(SUMMARY,),
    run=run_report,
)
