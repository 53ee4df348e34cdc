"""Hidden tests of LiveCodeBench become files, by which rows for verl find them; the stage `questions` hides them."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from treadle.core.config import load_config
from treadle.core.errors import DataError
from treadle.core.untrusted.input_files import read_rows
from treadle.datagen.questions.rows import ParsedQuestion, parse_row
from treadle.environments.scorers.program_tests import read_tests
from treadle.formats.afm.lcb_tests import problem_tests, write_tests
from treadle.rl.verl.exchange import import_verl
from treadle.tasks.config import TreadleConfig

Row = dict[str, Any]


def packed(value: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def case(given: str, wanted: str, kind: str = "stdin") -> Row:
    return {"input": given, "output": wanted, "testtype": kind}


def problem(name: str, public: list[Row], private: list[Row], **more: Any) -> Row:
    return {
        "question_id": name,
        "public_test_cases": json.dumps(public),
        "private_test_cases": packed(json.dumps(private)),
        "metadata": "{}",
        **more,
    }


ADD = problem("abc301_a", [case("1 2\n", "3\n")], [case("4 5\n", "9\n")])
CALL = problem("3402", [case("[1]\n2", "3", "functional")], [], metadata='{"func_name": "add"}')


def written(path: Path, *rows: Row) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def questions(folder: Path) -> list[ParsedQuestion]:
    settings = load_config(TreadleConfig, files=[folder / "questions.toml"]).questions
    settings.check_sources()
    found = []
    for source in settings.sources:
        assert source.path is not None
        found += [parse_row(row, source, settings) for row in read_rows(source.path)]
    return found


def code_row(truth: Any, name: str = "livecodebench_v5") -> Row:
    return {
        "data_source": name,
        "prompt": [{"role": "user", "content": "Add two numbers."}],
        "reward_model": {"ground_truth": truth, "style": "rule"},
        "extra_info": {"question": "Add two numbers."},
    }


def test_tests_are_loaded_by_question_id_and_hidden(tmp_path: Path) -> None:
    assert write_tests(written(tmp_path / "lcb.jsonl", ADD, CALL), tmp_path / "tests") == 2
    rows = [
        code_row(json.dumps({"stdin": ["1 2\n"], "expected_output": ["3\n"], "question_id": "abc301_a"})),
        code_row({"functional": "[]", "question_id": "3402"}),
        code_row({"inputs": ["7 8\n"], "outputs": ["15\n"]}, "codecontests"),
    ]
    file = written(tmp_path / "code.jsonl", *rows)
    assert import_verl(file, tmp_path / "out", {}, tests=tmp_path / "tests") == {"code": 3}
    stdin, call, own = questions(tmp_path / "out")
    for asked in (stdin, call, own):
        assert (asked.domain, asked.scorer, asked.answers) == ("code", "stdin_tests", ())
        assert "tests" not in json.loads(asked.meta)
    assert [len(read_tests(orjson.loads(asked.payload))) for asked in (stdin, call, own)] == [2, 1, 1]
    assert orjson.loads(call.payload)["tests"]["fn_name"] == "add"


def test_tests_that_are_stored_apart_need_their_folder(tmp_path: Path) -> None:
    file = written(tmp_path / "code.jsonl", code_row({"functional": "[]", "question_id": "3402"}))
    with pytest.raises(DataError, match="row 1: .*--tests"):
        import_verl(file, tmp_path / "out", {})
    (tmp_path / "tests").mkdir()
    with pytest.raises(DataError, match="there is none in"):
        import_verl(file, tmp_path / "out", {}, tests=tmp_path / "tests")
    assert not (tmp_path / "out").exists()


def test_ids_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "secret.json").write_text('{"stdin": ["1"], "expected_output": ["secret"]}')
    row = code_row({"stdin": ["1"], "expected_output": ["2"], "question_id": "../secret"})
    import_verl(written(tmp_path / "code.jsonl", row), tmp_path / "out", {}, tests=tmp_path / "tests")
    (asked,) = questions(tmp_path / "out")
    assert orjson.loads(asked.payload)["tests"]["expected_output"] == ["2"]
    with pytest.raises(DataError, match="no name of a file"):
        problem_tests({**ADD, "question_id": "../secret"})


class _Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


@pytest.mark.parametrize(
    "change",
    [
        {"private_test_cases": packed(_Harmful())},
        {"private_test_cases": packed(["text"])},
        {"private_test_cases": "no base64"},
        {"private_test_cases": base64.b64encode(b"no zlib").decode()},
        {"public_test_cases": "[1]"},
        {"public_test_cases": "", "private_test_cases": ""},
        {"public_test_cases": '[{"testtype": "stdin"}]'},
        {"public_test_cases": json.dumps([case("1", "2", "functional")]), "private_test_cases": ""},
    ],
)
def test_tests_that_cannot_be_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Row) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError):
        problem_tests({**ADD, **change})
    assert not Path("harmed").exists()
