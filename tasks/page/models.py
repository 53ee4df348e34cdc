"""The models that runs were evaluated with: their figures, and what is counted over their rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.core.harmless import one_line
from treadle.core.records import StageRecord
from treadle.core.stage import Address
from treadle.eval.averages import AVERAGES, EVERY, KNOWLEDGE, MATH
from treadle.eval.layout import Line, by_model, datasets_of, main_line, members, summary_lines
from treadle.eval.scored_rollout import COLUMNS, ScoredRollout
from treadle.eval.scoring import Scoring
from treadle.tasks.page.sources import Source
from treadle.tasks.report_tables import report_tables

_AREAS = {MATH: "mathematics", KNOWLEDGE: "knowledge"}
_MOST_NAMED = 8


def enumerated(names: Sequence[str]) -> str:
    """Names one after the other, of many the first ones."""
    shown = [one_line(name) for name in names[:_MOST_NAMED]]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Counts over the rollouts of one model."""

    statuses: Counter[str]
    calls: Counter[int]
    """Calls that were asked for in a rollout -> rollouts."""
    sums: Counter[str]
    """Calls of all rollouts together, by the names of `ScoredRollout`."""

    @classmethod
    def of(cls, rollouts: Sequence[ScoredRollout]) -> Behaviour:
        """Count them."""
        sums: Counter[str] = Counter()
        for rollout in rollouts:
            for name in _SUMMED:
                sums[name] += getattr(rollout, name)
        return cls(
            Counter(rollout.status for rollout in rollouts),
            Counter(rollout.calls_requested for rollout in rollouts),
            sums,
        )


_SUMMED = ("calls_requested", "calls_executed", "failed_calls", "python_calls", "search_calls")


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
    rollouts: list[ScoredRollout]
    """None where the scores that the report was made from are gone."""
    behaviour: Behaviour
    """What is counted over them."""
    scoring: Scoring | None
    """How their verdicts and votes came about; None where that cannot be told any more."""

    @property
    def headline(self) -> Line:
        """The average over the data sets of the headline, or its figures on the only data set."""
        return main_line(self.lines)

    def over(self, name: str) -> list[str]:
        """The data sets that a line is over; none where only its name says it: mathematics, knowledge."""
        return members(self.lines, name, self.report.settings.get("headline", ()))

    def title(self, name: str) -> str:
        """A data set, or what an average is over."""
        if name not in AVERAGES or len(self.lines) == 1:
            return name
        if name == EVERY:
            return "average of every data set"
        return f"average of {enumerated(self.over(name)) or _AREAS[name]}"

    @property
    def num_rollouts(self) -> int:
        """On all data sets, by the report."""
        return sum(self.lines[name].num_rollouts for name in self.datasets)

    @property
    def datasets(self) -> list[str]:
        """The data sets that it was asked, averages left out."""
        return datasets_of(self.lines)


def evaluated_models(sources: Sequence[Source]) -> list[Model]:
    """Models of the last report of each run, in its order."""
    models: list[Model] = []
    for source in sources:
        for report in source.of_stage("report")[-1:]:
            by_name = by_model(summary_lines(source.rows(report.outputs.get("summary"), report.address)))
            rollouts, scorings = _scored(source, report)
            for name, lines in by_name.items():
                own = rollouts.get(name, [])
                label, series = source.named(name), len(models)
                scoring = scorings.get(name)
                models.append(Model(name, label, series, source, report, lines, own, Behaviour.of(own), scoring))
    return models


def _scored(source: Source, report: StageRecord) -> tuple[dict[str, list[ScoredRollout]], dict[str, Scoring]]:
    """Model -> what the report was made from, and how that was scored."""
    found: dict[str, list[ScoredRollout]] = {}
    scorings: dict[str, Scoring] = {}
    for given, prefix in report_tables(report):
        maker = source.run.record(Address.parse(given.address))
        is_maker = maker is not None and maker.outputs.get(given.artifact.kind) == given.artifact
        scoring = Scoring.of(maker.version, maker.settings) if maker is not None and is_maker else None
        for row in source.rows(given.artifact, given.address, [*COLUMNS, "model"]):
            name = prefix + row["model"]
            found.setdefault(name, []).append(ScoredRollout.from_row(row))
            if scoring is not None:
                scorings.setdefault(name, scoring)
    return found, scorings
