"""The answers of an unknown file say how they are compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tables.questions_bench import write_jsonl

from treadle.core.errors import DataError
from treadle.datagen.questions.likely_domain import is_formula, likely_domain
from treadle.datagen.questions.sources import QuestionsSettings, SourceSettings


@pytest.mark.parametrize(
    "text", ["4", "-1,024.5", "$5", "12 %", "1/2", "1e-3", r"\frac{1}{2}", "x^2", "(1, 2]", "2x+1"]
)
def test_numbers_and_expressions_are_formulas(text: str) -> None:
    assert is_formula(text)


@pytest.mark.parametrize("text", ["Ilme", "yes", "12 May 1812", "Route 66, Tesk", "B-52 bomber", "", "a, b"])
def test_words_are_no_formulas(text: str) -> None:
    assert not is_formula(text)


def test_nine_of_ten_numbers_make_a_file_mathematical(tmp_path: Path) -> None:
    def domain(*answers: object) -> str:
        path = write_jsonl(
            tmp_path / "mine.jsonl", [{"question": f"Q{n}?", "answer": a} for n, a in enumerate(answers)]
        )
        return likely_domain(SourceSettings(path=path, dataset="mine"), QuestionsSettings())

    assert domain(*range(9), "none") == "math"
    assert domain(*range(8), "none", "never") == "qa"
    assert domain(1, None, "") == "math"  # rows without an answer do not count


def test_file_without_a_usable_row_is_refused_with_its_first_problem(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "mine.jsonl", [{"frage": "Wer?", "antwort": "Ilme"}])
    with pytest.raises(DataError, match=r"no row of mine.jsonl .* row 1: .* it has 'frage', 'antwort'; set question_f"):
        likely_domain(SourceSettings(path=path, dataset="mine"), QuestionsSettings())
