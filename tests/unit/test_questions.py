"""The stage `questions`: what is taken in, and where each row goes that is not."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from treadle.core.config import semantic_dump, validate
from treadle.core.errors import ConfigError, DataError, StageFailed
from treadle.core.execute import execute, state_of
from treadle.core.inputs import read_rows
from treadle.core.runs import Run
from treadle.core.stage import Address, Instance
from treadle.datagen.question_rows import content_key
from treadle.datagen.question_sources import QuestionsSettings, SourceSettings
from treadle.datagen.questions import QUESTIONS_STAGE
from treadle.flows.warnings import show_warnings

GOOD = {"question": "Which river flows through Vorna?", "answer": ["Ilme", "the Ilme"]}


def write_jsonl(path: Path, rows: Sequence[dict[str, Any] | bytes]) -> Path:
    lines = [row if isinstance(row, bytes) else orjson.dumps(row) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


class Result:
    """Tables and metrics of one executed stage."""

    def __init__(self, run: Run) -> None:
        record = run.record(Address(1, "questions"))
        assert record is not None
        self.metrics = record.metrics
        self.questions = list(run.rows(record.outputs["questions"]).rows())
        self.quarantine = list(run.rows(record.outputs["quarantine"]).rows())

    @property
    def reasons(self) -> list[tuple[int, str]]:
        return [(row["source_row"], row["reason"]) for row in self.quarantine]


class Bench:
    """A folder with a run in which the stage can be executed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = Run.create(folder / "root", "r", {}, {})

    def instance(self, *sources: dict[str, Any], **settings: Any) -> Instance:
        settings.setdefault("max_error_rate", 1.0)
        tree = {"sources": list(sources), **settings}
        built = validate(QuestionsSettings, tree).with_digests()
        return Instance(address=Address(1, "questions"), stage=QUESTIONS_STAGE, settings=built)

    def take(self, *sources: dict[str, Any], **settings: Any) -> Result:
        execute(self.instance(*sources, **settings), self.run)
        return Result(self.run)

    def take_rows(self, rows: Sequence[dict[str, Any] | bytes], **source: Any) -> Result:
        path = write_jsonl(self.folder / "q.jsonl", rows)
        return self.take({"path": path, "dataset": "qa-set", "domain": "qa", **source})


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_question_keeps_its_fields_and_where_it_came_from(bench: Bench) -> None:
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
        }
    ]
    assert result.metrics["questions"] == result.metrics["dataset.qa-set"] == 1


def test_the_key_does_not_depend_on_the_unicode_form_and_depends_on_everything_else() -> None:
    key = content_key("Caf\u00e9?", ["a"], [])
    assert len(key) == 16
    assert content_key(" Cafe\u0301? ", ["a"], []) == key
    assert len({key, content_key("Caf\u00e9?", ["b"], []), content_key("Caf\u00e9?", ["a"], ["x", "y"])}) == 3


BAD_ROWS: list[tuple[str, dict[str, Any] | bytes, str, str]] = [
    ("no question", {"answer": "x"}, "missing_field", "no question in field 'question' or 'input'; it has 'answer'"),
    ("no answer", {"question": "Why?"}, "missing_field", "no answer in field 'answer'"),
    (
        "null question",
        {"question": None, "answer": "x"},
        "null_field",
        "question in field 'question' or 'input' is null",
    ),
    ("null answer", {"question": "Why?", "answer": None}, "null_field", "answer in field 'answer' is null"),
    ("blank question", {"question": " \t", "answer": "x"}, "empty_question", "empty"),
    ("blank answer", {"question": "Why?", "answer": "  "}, "empty_answer", "not empty"),
    ("no answers in the list", {"question": "Why?", "answer": []}, "empty_answer", "not empty"),
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
    ("no such option", {"question": "Why?", "answer": "C", "c": ["x", "y"]}, "bad_answer", "'C' is none of the 2"),
    ("strange split", {"question": "Why?", "answer": "x", "s": "gold"}, "bad_split", "'gold' is not a split"),
]


@pytest.mark.covers("flywheel-32")
@pytest.mark.parametrize(("row", "reason", "detail"), [case[1:] for case in BAD_ROWS], ids=[c[0] for c in BAD_ROWS])
def test_a_bad_row_goes_to_quarantine_and_its_neighbours_are_read(
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


def test_a_line_too_long_for_memory_is_skipped_and_the_rest_read(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "q.jsonl", [GOOD, b"x" * 5_000, GOOD])
    rows = list(read_rows(path, max_row_bytes=1_000))
    assert [(row.number, row.reason) for row in rows] == [(1, ""), (2, "too_long"), (3, "")]
    assert len(rows[1].raw) <= 2_000


def test_a_byte_order_mark_blank_lines_and_windows_line_ends_are_harmless(bench: Bench) -> None:
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
def test_answers_become_a_list_of_different_texts(bench: Bench, value: Any, answers: list[str]) -> None:
    result = bench.take_rows([json.dumps({"question": "Why?", "answer": value}).encode()])
    assert result.questions[0]["answers"] == answers


@pytest.mark.covers("evaluation-5")
def test_the_answer_of_a_worked_solution_is_the_number_after_the_marker(bench: Bench) -> None:
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
    ("svamp", {"Body": "A has 3.", "Question": "How many?", "Answer": 3.0}, "A has 3. How many?", ["3.0"], 0, "math"),
    ("asdiv", {"body": "B.", "question": "Q?", "answer": "9 (apples)"}, "B. Q?", ["9"], 0, "math"),
    ("mawps", {"input": "Q", "target": 4}, "Q", ["4"], 0, "math"),
    ("minerva_math", {"problem": "P", "solution": r"so \boxed{x^{2}}"}, "P", ["x^{2}"], 0, "math"),
    ("olympiadbench", {"question": "P", "final_answer": ["$1,2$"]}, "P", ["$1,2$"], 0, "math"),
    ("2wiki", {"question": "Q", "answer": ["a", "b"]}, "Q", ["a", "b"], 0, "qa"),
    ("simpleqa", {"question": "Q", "answer": ["a"]}, "Q", ["a"], 0, "qa"),
    ("gaia", {"Question": "Q", "answer": "1, 2"}, "Q", ["1, 2"], 0, "qa"),
    ("gpqa", {"question": "Q (A) x (B) y", "answer": "(B) y"}, "Q (A) x (B) y", ["(B) y"], 0, "choice"),
    ("csbench", {"Question": "Q", "Format": "Assertion", "Answer": True}, "Q", ["True"], 0, "qa"),
    ("csbench", {"Question": "Q", "A": "w", "B": "x", "C": "y", "D": "z", "Answer": "C"}, "Q", ["C"], 4, "choice"),
    ("mmlu-pro", {"question": "Q", "options": list("abcdefghij"), "answer": "J"}, "Q", ["J"], 10, "choice"),
    ("mmlu", {"question": "Q", "choices": ["w", "x", "y"], "answer": 2}, "Q", ["C"], 3, "choice"),
    ("own", {"input": "Q", "answer": "a"}, "Q", ["a"], 0, "qa"),
]


@pytest.mark.covers("evaluation-29")
@pytest.mark.parametrize(
    ("dataset", "row", "question", "answers", "num_choices", "domain"),
    BENCHMARK_ROWS,
    ids=[f"{case[0]}-{case[5]}-{case[4]}" for case in BENCHMARK_ROWS],
)
def test_the_fields_of_known_benchmarks_are_known(
    bench: Bench, dataset: str, row: dict[str, Any], question: str, answers: list[str], num_choices: int, domain: str
) -> None:
    path = write_jsonl(bench.folder / dataset / "test.jsonl", [row])
    (taken,) = bench.take({"path": path, "dataset": dataset}, domains={"own": "qa"}).questions
    assert (taken["question"], taken["answers"], taken["domain"]) == (question, answers, domain)
    assert len(taken["choices"]) == num_choices


def test_json_arrays_parquet_and_dataset_folders_give_the_same_questions(bench: Bench) -> None:
    rows = [{"question": f"Which river flows through {town}?", "answer": ["Ilme"]} for town in ("Vorna", "Tesk")]
    (bench.folder / "a.json").write_bytes(orjson.dumps(rows))
    write_jsonl(bench.folder / "lines.json", rows)
    pq.write_table(pa.Table.from_pylist(rows), bench.folder / "a.parquet")
    folder = bench.folder / "folder"
    write_jsonl(folder / "train.jsonl", rows)
    keys = [
        [row["question_key"] for row in bench.take({"path": bench.folder / name, "domain": "qa"}).questions]
        for name in ("a.json", "lines.json", "a.parquet", "folder")
    ]
    assert len(keys[0]) == 2
    assert keys == [keys[0]] * 4


def test_a_parquet_text_that_is_not_utf8_costs_one_row(bench: Bench) -> None:
    texts = pa.array([b"Why?", b"Caf\xe9?", b"How?"], pa.binary()).view(pa.string())
    table = pa.table({"question": texts, "answer": ["1", "2", "3"]})
    pq.write_table(table, bench.folder / "a.parquet")
    result = bench.take({"path": bench.folder / "a.parquet", "domain": "qa"})
    assert ([row["source_row"] for row in result.questions], result.reasons) == ([1, 3], [(2, "not_utf8")])


@pytest.mark.covers("flywheel-32")
@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("none.jsonl", None, "none.jsonl does not exist; correct its path"),
        ("empty.jsonl", b"", "empty.jsonl holds no rows; give another file"),
        ("blank.jsonl", b"\n \n", "blank.jsonl holds no rows"),
        ("empty.json", b"[]", "empty.json holds no rows"),
        ("broken.json", b'[{"question": ', "broken.json is not valid JSON"),
        ("latin.json", b'[{"question": "\xe9"}]', "latin.json is not UTF-8 at byte 16"),
        ("broken.parquet", b"PAR1 and nothing else", "broken.parquet is not a readable parquet file"),
        ("a.txt", b"{}", "a.txt: its format cannot be told from '.txt'"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_what_to_do(
    bench: Bench, name: str, content: bytes | None, match: str
) -> None:
    if content is not None:
        (bench.folder / name).write_bytes(content)
    with pytest.raises(DataError, match=match):
        bench.take({"path": bench.folder / name, "dataset": "d", "domain": "qa"})


def test_a_source_without_one_usable_row_fails_the_stage_and_names_the_first(bench: Bench) -> None:
    write_jsonl(bench.folder / "good.jsonl", [GOOD])
    write_jsonl(bench.folder / "bad.jsonl", [{"query": "Why?", "answer": "x"}, {"query": "How?"}])
    sources = [{"path": bench.folder / f"{name}.jsonl", "domain": "qa"} for name in ("good", "bad")]
    with pytest.raises(
        StageFailed, match=r"no row of bad.jsonl can be used: 2 rows, 2 unusable .*first: row 1: .*'query'"
    ):
        bench.take(*sources)


def test_more_unusable_rows_than_allowed_fail_the_stage_unless_accepted(bench: Bench) -> None:
    path = write_jsonl(bench.folder / "q.jsonl", [GOOD, {"question": "Why?"}, b"{"])
    instance = bench.instance({"path": path, "domain": "qa"}, max_error_rate=0.5)
    with pytest.raises(StageFailed, match=r"2 of 3 question rows are unusable.*q.jsonl.*first: row 2"):
        execute(instance, bench.run)
    execute(instance, bench.run, accept_failures=True)
    assert Result(bench.run).reasons == [(2, "missing_field"), (3, "bad_json")]


def test_no_source_at_all_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"add a source under questions.sources"):
        QuestionsSettings().with_digests()


@pytest.mark.parametrize(
    ("tree", "match"),
    [
        ({"sources": [{}]}, "give either path or hub"),
        ({"sources": [{"path": "a.jsonl", "hub": "o/n"}]}, "give either path or hub"),
        ({"sources": [{"path": "x/mine.jsonl"}]}, "domain of data set 'mine' is not known; set domain"),
        ({"sources": [{"path": "gsm8k.jsonl", "anwser_field": "a"}]}, "did you mean 'answer_field'"),
    ],
)
def test_a_wrong_source_is_refused_before_anything_is_read(tree: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        validate(QuestionsSettings, tree)


def test_an_edited_file_is_read_again_and_a_moved_one_is_not(bench: Bench) -> None:
    path = write_jsonl(bench.folder / "a" / "q.jsonl", [GOOD])
    source = {"path": path, "domain": "qa"}
    bench.take(source)
    moved = {**source, "path": write_jsonl(bench.folder / "b" / "q.jsonl", [GOOD])}
    assert state_of(bench.instance(moved), bench.run) == "reuse"
    write_jsonl(path, [{**GOOD, "answer": "Orre"}])
    assert state_of(bench.instance(source), bench.run) == "run"
    assert bench.take(source).questions[0]["answers"] == ["Orre"]


def test_a_file_edited_after_its_digest_was_taken_is_refused(bench: Bench) -> None:
    path = write_jsonl(bench.folder / "q.jsonl", [GOOD])
    instance = bench.instance({"path": path, "domain": "qa"})
    write_jsonl(path, [GOOD, GOOD])
    with pytest.raises(DataError, match="changed while the run was starting"):
        execute(instance, bench.run)


def test_sources_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    paths = [write_jsonl(tmp_path / name / "test.jsonl", [GOOD]) for name in ("nq", "gsm8k")]
    paths.append(write_jsonl(tmp_path / "own.jsonl", [GOOD]))
    settings = QuestionsSettings(
        sources=tuple(SourceSettings(path=path, dataset="nq") for path in paths),
        decontaminate=(SourceSettings(path=paths[0], dataset="nq"),),
    ).with_digests()
    names = [source.name for source in (*settings.sources, *settings.decontaminate)]
    assert names == ["nq/test.jsonl", "gsm8k/test.jsonl", "own.jsonl", "nq/test.jsonl#2"]
    assert str(tmp_path) not in json.dumps(semantic_dump(settings))


def test_rows_of_a_mixed_file_find_their_own_data_set_and_domain(bench: Bench) -> None:
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


def test_only_the_first_rows_are_read_where_a_limit_is_set(bench: Bench) -> None:
    result = bench.take_rows([GOOD, {"question": "Why?", "answer": "x"}, b"{"], limit=2)
    assert (result.metrics["rows_read"], result.metrics["quarantined"]) == (2, 0)


def test_the_split_comes_from_the_source_then_the_row_then_the_share(bench: Bench) -> None:
    rows = [{"question": f"Item {number}?", "answer": "x", "s": s} for number, s in enumerate(["train", "test", None])]
    assert [row["split"] for row in bench.take_rows(rows, split_field="s").questions] == ["train", "heldout", "train"]
    assert {row["split"] for row in bench.take_rows(rows, split="heldout").questions} == {"heldout"}


def test_a_column_of_splits_that_nobody_named_is_told_once(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": f"Item {n}?", "answer": "x", "Split": s} for n, s in enumerate(["train", "test", "dev"])]
    handler = show_warnings()
    try:
        bench.take_rows(rows)
        (line,) = capsys.readouterr().err.splitlines()
        for settings in ({"split_field": "Split"}, {"split": "train"}):
            bench.take_rows(rows, **settings)
        bench.take_rows(rows[:1])
        assert not capsys.readouterr().err
    finally:
        logging.getLogger("treadle").removeHandler(handler)
    assert line == (
        "warning: questions of q.jsonl are trained on whatever their column 'Split' says (row 2: 'test'): "
        "set split_field = 'Split', or split = \"train\" if that is meant"
    )


def test_a_share_is_held_out_by_content_alone(bench: Bench) -> None:
    rows = [{"question": f"Item {number}?", "answer": str(number)} for number in range(400)]
    path = write_jsonl(bench.folder / "q.jsonl", rows)
    back = write_jsonl(bench.folder / "back.jsonl", rows[::-1])
    held = [
        {
            row["question"]
            for row in bench.take({"path": p, "domain": "qa"}, heldout_share=0.25).questions
            if row["split"] == "heldout"
        }
        for p in (path, back)
    ]
    assert held[0] == held[1]
    assert 60 <= len(held[0]) <= 140


def test_duplicates_are_counted_and_name_what_they_repeat(bench: Bench) -> None:
    long = " ".join(f"The keeper of the tower wrote down how many boats passed {n} miles off." for n in range(9))
    rows = [
        {"question": long, "answer": "9"},
        {"question": long.upper(), "answer": "9"},
        {"question": long, "answer": "10"},
        {"question": "Please answer: " + long, "answer": "9"},
    ]
    result = bench.take_rows(rows)
    key = result.questions[0]["question_key"]
    assert result.reasons == [(2, "exact_duplicate"), (3, "exact_duplicate"), (4, "near_duplicate")]
    assert [row["detail"] for row in result.quarantine[:2]] == [
        f"repeats question {key}",
        f"repeats question {key}, but with other answers",
    ]
    assert (result.metrics["reason.exact_duplicate"], result.metrics["reason.near_duplicate"]) == (2, 1)


def test_training_questions_of_a_benchmark_are_taken_out_and_held_out_ones_stay(bench: Bench) -> None:
    benchmark = write_jsonl(bench.folder / "bench.jsonl", [{"other": 1}, {"question": "Who built the Vorna bridge?"}])
    rows = [
        {"question": "who built the  Vorna bridge", "answer": "Ann", "s": "train"},
        {"question": "Who built the Vorna bridge? ", "answer": "Ann", "s": "test"},
        {"question": "Who built the Tesk bridge?", "answer": "Ben", "s": "train"},
    ]
    path = write_jsonl(bench.folder / "q.jsonl", rows)
    result = bench.take(
        {"path": path, "domain": "qa", "split_field": "s"}, decontaminate=[{"path": benchmark, "dataset": "bench"}]
    )
    assert result.reasons == [(1, "contaminated")]
    assert result.quarantine[0]["detail"] == "question of benchmark bench.jsonl row 2: equals it"
    assert result.metrics["benchmark_rows_skipped"] == 1
    assert [row["source_row"] for row in result.questions] == [2, 3]


def test_a_benchmark_without_questions_is_refused(bench: Bench) -> None:
    benchmark = write_jsonl(bench.folder / "bench.jsonl", [{"text": "Why?"}])
    path = write_jsonl(bench.folder / "q.jsonl", [GOOD])
    with pytest.raises(DataError, match=r"benchmark bench.jsonl has no row with a question; set question_field"):
        bench.take({"path": path, "domain": "qa"}, decontaminate=[{"path": benchmark}])


def test_other_fields_are_kept_as_json_that_any_reader_takes(bench: Bench) -> None:
    row = b'{"question": "Why?", "answer": "x", "a": NaN, "b": "\\ud800", "c": {"d": [1, 99999999999999999999]}}'
    (question,) = bench.take_rows([row]).questions
    assert orjson.loads(question["meta"]) == {"a": None, "b": "?", "c": {"d": [1, "99999999999999999999"]}}


def test_a_hub_data_set_that_cannot_be_reached_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    settings = QuestionsSettings(sources=(SourceSettings(hub="org/none", domain="qa"),))
    with pytest.raises(DataError, match="hub data set org/none cannot be looked up .*or set revision"):
        settings.with_digests()
