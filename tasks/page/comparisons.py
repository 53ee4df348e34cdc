"""Build the section that compares pairs of models on the same questions: differences, confidence, flipped questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from treadle.core.figures import Cell, Figures
from treadle.core.runs.address import Address
from treadle.core.untrusted.sanitize import one_line
from treadle.eval.averages import AVERAGES
from treadle.eval.config import ReportSettings
from treadle.eval.metrics import MAIN_FIGURES
from treadle.report.comparison_rows import ModelRollouts, adjusted, pair_rows
from treadle.report.layout import compared_texts, figure_heading, p_text
from treadle.report.page.charts import IntervalRow, interval_chart
from treadle.report.page.document import Fold, Part, Section
from treadle.tasks.page.models import EvaluatedModel
from treadle.tasks.summaries.report_tables import report_tables

Row = dict[str, Any]
Answers = Mapping[tuple[str, bool], str]
"""(question key, True for a right answer) -> answer."""

_GAINED = (("first", False), ("second", True))
"""Answers shown for a question that the second model gained: (model of the pair, True for its right answer)."""
_LOST = (("first", True), ("second", False))

_SHOWN = 10
"""Maximum number of gained questions, and of lost ones, that are shown per pair and data set."""
_CHARS = 240
_ANSWER_CHARS = 80

_MAX_DRAWN = 24
_READING = (
    "Each line is the difference between the second model and the first on the same questions, with its 95 % interval; "
    "if it crosses zero, or p is not small, the difference may be chance."
)
_NOTE = (
    "p: probability of a difference at least this large between equal models, for the row alone; adjusted: by Holm's "
    "method for all rows of a report. Gained and lost: questions that only the second, or "
    "only the first, gets mostly right."
)


def comparisons_section(models: Sequence[EvaluatedModel]) -> list[Section]:
    """Return the comparisons in the reports, and comparisons of different runs' models on the questions they share."""
    rows = _in_order([*_reported(models), *_cross_run_comparisons(models)], models)
    if not rows:
        return []
    main = [row for row in rows if row["figure"] in MAIN_FIGURES]
    others = [row for row in rows if row["figure"] not in MAIN_FIGURES]
    of_score = [row for row in main if row["figure"] == "score"]
    parts: list[Part] = _drawn(of_score, {model.label: model.series for model in models})
    for figure, title in zip(MAIN_FIGURES, ("Correctness", "Reward"), strict=True):
        if of_figure := [row for row in main if row["figure"] == figure]:
            parts.append(_table(title, of_figure, with_figure=False))
    if folds := _flips(models, main):
        parts.append(Fold("Questions that changed sides", folds))
    if others:
        parts.append(Fold("Other figures", [_table("Other figures", others, with_figure=True)]))
    return [Section("comparisons", "Comparisons", _READING, parts)]


def _drawn(of_score: Sequence[Row], series: Mapping[str, int]) -> list[Part]:
    """Return a chart of the differences in correctness, averages first."""
    datasets = list(dict.fromkeys(row["dataset"] for row in of_score))
    known = [row for row in of_score if row["low"] is not None and row["high"] is not None]
    # Averages first, then data sets in order of appearance.
    known.sort(key=lambda row: (_place(row["dataset"]), datasets.index(row["dataset"])))
    if not known:
        return []
    is_grouped = len({row["dataset"] for row in known}) > 1
    estimates = [
        IntervalRow(
            row["title"] if is_grouped else "",
            row["pair"],
            series[row["second"]],
            row["difference"],
            row["low"],
            row["high"],
        )
        for row in known[:_MAX_DRAWN]
    ]
    note = f"Only the first {_MAX_DRAWN} of {len(known)} differences are drawn." if len(known) > _MAX_DRAWN else ""
    return [interval_chart("Difference in correctness", estimates, around_zero=True, note=note)]


def _in_order(rows: Sequence[Row], models: Sequence[EvaluatedModel]) -> list[Row]:
    """Return the rows with names of pairs and data sets, in the order of pairs, each pair's averages first.

    If the scores of a pair were made in different ways, its notes list the differences.
    """
    by_label = {model.label: model for model in models}
    named = []
    for row in rows:
        first, second = by_label[row["first"]], by_label[row["second"]]
        title, note = first.title(row["dataset"]), _note(row, first, second)
        named.append({**row, "pair": _pair_name(first, second), "title": title, "note": note})
    pairs = list(dict.fromkeys(row["pair"] for row in named))
    return sorted(named, key=lambda row: (pairs.index(row["pair"]), _place(row["dataset"])))


def _note(row: Row, first: EvaluatedModel, second: EvaluatedModel) -> str:
    """Return how the two models differ, according to their rollouts and the records of their scores."""
    notes = [row["note"]] if row["note"] else []
    if first.scoring is not None and second.scoring is not None:
        differences = first.scoring.differences_from(second.scoring, row["figure"])
        notes += [f"scored differently: {', '.join(differences)}"] if differences else []
    return "; ".join(notes)


def _pair_name(first: EvaluatedModel, second: EvaluatedModel) -> str:
    """Return the names of both models, without repeating what they have in common."""
    if first.source is second.source:
        return first.source.named(f"{first.name} → {second.name}")
    if first.name == second.name:
        return f"{first.label} → {second.source.label}"
    return f"{first.label} → {second.label}"


def _place(dataset: str) -> int:
    return AVERAGES.index(dataset) if dataset in AVERAGES else len(AVERAGES)


def _reported(models: Sequence[EvaluatedModel]) -> list[Row]:
    """Return the comparison tables of the reports, with the model labels of the page."""
    rows: list[Row] = []
    for source in dict.fromkeys(model.source for model in models):
        labels = {model.name: model.label for model in models if model.source is source}
        report = next(model.report for model in models if model.source is source)
        for row in source.rows(report.outputs.get("comparisons"), report.address):
            rows.append({**row, "first": labels[row["first"]], "second": labels[row["second"]]})
    return rows


def _cross_run_comparisons(models: Sequence[EvaluatedModel]) -> list[Row]:
    """Return comparisons of pairs of models of different runs.

    Two models are compared if they have the same name, or if neither's name occurs in the run of the other.
    """
    pairs = [
        (first, second)
        for first, second in combinations([model for model in models if model.rollouts], 2)
        if first.source is not second.source and _are_comparable(first, second, models)
    ]
    compared = {model.label: model for pair in pairs for model in pair}
    settings = {label: ReportSettings.model_validate(model.report.settings) for label, model in compared.items()}
    sides = {label: ModelRollouts.of(label, model.rollouts, settings[label].areas) for label, model in compared.items()}
    rows: list[Row] = []
    for first, second in pairs:
        rows += pair_rows(sides[first.label], sides[second.label], settings[first.label])
    return adjusted(rows)


def _are_comparable(first: EvaluatedModel, second: EvaluatedModel, models: Sequence[EvaluatedModel]) -> bool:
    def has_namesake(model: EvaluatedModel, other: EvaluatedModel) -> bool:
        return any(one.source is other.source and one.name == model.name for one in models)

    if first.name == second.name:
        return True
    return not has_namesake(first, second) and not has_namesake(second, first)


def _table(title: str, rows: Sequence[Row], *, with_figure: bool) -> Figures:
    names = {row["dataset"] for row in rows}
    body: list[tuple[Cell, ...]] = []
    for row in rows:
        figure = (figure_heading(row["figure"], in_percent=True),) if with_figure else ()
        flipped: tuple[Cell, ...] = () if with_figure else (len(row["gained"]), len(row["lost"]))
        if flipped and row["dataset"] in AVERAGES and len(names) > 1:
            flipped = ("-", "-")  # counted in the rows of its data sets
        body.append(
            (
                row["pair"],
                row["title"],
                *figure,
                row["num_questions"],
                *compared_texts(row, in_percent=True, sign="+"),
                p_text(row["p_value"]),
                p_text(row["p_adjusted"]),
                *flipped,
            )
        )
    header = (
        "models", "data set", *(("figure",) if with_figure else ()), "questions", "first", "second",
        "difference [95 %]", "p", "adjusted", *(() if with_figure else ("gained", "lost")),
    )  # fmt: skip
    return Figures(
        title,
        header,
        tuple(body),
        " ".join(_pair_notes(rows) if with_figure else [_NOTE, *_pair_notes(rows), *_dropped(rows)]),
    )


def _pair_notes(rows: Sequence[Row]) -> list[str]:
    """Return the notes on pairs whose models are not directly comparable."""
    return list(dict.fromkeys(f"{row['pair']}: {one_line(row['note'])}." for row in rows if row["note"]))


def _dropped(rows: Sequence[Row]) -> list[str]:
    """Return notes on questions that were left out of comparisons."""
    return [
        f"{row['pair']}: {row['num_dropped']:,} questions of {one_line(row['dataset'])} left out, because only one of "
        "the two was asked them, or has a verdict on them."
        for row in rows
        if row["num_dropped"] and row["dataset"] not in AVERAGES
    ]


def _flips(models: Sequence[EvaluatedModel], rows: Sequence[Row]) -> list[Part]:
    """Return a collapsible list of flipped questions for each pair of models and data set that has some."""
    names = {row["dataset"] for row in rows}
    flipped = [row for row in rows if row["gained"] or row["lost"]]
    shown = [row for row in flipped if row["dataset"] not in AVERAGES or len(names) == 1]
    by_label = {model.label: model for model in models}
    wanted: dict[str, set[str]] = {}
    for row in shown:
        keys = {*row["gained"][:_SHOWN], *row["lost"][:_SHOWN]}
        for label in (row["first"], row["second"]):
            wanted.setdefault(label, set()).update(keys)
    questions: dict[str, Row] = {}
    for label, keys in wanted.items():
        questions |= _questions_of(by_label[label], keys - questions.keys())
    answers = {label: _answers(by_label[label], keys) for label, keys in wanted.items()}
    return [part for row in shown for part in _fold(row, questions, answers)]


def _fold(row: Row, questions: dict[str, Row], answers: dict[str, Answers]) -> list[Part]:
    tables = [
        Figures(
            title,
            ("question", "accepted", row["first"], row["second"]),
            tuple(
                (
                    _cut(questions[key]["question"], _CHARS),
                    _cut(" | ".join(questions[key]["answers"]), _ANSWER_CHARS),
                    *(_cut(answers[row[side]].get((key, is_right), ""), _ANSWER_CHARS) for side, is_right in columns),
                )
                for key in keys[:_SHOWN]
                if key in questions
            ),
            f"{len(keys) - _SHOWN:,} further ones are not shown." if len(keys) > _SHOWN else "",
        )
        for title, keys, columns in (("Gained", row["gained"], _GAINED), ("Lost", row["lost"], _LOST))
    ]
    if not any(table.rows for table in tables):
        return []
    summary = (
        f"{row['pair']}, {one_line(row['dataset'])}: {len(row['gained']):,} questions gained, {len(row['lost']):,} lost"
    )
    return [Fold(summary, tables)]


def _questions_of(model: EvaluatedModel, keys: set[str]) -> dict[str, Row]:
    """Return the rows of `questions` with these keys that the model was asked, by question key."""
    found: dict[str, Row] = {}
    for given in model.report.inputs["scores"]:
        record = model.source.run.record(Address.parse(given.address))
        refs = record.inputs.get("questions", ()) if record is not None else ()
        for ref in refs:
            if keys <= found.keys():
                return found
            rows = model.source.rows(ref.artifact, ref.address, ("question_key", "question", "answers"))
            found |= {row["question_key"]: row for row in rows if row["question_key"] in keys}
    return found


def _answers(model: EvaluatedModel, keys: set[str]) -> Answers:
    """Return the model's first right and first wrong answer to each question."""
    found: dict[tuple[str, bool], tuple[int, str]] = {}
    columns = ("model", "question_key", "sample_index", "prediction", "correct")
    for given, prefix in report_tables(model.report):
        for row in model.source.rows(given.artifact, given.address, columns):
            if prefix + row["model"] == model.name and row["question_key"] in keys and row["correct"] is not None:
                kind, answer = (row["question_key"], row["correct"]), (row["sample_index"], row["prediction"])
                found[kind] = min(found.get(kind, answer), answer)
    return {kind: prediction for kind, (_, prediction) in found.items()}


def _cut(text: str, num_chars: int) -> str:
    shown = one_line(text)
    return shown if len(shown) <= num_chars else f"{shown[: num_chars - 1]}…"
