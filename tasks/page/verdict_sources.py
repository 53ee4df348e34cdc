"""Build the section on what decided verdicts: rules or judges, agreement of judges, and votes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from treadle.core.figures import Cell, Figures
from treadle.core.runs.records import StageRecord
from treadle.environments.scorers.environment import ENVIRONMENT
from treadle.eval.verdicts import FAILED, FALLBACK_RULE, PARSED
from treadle.report.layout import SummaryLine
from treadle.report.page.document import Fold, Part, Section
from treadle.tasks.page.models import EvaluatedModel, enumerated
from treadle.tasks.page.sources import PageRun
from treadle.tasks.summaries.report_tables import report_tables

_READING = (
    "An answer is right by the rule, or by judges, who are asked about answers that the rule does not accept: the more "
    "judges decide, the more the share of right answers depends on them."
)
_NOTE = "Each rollout is in one column. No answer: it ended without one, which is wrong."
_UNDECIDED = "Undecided: no verdict, left out of the figures that need one."
_JUDGES = (
    "Asked: answers that judges were asked about. Fell back: judges were tied, or could not be reached, so "
    "that the rule decided. Not read: no reply could be parsed."
)
_VOTES = "Rollouts with calls. Undecided: no side has more than half of the votes asked for."
_AGREEMENT = (
    "Answers: those on which all judges have a verdict, none of which the rule calls right. Agreement: share of pairs "
    "of verdicts that are the same; kappa: agreement beyond chance, from 0 (none) to 1, unknown if all are alike."
)
_MEASURES = ("num_judged_jointly", "judge_agreement", "judge_kappa")
"""Measures of agreement between judges: their names in the metrics of `scores` and in the summary."""
_VERDICTS = ("concise", "redundant", "undecided")


def decided_section(models: Sequence[EvaluatedModel]) -> list[Section]:
    """Return the section on how verdicts were reached."""
    if not models:
        return []
    whole = [((model.label,), VerdictCounts(model.lines[name] for name in model.datasets)) for model in models]
    single = [
        ((name, model.label), VerdictCounts([model.lines[name]]))
        for name in dict.fromkeys(name for model in models for name in model.datasets)
        for model in models
        if name in model.datasets
    ]
    parts: list[Part] = [*_tables(("model",), whole), *_agreement(models)]
    if len(single) > len(whole):
        folded = [*_tables(("data set", "model"), single), *_agreement_by_dataset(models)]
        parts.append(Fold("Who decided by data set", folded))
    parts.append(Fold("Rules", [_rules(whole)]))
    return [Section("decided", "Who decided", _READING, parts)]


class VerdictCounts:
    """Counts of rollouts by what decided their verdict, summed over data sets."""

    def __init__(self, lines: Iterable[SummaryLine]) -> None:
        """Sum up the counts of the report."""
        self.num_rollouts = 0
        self.num_undecided = 0
        self.scorers: Counter[str] = Counter()
        """Scorer -> number of rollouts."""
        self.asked: Counter[str] = Counter()
        """Status of the judges -> number of rollouts."""
        self.votes: Counter[str] = Counter()
        """Verdict of the votes -> number of rollouts with calls."""
        for line in lines:
            self.num_rollouts += line.num_rollouts
            self.num_undecided += line.num_undecided
            self.scorers.update(line.counts("scorer"))
            self.asked.update(line.counts("judge_status"))
            self.votes.update(line.counts("votes"))

    @property
    def num_by_rules(self) -> int:
        """Number of answers that rules decided."""
        return 0 if self.scorers[ENVIRONMENT] else self._num_decided

    @property
    def num_by_environment(self) -> int:
        """Number of rollouts that their environment decided: if it decided any, all that have a verdict; else 0."""
        return self._num_decided if self.scorers[ENVIRONMENT] else 0

    @property
    def _num_decided(self) -> int:
        return self.num_rollouts - self.scorers["status"] - self.asked[PARSED] - self.num_undecided


Column = Callable[[VerdictCounts], Cell]
LabelledCounts = Sequence[tuple[tuple[str, ...], VerdictCounts]]


def _tables(first: tuple[str, ...], named: LabelledCounts) -> list[Part]:
    has_judges = any(one.asked for _, one in named)
    has_undecided = any(one.num_undecided for _, one in named)
    has_rules = any(one.num_by_rules or not one.scorers[ENVIRONMENT] for _, one in named)
    columns: dict[str, Column] = {"rollouts": lambda one: one.num_rollouts}
    columns |= {"by rules": lambda one: one.num_by_rules} if has_rules else {}
    columns |= {"by judges": lambda one: one.asked[PARSED]} if has_judges else {}
    has_environment = any(one.scorers[ENVIRONMENT] for _, one in named)
    columns |= {"by environment": lambda one: one.num_by_environment} if has_environment else {}
    columns |= {"no answer": lambda one: one.scorers["status"]}
    columns |= {"undecided": lambda one: one.num_undecided} if has_undecided else {}
    notes = [_NOTE, *([_UNDECIDED] if has_undecided else []), *([] if has_judges else ["No model judged answers."])]
    parts: list[Part] = [_table("Verdicts", first, named, columns, " ".join(notes))]
    if has_judges:
        parts.append(_table("Judges", first, named, _ASKED, _JUDGES))
    if any(one.votes for _, one in named):
        votes = {verdict: _votes_for(verdict) for verdict in _VERDICTS}
        parts.append(_table("Votes on wasted calls", first, named, votes, _VOTES))
    return parts


_ASKED: Mapping[str, Column] = {
    "asked": lambda one: one.asked.total(),
    "decided": lambda one: one.asked[PARSED],
    "fell back": lambda one: one.asked[FALLBACK_RULE],
    "not read": lambda one: one.asked[FAILED],
}


def _votes_for(verdict: str) -> Column:
    return lambda one: one.votes[verdict]


def _table(
    title: str, first: tuple[str, ...], named: LabelledCounts, columns: Mapping[str, Column], note: str
) -> Figures:
    rows = tuple((*names, *(cell(one) for cell in columns.values())) for names, one in named)
    return Figures(title, (*first, *columns), rows, note)


def _rules(named: LabelledCounts) -> Figures:
    """Return a table with scorers as rows, the most frequent first, and models as columns."""
    totals: Counter[str] = sum((one.scorers for _, one in named), Counter())
    rows: list[tuple[Cell, ...]] = [
        (scorer, *(one.scorers[scorer] for _, one in named))
        for scorer in sorted(totals, key=lambda scorer: (-totals[scorer], scorer))
    ]
    note = (
        "As in the column scorer of the table scores; status: rollouts without an answer; math_symbolic_limit, "
        "_unparsable and _error: counted as wrong because computer algebra could not compare the answer."
    )
    return Figures("Rollouts by what decided", ("scorer", *(names[0] for names, _ in named)), tuple(rows), note)


def _agreement(models: Sequence[EvaluatedModel]) -> list[Part]:
    """Return a table of judge agreement, if several judges were asked."""
    rows: list[tuple[Cell, ...]] = []
    for source in dict.fromkeys(model.source for model in models):
        report = next(model.report for model in models if model.source is source)
        for given, prefix in report_tables(report):
            record = source.maker(given)
            if record is not None and "num_judged_jointly" in record.metrics:
                scored = {prefix + name for name in _scored(source, record)}
                names = [one.label for one in models if one.source is source and one.name in scored]
                rows.append((enumerated(names) or record.address, *_agreement_cells(record)))
    header = ("model", "judges", "answers", "agreement", "kappa")
    return [Figures("Judges' agreement", header, tuple(rows), _AGREEMENT)] if rows else []


def _scored(source: PageRun, record: StageRecord) -> set[str]:
    """Return the models whose rollouts an instance of `scores` is about."""
    return {row["model"] for row in source.rows(record.outputs["scores"], record.address, ("model",))}


def _agreement_cells(record: StageRecord) -> tuple[Cell, ...]:
    judges = record.settings.get("judges", {}) if isinstance(record.settings, Mapping) else {}
    return enumerated(list(judges)), *_agreed(*(record.metrics[name] for name in _MEASURES))


def _agreement_by_dataset(models: Sequence[EvaluatedModel]) -> list[Part]:
    """Return a table of judge agreement by data set, from the reports that have it."""
    rows: list[tuple[Cell, ...]] = [
        (name, model.label, *_agreed(*(model.lines[name].value(measure) for measure in _MEASURES)))
        for name in dict.fromkeys(name for model in models for name in model.datasets)
        for model in models
        if name in model.datasets and _MEASURES[0] in model.lines[name].figures
    ]
    header = ("data set", "model", "answers", "agreement", "kappa")
    return [Figures("Judges' agreement", header, tuple(rows))] if rows else []


def _agreed(num_answers: float | None, share: float | None, kappa: float | None) -> tuple[Cell, ...]:
    return (
        int(num_answers or 0),
        "-" if share is None else f"{100 * share:.1f} %",
        "-" if kappa is None else f"{kappa:.2f}",
    )
