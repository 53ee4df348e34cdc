"""Infer how the answers of an unknown file should be compared, from the answers themselves."""

from __future__ import annotations

import re

from treadle.core.errors import DataError
from treadle.datagen.questions.benchmarks import Domain
from treadle.datagen.questions.layouts import RowRejected
from treadle.datagen.questions.rows import parse_row
from treadle.datagen.questions.source_rows import source_rows
from treadle.datagen.questions.sources import QuestionsSettings, SourceSettings

_SHARE = 0.9
"""Share of the answers that must be numbers or formulas; a few odd ones are usual."""
_NUMBER = re.compile(r"[-+]?[$\u20ac\u00a3]?\s?[-+]?(?:\d[\d,. ]*|\.\d+)(?:[eE][-+]?\d+)?(?:/\d+)?\s?%?")
_LATEX = re.compile(r"\\(?:d?frac|sqrt|pi|text|left|boxed|infty|cdot|begin)\b|\$[^$]+\$|\w\s?\^")
_ALGEBRA = re.compile(r"(?=.*\d)(?=.*[-+*/^=(,])[\dA-Za-z+\-*/^=()\[\]{},.\s]+")
_WORD = re.compile(r"[A-Za-z]{2,}")


def likely_domain(source: SourceSettings, settings: QuestionsSettings) -> Domain:
    """Return `math` if nearly all answers without options are numbers or formulas, else `qa`.

    Raises DataError if the source cannot be read or has no usable row.
    """
    asked = source.model_copy(update={"domain": "qa", "scorer": None})
    num_answers = num_formulas = num_questions = 0
    problem = ""
    for row in source_rows(source):
        try:
            question = parse_row(row, asked, settings)
        except RowRejected as rejection:
            problem = problem or f"row {row.number}: {rejection}"
            continue
        num_questions += 1
        if not question.choices:
            num_answers += 1
            num_formulas += is_formula(question.answers[0])
    if not num_questions:
        raise DataError(f"no row of {source.label} can be used as a question with an answer; {problem}")
    return "math" if num_answers and num_formulas >= _SHARE * num_answers else "qa"


def is_formula(answer: str) -> bool:
    """Return whether an answer is a number, or an expression rather than words."""
    if _NUMBER.fullmatch(answer) or _LATEX.search(answer):
        return True
    return _ALGEBRA.fullmatch(answer) is not None and not _WORD.search(answer)
