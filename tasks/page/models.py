"""Gather the evaluated models of runs: their figures, and counts over their rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.core.runs.records import StageRecord
from treadle.core.untrusted.sanitize import one_line
from treadle.eval.averages import AVERAGES, EVERY, KNOWLEDGE, MATH
from treadle.eval.judging_differences import Scoring
from treadle.eval.scored_rollout import COLUMNS, ScoredRollout
from treadle.report.layout import SummaryLine, by_model, datasets_of, main_line, members, summary_lines
from treadle.tasks.page.sources import PageRun
from treadle.tasks.summaries.report_tables import imported_lines, report_tables

_AREAS = {MATH: "mathematics", KNOWLEDGE: "knowledge"}
_MAX_NAMED = 8


def enumerated(names: Sequence[str]) -> str:
    """Join names with commas; of many names, show only the first."""
    shown = [one_line(name) for name in names[:_MAX_NAMED]]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


@dataclass(slots=True)
class EvaluatedModel:
    """One model of one run."""

    name: str
    label: str
    """Name that is unique on the page: with the run's label if there are several runs."""
    series: int
    """Index of the model's colour in charts."""
    source: PageRun
    report: StageRecord
    lines: dict[str, SummaryLine]
    """Data set or average -> its figures."""
    rollouts: list[ScoredRollout]
    """Scored rollouts of the model; empty if the scores that the report was made from no longer exist."""
    scoring: Scoring | None
    """How its verdicts and votes were made; None if that is no longer known."""

    @property
    def headline(self) -> SummaryLine:
        """Average over the headline data sets, or the figures of the only data set."""
        return main_line(self.lines)

    def over(self, name: str) -> list[str]:
        """Return the data sets over which the line `name` averages; empty for the areas mathematics and knowledge."""
        return members(self.lines, name, self.report.settings.get("headline", ()))

    def title(self, name: str) -> str:
        """Return the title of the line `name`: its data set, or the data sets that it averages over."""
        if name not in AVERAGES or len(self.lines) == 1:
            return name
        if name == EVERY:
            return "average of every data set"
        return f"average of {enumerated(self.over(name)) or _AREAS[name]}"

    @property
    def num_rollouts(self) -> int:
        """Number of rollouts on all data sets, according to the report."""
        return sum(self.lines[name].num_rollouts for name in self.datasets)

    @property
    def datasets(self) -> list[str]:
        """Data sets that the model was evaluated on, without averages."""
        return datasets_of(self.lines)

    def imported_notes(self) -> list[str]:
        """Return a sentence for each model of its report whose rollouts were imported."""
        lines = imported_lines(self.report, self.source.run)
        return [f"{line} ({self.source.label})" if self.source.label else line for line in lines]


def evaluated_models(sources: Sequence[PageRun]) -> list[EvaluatedModel]:
    """Return the models of the last report of each run, in the report's order."""
    models: list[EvaluatedModel] = []
    for source in sources:
        for report in source.of_stage("report")[-1:]:
            by_name = by_model(summary_lines(source.rows(report.outputs.get("summary"), report.address)))
            rollouts, scorings = _scored(source, report)
            for name, lines in by_name.items():
                label, series, own = source.named(name), len(models), rollouts.get(name, [])
                models.append(EvaluatedModel(name, label, series, source, report, lines, own, scorings.get(name)))
    return models


def _scored(source: PageRun, report: StageRecord) -> tuple[dict[str, list[ScoredRollout]], dict[str, Scoring]]:
    """Return the scored rollouts of a report, and how they were scored, each by model."""
    found: dict[str, list[ScoredRollout]] = {}
    scorings: dict[str, Scoring] = {}
    for given, prefix in report_tables(report):
        maker = source.maker(given)
        scoring = Scoring.of(maker.version, maker.settings) if maker is not None else None
        for row in source.rows(given.artifact, given.address, [*COLUMNS, "model"]):
            name = prefix + row["model"]
            found.setdefault(name, []).append(ScoredRollout.from_row(row))
            if scoring is not None:
                scorings.setdefault(name, scoring)
    return found, scorings
