"""Task files of ColBench become questions whose hidden fields are carried through."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from treadle.core.errors import ConfigError, DataError
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.formats.colbench.tasks import FRONTEND, import_tasks

TASK = {
    "problem_description": "Write f(x).",
    "ground_truth": "def f(x):\n    return x",
    "test_cases": {"test1": "f(1)", "test2": "f('a')"},
    "origin": {"page": 3},
}


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_tasks_become_questions_with_a_configuration(tmp_path: Path) -> None:
    source = written(tmp_path / "test.jsonl", TASK, {**TASK, "problem_description": "Write g(x)."}, TASK)
    assert import_tasks(source, tmp_path / "out", split="heldout", limit=2) == 2
    first, _ = [json.loads(line) for line in (tmp_path / "out/tasks.jsonl").read_text().splitlines()]
    assert first == {
        "question": "Write f(x).",
        "reference": TASK["ground_truth"],
        "tests": TASK["test_cases"],
        "extra": {"origin": {"page": 3}},
        "split": "heldout",
    }
    settings = QuestionsSettings(**tomllib.loads((tmp_path / "out/questions.toml").read_text())["questions"])
    (one,) = settings.sources
    assert (one.scorer, one.payload, one.split_field) == ("programs", ("reference", "tests", "extra"), "split")
    with pytest.raises(ConfigError):
        import_tasks(source, tmp_path / "out")
    assert import_tasks(source, tmp_path / "out", replace=True) == 3


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem_description": "x"}, "row 2: it has no field 'ground_truth', so it is no task of ColBench"),
        ({**TASK, "problem_description": " "}, "row 2: problem_description is no text"),
        ({**TASK, "ground_truth": ["secret"]}, "row 2: ground_truth: reference is no text"),
        ({**TASK, "test_cases": ["secret"]}, "row 2: test_cases: tests is no object"),
        ({**TASK, "test_cases": {}}, "row 2: test_cases: tests has 0 calls"),
        ({**TASK, "test_cases": {"a": 1}}, "row 2: test_cases: tests has a call that is no text"),
        ([1], "row 2: "),
    ],
)
def test_row_that_is_no_task_is_named_without_its_hidden_fields(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(DataError) as raised:
        import_tasks(written(tmp_path / "t.jsonl", TASK, row), tmp_path / "out")
    assert message in str(raised.value) and "secret" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_file_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        import_tasks(written(tmp_path / "t.jsonl"), tmp_path / "out")


PAGE_TASK = {"problem_description": "A page for a bakery.", "ground_truth": "<html>secret</html>", "origin": 3}


def test_tasks_about_pages_become_questions_with_a_hidden_page(tmp_path: Path) -> None:
    source = written(tmp_path / "train.jsonl", PAGE_TASK)
    assert import_tasks(source, tmp_path / "out", half=FRONTEND) == 1
    (row,) = [json.loads(line) for line in (tmp_path / "out/tasks.jsonl").read_text().splitlines()]
    assert row == {"question": "A page for a bakery.", "page": "<html>secret</html>", "extra": {"origin": 3}}
    settings = QuestionsSettings(**tomllib.loads((tmp_path / "out/questions.toml").read_text())["questions"])
    (one,) = settings.sources
    assert (one.scorer, one.payload) == ("similarity", ("page", "extra"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem_description": "x"}, "row 2: it has no field 'ground_truth'"),
        ({**PAGE_TASK, "ground_truth": ["secret"]}, "row 2: ground_truth: page is no text"),
        ({**PAGE_TASK, "ground_truth": "secret"}, "row 2: ground_truth is no page"),
    ],
)
def test_row_without_a_page_is_named_without_its_hidden_fields(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(DataError) as raised:
        import_tasks(written(tmp_path / "t.jsonl", PAGE_TASK, row), tmp_path / "out", half=FRONTEND)
    assert message in str(raised.value) and "secret" not in str(raised.value)
