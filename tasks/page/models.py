"""The models that runs were evaluated with: their figures, and what is counted over their rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from treadle.core.records import StageRecord
from treadle.eval.layout import Line, summary_lines
from treadle.tasks.page.sources import Source

OVERALL = ("all", "every", "math", "knowledge")
"""Names of averages over data sets, the one that models are told apart by first."""
_COLUMNS = (
    "model",
    "status",
    "calls_requested",
    "calls_executed",
    "failed_calls",
    "python_calls",
    "search_calls",
    "completion_tokens",
    "reasoning_tokens",
)


@dataclass(slots=True)
class Behaviour:
    """Counts over the rollouts of one model."""

    num_rollouts: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    calls: Counter[int] = field(default_factory=Counter)
    """Calls that were asked for in a rollout -> rollouts."""
    tokens: list[int] = field(default_factory=list)
    """Sampled in each rollout."""
    reasoning_tokens: list[int] = field(default_factory=list)
    """Tokens of each rollout without results of tools, as far as they are known."""
    sums: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Model:
    """One model of one run."""

    name: str
    label: str
    """The name, told from those of other runs."""
    series: int
    """Number of its colour."""
    source: Source
    report: StageRecord
    lines: dict[str, Line]
    """Data set or average -> its figures."""
    behaviour: Behaviour = field(default_factory=Behaviour)

    @property
    def headline(self) -> Line:
        """Its figures over all data sets, or on the only one."""
        return next((self.lines[name] for name in OVERALL if name in self.lines), next(iter(self.lines.values())))

    @property
    def datasets(self) -> list[str]:
        """The data sets that it was asked, averages left out."""
        return [name for name in self.lines if len(self.lines) == 1 or name not in OVERALL]


def evaluated_models(sources: Sequence[Source]) -> list[Model]:
    """Models of the last report of each run, in its order."""
    models: list[Model] = []
    for source in sources:
        for report in source.of_stage("report")[-1:]:
            by_name: dict[str, dict[str, Line]] = {}
            for line in summary_lines(source.rows(report.outputs.get("summary"), report.address)):
                by_name.setdefault(line.model, {})[line.dataset] = line
            own = [
                Model(name, source.named(name), len(models) + number, source, report, lines)
                for number, (name, lines) in enumerate(by_name.items())
            ]
            _count(source, report, {model.name: model.behaviour for model in own})
            models += own
    return models


def _count(source: Source, report: StageRecord, behaviours: dict[str, Behaviour]) -> None:
    for given in report.inputs["scores"]:
        for row in source.rows(given.artifact, given.address, _COLUMNS):
            found = behaviours.setdefault(row["model"], Behaviour())
            found.num_rollouts += 1
            found.statuses[row["status"]] += 1
            found.calls[row["calls_requested"]] += 1
            found.tokens.append(row["completion_tokens"])
            if row["reasoning_tokens"] is not None:
                found.reasoning_tokens.append(row["reasoning_tokens"])
            for name in ("calls_requested", "calls_executed", "failed_calls", "python_calls", "search_calls"):
                found.sums[name] += row[name]
