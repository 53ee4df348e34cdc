"""List the questions that changed sides between two models, with the answers of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from treadle.core.figures import Figures
from treadle.core.runs.address import Address
from treadle.core.untrusted.sanitize import one_line
from treadle.eval.averages import AVERAGES
from treadle.report.page.document import Fold, Part
from treadle.tasks.page.models import EvaluatedModel
from treadle.tasks.summaries.report_tables import report_tables

Row = dict[str, Any]
Answers = Mapping[tuple[str, bool], str]
"""(question key, True for a right answer) -> answer."""

_GAINED = (("first", False), ("second", True))
"""(side of the pair, whether it gets the question mostly right): selects which answer is shown."""
_LOST = (("first", True), ("second", False))

_SHOWN = 10
"""Maximum number of questions shown per side of a pair on a data set."""
_CHARS = 240
_ANSWER_CHARS = 80


def flips(models: Sequence[EvaluatedModel], rows: Sequence[Row]) -> list[Part]:
    """Return a fold of flipped questions for each pair of models and data set that has some."""
    shown = [row for row in rows if (row["gained"] or row["lost"]) and not _is_average(row, rows)]
    by_label = {model.label: model for model in models}
    wanted: dict[str, set[str]] = {}
    for row in shown:
        keys = {*row["gained"][:_SHOWN], *row["lost"][:_SHOWN]}
        for label in (row["first"], row["second"]):
            wanted.setdefault(label, set()).update(keys)
    questions: dict[str, Row] = {}
    for label, keys in wanted.items():
        questions |= _questions(by_label[label], keys - questions.keys())
    answers = {label: _answers(by_label[label], keys) for label, keys in wanted.items()}
    return [part for row in shown for part in _fold(row, questions, answers)]


def _is_average(row: Row, rows: Sequence[Row]) -> bool:
    names = {other["dataset"] for other in rows}
    return row["dataset"] in AVERAGES and len(names) > 1


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


def _questions(model: EvaluatedModel, keys: set[str]) -> dict[str, Row]:
    """Return question key -> row of `questions`, for those that the model was asked."""
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
