"""Figures by columns of questions: level, topic, category, language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from support.tables.score_tables import new_run, put_rows
from support.tables.scored_rollouts import scored

from treadle.datagen.questions.tables import QUESTIONS
from treadle.eval.config import ReportSettings
from treadle.report.groups import Groups, group_rows, group_tables, question_groups

SETTINGS = ReportSettings(bootstrap_samples=100)
META: dict[str, dict[str, Any]] = {
    "a": {"Level": 1, "info": {"lang": "zh", "domain": "game"}, "id": "1"},
    "b": {"Level": 2, "info": {"lang": "en", "domain": "game"}, "id": "2"},
    "c": {"Level": 10, "info": {"lang": "", "domain": "game"}, "id": "3"},
}


def groups_of(meta: dict[str, dict[str, Any]], folder: Path) -> Groups:
    rows = [
        {
            "question_key": key, "dataset": "gaia", "domain": "qa", "question": f"{key}?", "answers": ["x"],
            "choices": [], "split": "heldout",
            "source_file": "f", "source_row": number, "meta": orjson.dumps(one).decode(),
            "format": None, "scorer": None, "search": None, "environment": "default", "payload": "{}",
        }
        for number, (key, one) in enumerate(meta.items(), 1)
    ]  # fmt: skip
    run = new_run(folder)
    put_rows(run, "1/questions", QUESTIONS, rows)
    return question_groups([run.rows(run.records()[0].outputs["questions"])], SETTINGS.group_by)


def test_every_level_and_language_has_its_figures(tmp_path: Path) -> None:
    rollouts = [scored(float(key == "a"), 2, question_key=key, dataset="gaia") for key in ("a", "a", "b", "c")]
    rows = list(group_rows("m", rollouts, groups_of(META, tmp_path), SETTINGS))
    found = {(row["column"], row["group"]): row for row in rows if row["figure"] == "accuracy"}
    assert {key: row["value"] for key, row in found.items()} == {
        ("Level", "1"): 1.0, ("Level", "2"): 0.0, ("Level", "10"): 0.0,
        ("info.lang", "zh"): 1.0, ("info.lang", "en"): 0.0, ("info.lang", "(none)"): 0.0,
    }  # fmt: skip
    assert (found["Level", "1"]["num_questions"], found["Level", "1"]["num_rollouts"]) == (1, 2)
    table, other = group_tables(rows)
    assert other.title == "gaia by info.lang"
    assert table.title == "gaia by Level" and [row[:3] for row in table.rows] == [
        ("1", "m", 1), ("2", "m", 1), ("10", "m", 1),
    ]  # fmt: skip


def test_columns_with_one_value_or_too_many_do_not_split() -> None:
    rollouts = [scored(question_key=f"q{number}") for number in range(40)]
    one = {f"q{number}": {"Level": "1"} for number in range(40)}
    many = {f"q{number}": {"Level": str(number)} for number in range(40)}
    assert not list(group_rows("m", rollouts, one, SETTINGS))
    assert not list(group_rows("m", rollouts, many, SETTINGS))
    assert not list(group_rows("m", rollouts, {}, SETTINGS))


def test_questions_without_a_value_stay_visible() -> None:
    rollouts = [scored(question_key=key) for key in ("a", "b", "c")]
    groups = {"a": {"info.lang": "zh"}, "b": {"info.lang": "en"}}
    rows = list(group_rows("m", rollouts, groups, SETTINGS))
    assert {row["group"] for row in rows} == {"zh", "en", "(none)"}


@pytest.mark.parametrize("meta", [{"Level": ["1"]}, {"Level": None}, {"info": "text"}, {}])
def test_values_that_are_no_names_are_ignored(tmp_path: Path, meta: dict[str, Any]) -> None:
    assert groups_of({"a": meta}, tmp_path) == {}


def test_levels_that_are_not_numbers_follow_numbers_in_any_order() -> None:
    levels = ["nan", "10", "b", "9", "NaN"]
    for given in (levels, levels[::-1]):
        groups = {name: {"Level": name} for name in given}
        rows = list(group_rows("m", [scored(question_key=name) for name in given], groups, SETTINGS))
        (table,) = group_tables(rows)
        assert [row[0] for row in table.rows] == ["9", "10", "NaN", "b", "nan"]
