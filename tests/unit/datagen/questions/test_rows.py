"""Parsing of question rows, and reasons for quarantine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.tables.questions_bench import GOOD, Bench, write_jsonl

from treadle.core.errors import ConfigError
from treadle.core.untrusted.input_files import read_rows
from treadle.datagen.questions.rows import content_key


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_question_keeps_its_fields_and_source(bench: Bench) -> None:
    result = bench.take_rows([{**GOOD, "question": f"  {GOOD['question']}\n", "level": 3}])
    assert result.questions == [
        {
            "question_key": content_key(str(GOOD["question"]), ["Ilme", "the Ilme"], []),
            "dataset": "qa-set",
            "domain": "qa",
            "question": GOOD["question"],
            "answers": ["Ilme", "the Ilme"],
            "choices": [],
            "split": "train",
            "source_file": "q.jsonl",
            "source_row": 1,
            "meta": '{"level": 3}',
            "format": None,
            "scorer": None,
            "search": None,
            "environment": "default",
            "payload": "{}",
        }
    ]
    assert result.metrics["questions"] == result.metrics["dataset.qa-set"] == 1


def test_key_ignores_the_unicode_form_and_depends_on_everything_else() -> None:
    key = content_key("Caf\u00e9?", ["a"], [])
    assert len(key) == 16
    assert content_key(" Cafe\u0301? ", ["a"], []) == key
    assert len({key, content_key("Caf\u00e9?", ["b"], []), content_key("Caf\u00e9?", ["a"], ["x", "y"])}) == 3


BAD_ROWS: list[tuple[str, dict[str, Any] | bytes, str, str]] = [
    ("no question", {"answer": "x"}, "missing_field", "no question in any known field; it has 'answer'"),
    ("no answer", {"question": "Why?"}, "missing_field", "no answer in any known field; it has 'question'"),
    (
        "null question",
        {"question": None, "answer": "x"},
        "null_field",
        "question in field 'question' is null",
    ),
    ("null answer", {"question": "Why?", "answer": None}, "null_field", "answer in field 'answer' is null"),
    ("blank question", {"question": " \t", "answer": "x"}, "empty_question", "empty"),
    ("blank answer", {"question": "Why?", "answer": "  "}, "empty_answer", "non-empty"),
    ("no answers in the list", {"question": "Why?", "answer": []}, "empty_answer", "non-empty"),
    ("null among the answers", {"question": "Why?", "answer": ["x", None]}, "wrong_type", "NoneType"),
    ("question is a list", {"question": ["Why?"], "answer": "x"}, "wrong_type", "type list, not text"),
    ("answer is an object", {"question": "Why?", "answer": {"a": 1}}, "wrong_type", "type dict"),
    ("answer is not a number", b'{"question": "Why?", "answer": NaN}', "wrong_type", "float"),
    ("long question", {"question": "x" * 100_001, "answer": "x"}, "too_long", "100,001 characters"),
    ("10 MB question", {"question": "x" * 10_000_000, "answer": "x"}, "too_long", "10,000,000 characters"),
    ("long answer", {"question": "Why?", "answer": "x" * 10_001}, "too_long", "10,001 characters"),
    ("NUL", {"question": "Wh\0y?", "answer": "x"}, "nul_character", "character 3"),
    ("NUL in an answer", {"question": "Why?", "answer": ["x", "\0"]}, "nul_character", "character 1"),
    ("lone surrogate", b'{"question": "Why\\ud800?", "answer": "x"}', "lone_surrogate", r"U\+D800 at character 4"),
    ("not UTF-8", b'{"question": "Caf\xe9?", "answer": "x"}', "not_utf8", "byte 18 of the line .0xe9."),
    ("cut off", b'{"question": "Why?", "ans', "bad_json", "not valid JSON"),
    ("nested too deeply", b'{"question": ' + b"[" * 200_000, "bad_json", "nested too deeply"),
    ("an array", b'["Why?", "x"]', "not_an_object", "not list"),
    ("one option", {"question": "Why?", "answer": "A", "c": ["x"]}, "bad_choices", "1 options"),
    ("no such option", {"question": "Why?", "answer": "C", "c": ["x", "y"]}, "bad_answer", "'C' matches none of the 2"),
    ("strange split", {"question": "Why?", "answer": "x", "s": "gold"}, "bad_split", "'gold' is not a split"),
]


@pytest.mark.covers("flywheel-32")
@pytest.mark.parametrize(("row", "reason", "detail"), [case[1:] for case in BAD_ROWS], ids=[c[0] for c in BAD_ROWS])
def test_bad_row_is_quarantined_and_its_neighbours_are_read(
    bench: Bench, row: dict[str, Any] | bytes, reason: str, detail: str
) -> None:
    other = {"question": "Which hill is highest?", "answer": "Arn"}
    result = bench.take_rows([GOOD, row, other], choices_field="c", split_field="s")
    assert [question["source_row"] for question in result.questions] == [1, 3]
    (bad,) = result.quarantine
    assert (bad["source_file"], bad["source_row"], bad["dataset"], bad["reason"]) == ("q.jsonl", 2, "qa-set", reason)
    assert re.search(detail, bad["detail"]), bad["detail"]
    assert 0 < len(bad["raw"]) <= 2000
    assert "\0" not in bad["raw"]
    assert result.metrics[f"reason.{reason}"] == result.metrics["quarantined"] == 1


def test_line_too_long_for_memory_is_skipped_and_the_rest_read(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "q.jsonl", [GOOD, b"x" * 5_000, GOOD])
    rows = list(read_rows(path, max_row_bytes=1_000))
    assert [(row.number, row.reason) for row in rows] == [(1, ""), (2, "too_long"), (3, "")]
    assert len(rows[1].raw) <= 2_000


def test_byte_order_mark_blank_lines_and_crlf_are_accepted(bench: Bench) -> None:
    line = orjson.dumps(GOOD)
    (bench.folder / "q.jsonl").write_bytes(b"\xef\xbb\xbf\r\n" + line + b"\r\n\r\n" + b'{"question": 1}\r\n')
    result = bench.take({"path": bench.folder / "q.jsonl", "domain": "qa"})
    assert [row["source_row"] for row in result.questions] == [2]
    assert result.reasons == [(4, "wrong_type")]


@pytest.mark.parametrize(
    ("value", "answers"),
    [
        (5, ["5"]),
        (True, ["True"]),
        (2.5, ["2.5"]),
        (12345678901234567890123, ["12345678901234567890123"]),
        (["a", " a ", "", 7], ["a", "7"]),
        ({"value": "Ilme", "aliases": ["Ilme", "River Ilme"]}, ["Ilme", "River Ilme"]),
    ],
)
def test_answers_become_a_list_of_distinct_texts(bench: Bench, value: Any, answers: list[str]) -> None:
    result = bench.take_rows([json.dumps({"question": "Why?", "answer": value}).encode()])
    assert result.questions[0]["answers"] == answers


@pytest.mark.covers("evaluation-5")
def test_answer_of_a_worked_solution_is_the_number_after_the_marker(bench: Bench) -> None:
    rows = [
        {"question": "How many?", "answer": "500 + 734 = 1,234\n#### 1,234"},
        {"question": "How cold?", "answer": "x #### -12.5"},
        {"question": "How far?", "answer": "no marker: 3"},
    ]
    path = write_jsonl(bench.folder / "gsm8k" / "test.jsonl", rows)
    result = bench.take({"path": path, "dataset": "gsm8k"})
    assert [(row["answers"], row["domain"]) for row in result.questions] == [(["1234"], "math"), (["-12.5"], "math")]
    assert result.reasons == [(3, "bad_answer")]
    assert result.quarantine[0]["source_file"] == "test.jsonl"


BENCHMARK_ROWS: list[tuple[str, dict[str, Any], str, list[str], int, str]] = [
    ("aime24", {"id": 1, "problem": "P", "answer": "073"}, "P", ["073"], 0, "math"),
    ("aime25", {"problem": "P", "answer": 70}, "P", ["70"], 0, "math"),
    ("math500", {"question": "P", "answer": "\\frac{1}{2}"}, "P", ["\\frac{1}{2}"], 0, "math"),
    ("amc23", {"question": "P", "answer": "27", "url": "u"}, "P", ["27"], 0, "math"),
    ("math-500", {"problem": "P", "solution": "S", "answer": "3"}, "P", ["3"], 0, "math"),
    ("tabmwp", {"problem": "P", "answer": "1/6"}, "P", ["1/6"], 0, "math"),
    ("gaokao2023en", {"question": "P", "answer": "$-2$"}, "P", ["$-2$"], 0, "math"),
    ("college_math", {"problem": "P", "answer": "$x$"}, "P", ["$x$"], 0, "math"),
    ("carp_en", {"content": "P", "answer": "4 cm"}, "P", ["4 cm"], 0, "math"),
    ("math", {"problem": "P", "question": "no", "answer": "2"}, "P", ["2"], 0, "math"),
    ("svamp", {"Body": "A has 3.", "Question": "How many?", "Answer": 3.0}, "A has 3. How many?", ["3.0"], 0, "math"),
    ("asdiv", {"body": "B.", "question": "Q?", "answer": "9 (apples)"}, "B. Q?", ["9"], 0, "math"),
    ("mawps", {"input": "Q", "target": 4}, "Q", ["4"], 0, "math"),
    ("minerva_math", {"problem": "P", "solution": r"so \boxed{x^{2}}"}, "P", ["x^{2}"], 0, "math"),
    (
        "minerva_math",
        {"problem": "P", "solution": r"\boxed{1} or \fbox{2}, \boxed{\{3\}} and \boxed{4"},
        "P",
        [r"\{3\}"],
        0,
        "math",
    ),
    ("minerva_math", {"problem": "P", "solution": "It is 3."}, "P", ["It is 3."], 0, "math"),
    ("olympiadbench", {"question": "P", "final_answer": ["$1,2$"]}, "P", ["$1,2$"], 0, "math"),
    ("2wiki", {"question": "Q", "answer": ["a", "b"]}, "Q", ["a", "b"], 0, "qa"),
    ("simpleqa", {"question": "Q", "answer": ["a"]}, "Q", ["a"], 0, "qa"),
    ("gaia", {"Question": "Q", "answer": "1, 2"}, "Q", ["1, 2"], 0, "qa"),
    ("gpqa", {"question": "Q (A) x (B) y", "answer": "(B) y"}, "Q (A) x (B) y", ["(B) y"], 0, "choice"),
    ("csbench", {"Question": "Q", "Format": "Assertion", "Answer": True}, "Q", ["True"], 0, "qa"),
    ("csbench", {"Question": "Q", "A": "w", "B": "x", "C": "y", "D": "z", "Answer": "C"}, "Q", ["C"], 4, "choice"),
    ("mmlu-pro", {"question": "Q", "options": list("abcdefghij"), "answer": "J"}, "Q", ["J"], 10, "choice"),
    ("mmlu_pro", {"question": "Q", "options": list("abc"), "answer": "B", "answer_index": 1}, "Q", ["B"], 3, "choice"),
    ("hle", {"question": "Q", "answer": "a"}, "Q", ["a"], 0, "qa"),
    ("mmlu", {"question": "Q", "choices": ["w", "x", "y"], "answer": 2}, "Q", ["C"], 3, "choice"),
    ("own", {"input": "Q", "answer": "a"}, "Q", ["a"], 0, "qa"),
]


@pytest.mark.covers("evaluation-29")
@pytest.mark.parametrize(
    ("dataset", "row", "question", "answers", "num_choices", "domain"),
    BENCHMARK_ROWS,
    ids=[f"{case[0]}-{case[5]}-{case[4]}" for case in BENCHMARK_ROWS],
)
def test_fields_of_known_benchmarks_are_found(
    bench: Bench, dataset: str, row: dict[str, Any], question: str, answers: list[str], num_choices: int, domain: str
) -> None:
    path = write_jsonl(bench.folder / dataset / "test.jsonl", [row])
    (taken,) = bench.take({"path": path, "dataset": dataset}, domains={"own": "qa"}).questions
    assert (taken["question"], taken["answers"], taken["domain"]) == (question, answers, domain)
    assert len(taken["choices"]) == num_choices


@pytest.mark.parametrize(
    ("row", "form", "choices"),
    [
        ({"Format": "Multiple-choice", "A": "w", "B": "x"}, "multiple_choice", ["w", "x"]),
        ({"Format": "Assertion"}, "assertion", []),
        ({"Format": " fill-in-the-blank "}, "fill_in", []),
        ({"Format": "Open-ended"}, "open_ended", []),
        ({"Format": None, "A": "w", "B": "x"}, "multiple_choice", ["w", "x"]),
        ({}, None, []),
    ],
)
def test_format_comes_from_the_row(bench: Bench, row: dict[str, Any], form: str | None, choices: list[str]) -> None:
    path = write_jsonl(bench.folder / "csbench.jsonl", [{"Question": "Q", "Answer": "A", **row}])
    (taken,) = bench.take({"path": path}).questions
    scorer = None if choices else "qa_characters"
    assert (taken["format"], taken["choices"], taken["search"], taken["scorer"]) == (form, choices, "local", scorer)


@pytest.mark.parametrize("value", ["Essay", "", 3, ["Assertion"]])
def test_unknown_format_is_reported_with_the_valid_ones(bench: Bench, value: Any) -> None:
    path = write_jsonl(
        bench.folder / "csbench.jsonl",
        [{"Question": "Q", "Answer": "A", "Format": value}, {"Question": "R", "Answer": "A"}],
    )
    result = bench.take({"path": path})
    assert result.reasons == [(1, "bad_format")]
    assert "in field 'Format' is not a format; known: multiple_choice, assertion" in result.quarantine[0]["detail"]


@pytest.mark.parametrize("options", [{"A": "w", "B": None, "C": "y", "D": "z"}, {"B": "x", "C": "y"}])
def test_gap_between_options_keeps_their_letters(bench: Bench, options: dict[str, Any]) -> None:
    rows = [{"Question": "Q", "Answer": "C", **options}, {"Question": "R", "Answer": "C", "A": 1, "B": 2, "C": 3}]
    result = bench.take({"path": write_jsonl(bench.folder / "csbench.jsonl", rows)})
    assert (
        result.reasons == [(1, "bad_choices")] and "missing or null, but a later one" in result.quarantine[0]["detail"]
    )
    assert (result.questions[0]["choices"], result.questions[0]["answers"]) == (["1", "2", "3"], ["C"])


def test_options_named_by_the_source_override_benchmark_columns(bench: Bench) -> None:
    row = {"Question": "Q", "Answer": "y", "A": "w", "B": "x", "options": ["y", "z", "w"]}
    path = write_jsonl(bench.folder / "csbench.jsonl", [row])
    (taken,) = bench.take({"path": path, "choices_field": "options"}).questions
    assert (taken["choices"], taken["answers"]) == (["y", "z", "w"], ["A"])
    (taken,) = Bench(bench.folder / "other").take({"path": path, "answer_field": "A"}).questions
    assert (taken["choices"], taken["answers"]) == (["w", "x"], ["A"])


def test_non_utf8_parquet_text_costs_one_row(bench: Bench) -> None:
    texts = pa.array([b"Why?", b"Caf\xe9?", b"How?"], pa.binary()).view(pa.string())
    table = pa.table({"question": texts, "answer": ["1", "2", "3"]})
    pq.write_table(table, bench.folder / "a.parquet")
    result = bench.take({"path": bench.folder / "a.parquet", "domain": "qa"})
    assert ([row["source_row"] for row in result.questions], result.reasons) == ([1, 3], [(2, "not_utf8")])


def test_rows_of_a_mixed_file_get_their_own_dataset_and_domain(bench: Bench) -> None:
    rows = [
        {**GOOD, "source": "2wiki"},
        {"question": "1 + 1?", "answer": "#### 2", "source": "gsm8k"},
        {"question": "2 + 1?", "answer": 3, "source": "dapo"},
        {"question": "3 + 1?", "answer": 4, "source": "sums"},
        {"question": "4 + 1?", "answer": 5, "source": "unheard-of"},
        {"question": "5 + 1?", "answer": 6, "source": "\u001b[31m"},
        {"question": "6 + 1?", "answer": 7},
    ]
    path = write_jsonl(bench.folder / "q.jsonl", rows)
    result = bench.take({"path": path, "source_field": "source"}, domains={"sums": "math"})
    assert [(row["dataset"], row["domain"], row["answers"][0]) for row in result.questions] == [
        ("2wiki", "qa", "Ilme"),
        ("gsm8k", "math", "2"),
        ("dapo", "math", "3"),
        ("sums", "math", "4"),
    ]
    assert result.reasons == [(5, "unknown_source"), (6, "bad_source"), (7, "missing_field")]


def test_other_fields_are_kept_as_portable_json(bench: Bench) -> None:
    row = b'{"question": "Why?", "answer": "x", "a": NaN, "b": "\\ud800", "c": {"d": [1, 99999999999999999999]}}'
    (question,) = bench.take_rows([row]).questions
    assert orjson.loads(question["meta"]) == {"a": None, "b": "?", "c": {"d": [1, "99999999999999999999"]}}


TESTED = {"question": "Fix it.", "files": {"a.py": "x"}, "tests": {"files": {"t.py": "y"}, "command": "pytest"}}
BY_TESTS: dict[str, Any] = {"payload": ["files", "tests"], "scorer": "workspace_tests", "domain": None}


def test_tasks_with_hidden_tests_need_no_answer(bench: Bench) -> None:
    (taken,) = bench.take_rows([TESTED], **BY_TESTS).questions
    assert (taken["domain"], taken["scorer"], taken["answers"]) == ("task", "workspace_tests", [])
    assert orjson.loads(taken["payload"]) == {"files": TESTED["files"], "tests": TESTED["tests"]}


def test_task_whose_tests_cannot_run_is_quarantined_without_a_quote(bench: Bench) -> None:
    rows = [TESTED, TESTED | {"tests": {"files": {"/secret": ""}, "command": "pytest"}}, TESTED | {"tests": None}]
    result = bench.take_rows(rows, **BY_TESTS)
    assert result.reasons == [(2, "bad_payload"), (3, "bad_payload")]
    assert result.quarantine[0]["detail"] == "the payload cannot be used: path 1 of tests.files is absolute"
    assert "secret" not in json.dumps(result.quarantine, default=str)


def test_tasks_that_the_outcome_of_tools_decides_need_no_answer_and_no_domain(bench: Bench) -> None:
    (taken,) = bench.take_rows(
        [{"question": "Sell.", "stock": 3}], payload=["stock"], scorer="outcome", domain=None
    ).questions
    assert (taken["domain"], taken["scorer"], taken["answers"]) == ("task", "outcome", [])


def test_scorer_of_hidden_tests_needs_them_in_the_payload(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="scorer = 'workspace_tests' reads hidden tests; set payload"):
        bench.take_rows([TESTED], scorer="workspace_tests")


def test_equal_questions_of_two_environments_are_two_tasks(bench: Bench) -> None:
    path = write_jsonl(bench.folder / "q.jsonl", [GOOD])
    source = {"path": path, "dataset": "qa-set", "domain": "qa"}
    known = {"default": {}, "other": {}}
    other = {**source, "dataset": "other-set", "environment": "other"}
    result = bench.take(source, other, source, environments=known)
    assert [row["environment"] for row in result.questions] == ["default", "other"]
    assert result.questions[0]["question_key"] == content_key(str(GOOD["question"]), ["Ilme", "the Ilme"], [])
    assert len({row["question_key"] for row in result.questions}) == 2
    assert [reason for _, reason in result.reasons] == ["exact_duplicate"]
    assert (result.metrics["environment.default"], result.metrics["environment.other"]) == (1, 1)
    alone = Bench(bench.folder / "alone").take(source)
    assert not any(name.startswith("environment.") for name in alone.metrics)
