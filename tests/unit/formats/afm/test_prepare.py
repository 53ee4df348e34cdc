"""Training rows of AFM and GAP: from questions, from rows of the schema, and back by the stage `questions`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from treadle.core.answers.ground_truth import decode
from treadle.core.errors import DataError
from treadle.core.untrusted.input_files import read_rows
from treadle.datagen.questions.rows import parse_row
from treadle.datagen.questions.sources import QuestionsSettings, SourceSettings
from treadle.formats.afm.commands import export_command
from treadle.formats.afm.prepare import prepare_rows
from treadle.formats.afm.rows import TOOL_SETS, schema_of

Row = dict[str, Any]
QUESTION = {"question": "Who built Fort Orre?", "answer": "x", "data_source": "nq"}


def write(path: Path, *rows: Row) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(folder: Path) -> list[Row]:
    (file,) = folder.glob("data/*.parquet")
    found: list[Row] = pq.read_table(file).to_pylist()
    return found


@pytest.mark.covers("planning-28")
def test_row_has_prompt_ground_truth_and_the_tools_of_its_set(tmp_path: Path) -> None:
    source = write(tmp_path / "nq.jsonl", QUESTION, QUESTION, {**QUESTION, "answer": ["a", "b"]})
    prepare_rows(source, tmp_path / "out", "single", "mhqa")
    first, second, third = rows_of(tmp_path / "out")
    (message,) = first["prompt"]
    assert message["role"] == "user" and message["content"].endswith("\n\nQuestion: Who built Fort Orre?")
    assert decode(first["reward_model"]["ground_truth"]).answers == ("x",)
    assert decode(third["reward_model"]["ground_truth"]).answers == ("a", "b")
    assert json.loads(first["reward_model"]["ground_truth"])["target"] == ["x"] == first["extra_info"]["answer"]
    assert list(first["extra_info"]["tools_kwargs"]) == ["wiki_search"]
    made = first["extra_info"]["tools_kwargs"]["wiki_search"]["create_kwargs"]
    assert made == {
        "ground_truth": first["reward_model"]["ground_truth"],
        "question": QUESTION["question"],
        "data_source": "nq",
    }
    indices = {row["extra_info"]["index"] for row in (first, second, third)}
    assert len(indices) == 3 and all(index.startswith("nq-") for index in indices)


@pytest.mark.covers("planning-28")
@pytest.mark.parametrize("tools", TOOL_SETS)
def test_types_survive_parquet(tmp_path: Path, tools: Any) -> None:
    prepare_rows(write(tmp_path / "nq.jsonl", QUESTION), tmp_path / "out", tools, "gap")
    prepare_rows(tmp_path / "out/data/nq.parquet", tmp_path / "again", tools, "gap")
    assert pq.read_schema(tmp_path / "again/data/nq.parquet").equals(schema_of(TOOL_SETS[tools]))
    assert rows_of(tmp_path / "again") == rows_of(tmp_path / "out")


def test_new_prompt_keeps_question_ground_truth_and_index(tmp_path: Path) -> None:
    prepare_rows(write(tmp_path / "nq.jsonl", QUESTION, QUESTION), tmp_path / "one", "single", "mhqa")
    before = rows_of(tmp_path / "one")
    for row in before:
        del row["extra_info"]["question"]
    prepare_rows(write(tmp_path / "nq.jsonl", *before), tmp_path / "two", "two", "gap", limit=1)
    (after,) = rows_of(tmp_path / "two")
    assert after["extra_info"]["question"] == QUESTION["question"]
    assert after["extra_info"]["index"] == before[0]["extra_info"]["index"]
    assert after["reward_model"] == before[0]["reward_model"]
    assert after["prompt"] != before[0]["prompt"] and list(after["extra_info"]["tools_kwargs"]) == list(
        TOOL_SETS["two"]
    )


def test_foreign_rows_get_an_index_and_tests_of_programs_stay(tmp_path: Path) -> None:
    tests = {"stdin": ["1"], "expected_output": ["2"], "question_id": "a_1"}
    row = {
        "data_source": "codeforces",
        "prompt": [{"role": "user", "content": "Write code.\n\nTask: Add one."}],
        "reward_model": {"ground_truth": tests},
    }
    prepare_rows(write(tmp_path / "code.jsonl", row), tmp_path / "out", "all", "code")
    (made,) = rows_of(tmp_path / "out")
    assert decode(made["reward_model"]["ground_truth"]).tests == tests
    assert made["prompt"][0]["content"].endswith("\n\nTask: Add one.") and made["extra_info"]["index"]


@pytest.mark.parametrize(
    "bad", [{"answer": None}, {"answer": []}, {"answer": " "}, {"question": ""}, {"data_source": None}]
)
def test_rows_with_empty_fields_fail_or_are_counted(tmp_path: Path, bad: Row) -> None:
    source = write(tmp_path / "nq.jsonl", {**QUESTION, **bad}, QUESTION)
    with pytest.raises(DataError, match="row 1: .* is missing or empty"):
        prepare_rows(source, tmp_path / "out", "single", "mhqa")
    assert not (tmp_path / "out").exists()
    told = prepare_rows(source, tmp_path / "out", "single", "mhqa", filter_none=True)
    assert (told.num_rows, len(told.refused)) == (1, 1) and len(rows_of(tmp_path / "out")) == 1
    with pytest.raises(DataError, match="no row"):
        prepare_rows(write(tmp_path / "bad.jsonl", {**QUESTION, **bad}), tmp_path / "none", "two", "", filter_none=True)


def test_repeated_indices_are_refused(tmp_path: Path) -> None:
    prepare_rows(write(tmp_path / "nq.jsonl", QUESTION), tmp_path / "out", "single", "")
    (row,) = rows_of(tmp_path / "out")
    with pytest.raises(DataError, match="row 2: index .* earlier row"):
        prepare_rows(write(tmp_path / "two.jsonl", row, row), tmp_path / "two", "single", "")


def test_stage_questions_reads_the_rows(tmp_path: Path) -> None:
    source = write(tmp_path / "nq.jsonl", {**QUESTION, "file_name": "map.png"})
    prepare_rows(source, tmp_path / "out", "all", "all")
    file = tmp_path / "out/data/nq.parquet"
    (row,) = read_rows(file)
    asked = parse_row(row, SourceSettings(path=file), QuestionsSettings())
    assert (asked.question, asked.answers, asked.domain) == ("Who built Fort Orre?\n\nmap.png", ("x",), "qa")


def test_command_tells_counts_and_lengths(tmp_path: Path) -> None:
    source = write(tmp_path / "nq.jsonl", QUESTION, {**QUESTION, "answer": ""})
    given = [str(source), "--out", str(tmp_path / "out"), "--filter-none", "--json"]
    result = CliRunner().invoke(export_command, given)
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert (told["num_rows"], told["num_left_out"]) == (1, 1)
