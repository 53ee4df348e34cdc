"""Rows in verl's parquet schema, ours and those of other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support.tables.score_tables import new_run, put_rows, question
from support.tables.table_readers import assert_all_read

from treadle.cli.main import cli
from treadle.core.config import load_config
from treadle.core.errors import ConfigError, DataError
from treadle.core.untrusted.input_files import InputRow
from treadle.datagen.questions.rows import parse_row
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.rl.selection.tables import RL_ROWS
from treadle.rl.verl.data import write_verl
from treadle.rl.verl.exchange import export_verl, import_verl, read_verl
from treadle.rl.verl.rows import (
    TRAINING_COLUMNS,
    TRAINING_SCHEMA,
    VERL_COLUMNS,
    VERL_SCHEMA,
    domain_of,
    gold_answers,
    training_rows,
    validation_rows,
    verl_row,
)
from treadle.tasks.config import TreadleConfig

MESSAGES = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "question a?"}]


def rl_rows(keys: str = "abc") -> pa.RecordBatch:
    rows = []
    for index, key in enumerate(keys):
        asked = question(key, ["12", "twelve"], "choice" if key == "c" else "math", ["x", "y"] if key == "c" else [])
        facts = {"score_tool": 1.5, "score_corr": 0.5, "rank": index}
        own = {"question_key": key, "dataset": "world", "domain": asked["domain"], "phase": 2, "model": "base"}
        more = {"parents": ["r"], "correctness": [1.0], "calls": [1], "num_unusable": 0, "parts": []}
        verl = verl_row(asked, MESSAGES, index=index, phase=2, **facts)
        rows.append(
            {**verl, **own, **facts, **more, "method": "pareto", "environment_digest": "e", "environment": "default"}
        )
    return pa.RecordBatch.from_pylist(rows, RL_ROWS.schema)


@pytest.mark.covers("pareto-8")
def test_verl_file_has_its_types_and_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    batch = rl_rows()
    assert write_verl([batch.slice(0, 2), batch.slice(2)], path) == 3
    table = pq.read_table(path)
    assert table.schema.equals(VERL_SCHEMA, check_metadata=False)
    assert {field.name: str(field.type) for field in table.schema if field.name != "extra_info"} == {
        "data_source": "string",
        "prompt": "list<element: struct<content: string, role: string>>",
        "ability": "string",
        "reward_model": "struct<ground_truth: list<element: string>, style: string>",
    }
    info = table.schema.field("extra_info").type
    assert [(part.name, str(part.type)) for part in list(info)[:4]] == [
        ("index", "int64"), ("need_tools_kwargs", "bool"), ("question", "string"), ("split", "string"),
    ]  # fmt: skip
    assert table.to_pylist() == batch.select(VERL_COLUMNS).to_pylist()
    indices = [row["index"] for row in table["extra_info"].to_pylist()]
    assert len(set(indices)) == len(indices) == 3
    assert not any(pa.types.is_null(field.type) for field in table.schema)


def test_verl_files_can_be_concatenated_and_load_with_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    import datasets

    write_verl([rl_rows()], tmp_path / "a.parquet")
    write_verl([rl_rows("de")], tmp_path / "b.parquet")
    files = [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
    loaded = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.column_names == list(VERL_COLUMNS)
    assert [info["id"] for info in loaded["extra_info"]] == list("abcde")
    assert loaded[2]["extra_info"]["choices"] == ["x", "y"]
    assert loaded[0]["prompt"] == [{"content": m["content"], "role": m["role"]} for m in MESSAGES]


@pytest.mark.covers("pareto-8")
@pytest.mark.parametrize(
    ("value", "answers"),
    [
        ("12", ["12"]),
        (12, ["12"]),
        (["a", "b"], ["a", "b"]),
        (None, [""]),
        ([], [""]),
        (np.array(["a", "b"], object), ["a", "b"]),
        (0.5, ["0.5"]),
        ((1, "b"), ["1", "b"]),
    ],
)
def test_gold_answers_become_a_list_of_strings(value: object, answers: list[str]) -> None:
    assert gold_answers(value) == answers


@pytest.mark.parametrize("value", [{"target": "a"}, [["a"]], b"a", float("nan"), [None], ["a"] * 1_001])
def test_gold_answers_of_any_other_type_are_refused(value: object) -> None:
    with pytest.raises(DataError):
        gold_answers(value)


def test_training_rows_contain_everything_an_engine_needs() -> None:
    rows = training_rows(rl_rows().select(TRAINING_COLUMNS))
    assert rows.schema.equals(TRAINING_SCHEMA)
    assert rows.to_pylist()[2] == {
        "question_key": "c", "question": "question c?", "choices": ["x", "y"],
        "answers": ["12", "twelve"], "domain": "choice", "dataset": "world", "score_tool": 1.5, "score_corr": 0.5,
        "rank": 2, "format": None, "scorer": None, "environment": "default",
    }  # fmt: skip
    held_out = validation_rows([question("a", ["12", "twelve"], "math")])
    assert held_out.schema.equals(TRAINING_SCHEMA)
    same = {name: value for name, value in rows.to_pylist()[0].items() if name not in ("score_tool", "score_corr")}
    assert same.items() <= held_out.to_pylist()[0].items()


def test_rows_keep_format_and_scorer_and_the_scorer_determines_the_reward() -> None:
    asked = question("a", ["True"]) | {"format": "assertion", "scorer": "math"}
    row = validation_rows([asked]).to_pylist()[0]
    assert (row["format"], row["scorer"], row["domain"]) == ("assertion", "math", "qa")
    made = verl_row(asked, MESSAGES, index=0)
    assert (made["data_source"], made["ability"]) == ("math_effi_rl", "qa")


def written(tmp_path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path = tmp_path / "other.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def test_foreign_files_become_questions_accepted_by_the_stage(tmp_path: Path) -> None:
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "How many?"}]
    rows = [
        {"data_source": "lab/math", "prompt": prompt, "reward_model": {"ground_truth": "34", "style": "rule"},
         "extra_info": {"index": 5, "split": "test"}, "metadata": None},
        {"data_source": "lab/math", "prompt": prompt, "reward_model": {"ground_truth": None, "style": "rule"},
         "extra_info": {"index": 6, "split": "train"}, "metadata": None},
    ]  # fmt: skip
    found = list(read_verl(written(tmp_path, rows), {"lab/math": "math"}))
    assert [(row.question, row.answers, row.dataset, row.domain, row.split, row.id) for row in found] == [
        ("How many?", ("34",), "lab/math", "math", "heldout", "5"),
        ("How many?", ("",), "lab/math", "math", "train", "6"),
    ]
    source = {"path": str(tmp_path / "questions.jsonl"), "source_field": "dataset", "split_field": "split"}
    settings = load_config(QuestionsSettings, data={"sources": [source], "domains": {"lab/math": "math"}})
    asked = parse_row(InputRow(1, orjson.loads(found[0].as_json())), settings.sources[0], settings)
    assert (asked.question, asked.answers, asked.domain, asked.split) == ("How many?", ("34",), "math", "heldout")


def test_exported_rows_round_trip_to_their_questions(tmp_path: Path) -> None:
    write_verl([rl_rows()], tmp_path / "train.parquet")
    found = list(read_verl(tmp_path / "train.parquet"))
    assert [(row.id, row.question, row.answers, row.domain, row.dataset, row.split) for row in found] == [
        (key, f"question {key}?", ("12", "twelve"), domain, "world", "train")
        for key, domain in (("a", "math"), ("b", "math"), ("c", "choice"))
    ]
    assert found[2].choices == ("x", "y") and not found[0].choices


@pytest.mark.covers("pareto-7")
def test_data_source_without_domain_is_named(tmp_path: Path) -> None:
    assert domain_of("qa_effi_rl") == "qa" and domain_of("still", {"still": "math"}) == "math"
    with pytest.raises(DataError, match="'still' has no domain"):
        domain_of("still")
    with pytest.raises(DataError, match=r"row 1: data source 'still'"):
        list(read_verl(written(tmp_path, [{"data_source": "still", "prompt": "How many?"}])))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "How many?"}, "no data_source"),
        ({"data_source": "qa_effi_rl", "prompt": [{"role": "system", "content": "s"}]}, "neither"),
        ({"data_source": "qa_effi_rl", "prompt": "x", "reward_model": "34"}, "reward_model is of type str"),
        ({"data_source": "qa_effi_rl", "prompt": [{"role": "user", "content": " "}]}, "neither"),
        ({"data_source": "qa_effi_rl", "prompt": "x", "reward_model": {"ground_truth": {"a": 1}}}, "is an object"),
        (
            {"data_source": "qa_effi_rl", "prompt": "x", "reward_model": {"ground_truth": float("nan")}},
            "not a finite number",
        ),
        ({"data_source": "qa_effi_rl", "prompt": "x", "extra_info": {"choices": [["a"]]}}, "option .* of type list"),
    ],
)
def test_invalid_verl_rows_are_named(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=rf"other\.parquet, row 1: .*{said}"):
        list(read_verl(written(tmp_path, [row])))


def test_question_of_a_users_domain_names_its_scorer() -> None:
    row = verl_row(question("a", ["1"], "poetry") | {"scorer": "rhyme"}, MESSAGES, index=0)
    assert (row["data_source"], row["ability"]) == ("treadle_rhyme", "poetry")


def test_verl_export_is_atomic_and_records_its_source(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/selection@phase-2", RL_ROWS, rl_rows().to_pylist())
    rows = run.rows(run.records()[0].outputs["rl_rows"])
    assert export_verl(rows, tmp_path / "out", origin={"run": "test", "instance": "1/selection@phase-2"}) == 3
    assert pq.read_table(tmp_path / "out" / "data" / "train.parquet").num_rows == 3
    assert_all_read(tmp_path / "out", list(rows.rows(VERL_COLUMNS)), tmp_path / "cache")
    facts = orjson.loads((tmp_path / "out" / "export.json").read_bytes())
    assert (facts["instance"], facts["digest"], facts["num_rows"]) == ("1/selection@phase-2", rows.digest, 3)
    with pytest.raises(ConfigError, match="already contains an export"):
        export_verl(rows, tmp_path / "out", origin={})


def test_import_is_read_by_the_questions_stage_with_its_config(tmp_path: Path) -> None:
    rows = [
        {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": f"How many are {number}?"}],
         "reward_model": {"ground_truth": str(number), "style": "rule"}}
        for number in range(4)
    ]  # fmt: skip
    write_verl([rl_rows("c")], tmp_path / "own.parquet")
    assert import_verl(tmp_path / "own.parquet", tmp_path / "own", {}) == {"choice": 1}
    counts = import_verl(written(tmp_path, rows), tmp_path / "out", {"openai/gsm8k": "math"})
    assert counts == {"math": 4}
    for folder, answers, domain in (("out", ["0"], "math"), ("own", ["A"], "choice")):
        settings = load_config(TreadleConfig, files=[tmp_path / folder / "questions.toml"]).questions
        (source,) = settings.sources
        assert source.path is not None
        row = InputRow(1, orjson.loads(source.path.read_bytes().splitlines()[0].replace(b'"12","twelve"', b'"A"')))
        asked = parse_row(row, source, settings)
        assert (asked.domain, list(asked.answers)) == (domain, answers)
    with pytest.raises(DataError, match="data source 'openai/gsm8k' has no domain"):
        import_verl(tmp_path / "other.parquet", tmp_path / "none", {})
    assert not (tmp_path / "none").exists()


def read_back(folder: Path) -> list[tuple[str, list[str], list[str]]]:
    """Return how the stage `questions` reads an import: domain, answers and options of each row."""
    settings = load_config(TreadleConfig, files=[folder / "questions.toml"]).questions
    found = []
    for source in settings.sources:
        assert source.path is not None
        for line in source.path.read_bytes().splitlines():
            asked = parse_row(InputRow(1, orjson.loads(line)), source, settings)
            found.append((asked.domain, list(asked.answers), list(asked.choices)))
    return found


@pytest.mark.parametrize("data_source", ["qa_effi_rl", "math_effi_rl", "choice_effi_rl", "hellaswag"])
def test_options_survive_an_import_for_any_data_source(tmp_path: Path, data_source: str) -> None:
    rows = [
        {"data_source": data_source, "prompt": "Which is it?", "reward_model": {"ground_truth": "B"},
         "extra_info": {"choices": ["x", "y"]}},
    ]  # fmt: skip
    assert import_verl(written(tmp_path, rows), tmp_path / "out", {}) == {"choice": 1}
    assert read_back(tmp_path / "out") == [("choice", ["B"], ["x", "y"])]


def test_config_of_an_import_is_valid_toml_at_any_path(tmp_path: Path) -> None:
    rows = [{"data_source": "qa_effi_rl", "prompt": "Who?", "reward_model": {"ground_truth": "x"}}]
    out = tmp_path / 'a\x7fb "c" \\d'
    import_verl(written(tmp_path, rows), out, {})
    assert read_back(out) == [("qa", ["x"], [])]


@pytest.mark.parametrize(
    ("domains", "said"),
    [
        ({"nobody": "qa"}, "no row has 'nobody' as its data_source; known: 'qa_effi_rl'"),
        ({"math_effi_rl": "qa"}, "'math_effi_rl' is a data_source of Treadle's own"),
    ],
)
def test_meaningless_domain_is_refused(tmp_path: Path, domains: dict[str, str], said: str) -> None:
    rows = [{"data_source": "qa_effi_rl", "prompt": "Who?", "reward_model": {"ground_truth": "x"}}]
    with pytest.raises(ConfigError, match=said):
        import_verl(written(tmp_path, rows), tmp_path / "out", domains)
    assert not (tmp_path / "out").exists()


def test_commands_export_rows_of_the_last_phase_and_import_foreign_files(tmp_path: Path) -> None:
    run = new_run(tmp_path / "root")
    for phase in (2, 10, 1):
        put_rows(run, f"1/selection@phase-{phase}", RL_ROWS, rl_rows("abc"[: phase % 3 + 1]).to_pylist())
    common = ["export", "rl_rows", "--run", "test", "--root", str(tmp_path / "root")]
    done = CliRunner().invoke(cli, [*common, "--out", str(tmp_path / "last")])
    assert (done.exit_code, done.output) == (0, f"2 rows of 1/selection@phase-10 in verl's schema: {tmp_path}/last\n")
    done = CliRunner().invoke(
        cli, [*common, "--out", str(tmp_path / "b"), "--instance", "1/selection@phase-2", "--json"]
    )
    assert orjson.loads(done.output)["num_rows"] == 3
    file = str(tmp_path / "last" / "data" / "train.parquet")
    done = CliRunner().invoke(cli, ["import", "verl", file, "--out", str(tmp_path / "in"), "--json"])
    assert orjson.loads(done.output) == {"folder": str(tmp_path / "in"), "num_questions": {"math": 2}}
    done = CliRunner().invoke(cli, ["import", "verl", file, "--out", str(tmp_path / "no"), "--domain", "x=poetry"])
    assert done.exit_code == 2 and "'x=poetry' is not of the form NAME=DOMAIN" in done.output
