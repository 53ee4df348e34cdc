"""Hidden payloads: how they are read and stored, that they tell tasks apart, and that nothing shows them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plain_duplicates import PlainIndex
from support.tables.questions_bench import Bench, write_jsonl

from treadle.core.errors import ConfigError, StageFailed
from treadle.datagen.questions.duplicates import DuplicateIndex
from treadle.datagen.questions.layouts import RowRejected
from treadle.datagen.questions.payload import canonical, texts_in
from treadle.datagen.questions.rows import content_key

SECRET = "canary-7041"
TEXT = "I think of a number from 1 to 500. Which one?"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=3)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@given(OBJECTS)
def test_payload_is_stored_as_json_that_reads_back_as_it_was(payload: dict[str, Any]) -> None:
    text = canonical(payload, 10**6)
    assert orjson.loads(text) == json.loads(text) == payload
    assert canonical(dict(reversed(payload.items())), 10**6) == text


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (float("nan"), "'x' has NaN or an infinity"),
        ([1, {"a": float("inf")}], "'x' has NaN or an infinity"),
        (2**64, "'x' has an integer beyond 64 bits; write it as text"),
        ("\ud800", "'x' has a text with a lone surrogate"),
        ({"\ud800": 1}, "'x' has a text with a lone surrogate"),
        ({1: 2}, "'x' has an object with a key that is not text"),
        (b"ab", "'x' has a value of type bytes, which JSON does not have"),
        (Path("a"), "which JSON does not have; write it as text"),
    ],
)
def test_payload_that_json_does_not_have_is_rejected(value: Any, match: str) -> None:
    with pytest.raises(RowRejected, match=match) as error:
        canonical({"x": value}, 10**6)
    assert error.value.reason == "bad_payload"


def test_payload_may_be_nested_as_deeply_as_its_readers_take() -> None:
    value: Any = 1
    for _ in range(199):
        value = [value]
    assert orjson.loads(canonical({"x": value}, 10**6)) == {"x": value}
    with pytest.raises(RowRejected, match="more than 200 nested levels"):
        canonical({"x": [[value]]}, 10**6)


def test_payload_columns_become_the_payload_and_no_other_field(bench: Bench) -> None:
    row = {"question": TEXT, "answer": "7", "secret": 7, "tests": [{"in": "a", "out": None}], "level": 3}
    (taken,) = bench.take_rows([row], payload=["tests", "secret"]).questions
    assert taken["payload"] == '{"secret":7,"tests":[{"in":"a","out":null}]}'
    assert taken["meta"] == '{"level": 3}'
    assert bench.take_rows([row]).questions[0]["payload"] == "{}"


def test_payload_of_parquet_is_that_of_json(bench: Bench) -> None:
    rows = [
        {"question": TEXT, "answer": "7", "tests": [{"in": "a", "out": 1.5}], "secret": number} for number in (1, 2)
    ]
    lines = bench.take_rows(rows, payload=["secret", "tests"]).questions
    pq.write_table(pa.Table.from_pylist(rows), bench.folder / "q.parquet")
    source = {"path": bench.folder / "q.parquet", "domain": "qa", "payload": ["secret", "tests"]}
    table = bench.take(source).questions
    assert [row["payload"] for row in table] == [row["payload"] for row in lines]
    assert [row["question_key"] for row in table] == [row["question_key"] for row in lines]


def test_hidden_columns_are_not_read_as_anything_else(bench: Bench) -> None:
    row = {"question": TEXT, "answer": "7", "choices": ["a", "b"], "passage": "x " * 40, "image": "p.png", "split": "t"}
    hidden = ["choices", "passage", "image", "split"]
    (taken,) = bench.take_rows([row], payload=hidden).questions
    assert (taken["question"], taken["choices"], taken["meta"]) == (TEXT, [], "{}")
    assert set(orjson.loads(taken["payload"])) == set(hidden)


def test_row_without_a_payload_column_is_quarantined(bench: Bench) -> None:
    rows = [{"question": TEXT, "answer": "7", "secret": None}, {"question": "Why?", "answer": "7"}]
    result = bench.take_rows(rows, payload=["secret"])
    assert result.reasons == [(2, "missing_field")]
    assert result.quarantine[0]["detail"].startswith("the row has no field 'secret', which")
    assert result.questions[0]["payload"] == '{"secret":null}'


def test_long_payload_is_quarantined(bench: Bench) -> None:
    path = write_jsonl(bench.folder / "q.jsonl", [{"question": TEXT, "answer": "7", "s": "x" * n} for n in (12, 13)])
    result = bench.take({"path": path, "domain": "qa", "payload": ["s"]}, max_payload_chars=20)
    assert result.reasons == [(2, "too_long")]
    assert result.quarantine[0]["detail"] == "the payload has 21 characters; the limit is 20"


def test_keys_without_payload_are_those_of_questions() -> None:
    assert content_key("Why?", ["a"], []) == "85a1e7abe0b7e87e"
    keys = {
        content_key("Why?", ["a"], []),
        content_key("Why?", ["a"], [], payload='{"x":1}'),
        content_key("Why?", ["a"], [], payload='{"x":2}'),
        content_key("Why?", ["a"], [], kind="guess"),
        content_key("Why?", ["a"], [], kind="guess", payload='{"x":1}'),
    }
    assert len(keys) == 5


def test_tasks_that_share_a_text_stay_apart_by_their_payloads(bench: Bench) -> None:
    rows = [{"question": TEXT, "answer": "x", "secret": number} for number in range(500)]
    result = bench.take_rows([*rows, rows[3]], payload=["secret"])
    assert len({row["question_key"] for row in result.questions}) == len(result.questions) == 500
    assert result.reasons == [(501, "exact_duplicate")]
    assert result.quarantine[0]["detail"] == f"repeats question {result.questions[3]['question_key']}"


def test_held_out_share_of_tasks_with_one_text_is_drawn_by_payload(bench: Bench) -> None:
    path = write_jsonl(bench.folder / "q.jsonl", [{"question": TEXT, "answer": "x", "s": n} for n in range(400)])
    result = bench.take({"path": path, "domain": "qa", "payload": ["s"]}, heldout_share=0.25)
    assert 60 <= result.metrics["split.heldout"] <= 140


STORY = (
    "A keeper of the old tower at the end of the harbour writes down every boat that passes on the first day. How many "
    "boats does the keeper write down, if he never misses one of all the boats that pass the harbour?"
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([STORY, STORY.upper(), "Please answer: " + STORY, STORY.replace("tower", "hut"), "Why?"]),
            st.sampled_from([["1"], ["2"], ["1", "2"], []]),
            st.booleans(),
            st.sampled_from(["{}", '{"x":1}', '{"x":2}']),
        ),
        max_size=14,
    )
)
def test_duplicates_are_those_among_the_questions_of_one_payload(asked: list[tuple[str, list[str], bool, str]]) -> None:
    index, plain = DuplicateIndex(), {payload: PlainIndex(0.9) for *_, payload in asked}
    for number, (text, answers, heldout, payload) in enumerate(asked):
        found = index.add(str(number), text, answers, heldout=heldout, payload=payload)
        # Without answers two tasks have one in common: that there is none.
        expected = plain[payload].add(str(number), text, answers or [""], heldout=heldout)
        assert (found and (found.kind, found.key, found.same_answers)) == (expected and expected[:3])


def test_tasks_that_share_a_text_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    index = DuplicateIndex()
    monkeypatch.setattr(index, "_similarity", lambda *_: pytest.fail("two tasks were compared"))
    monkeypatch.setattr(index._buckets, "keys", lambda *_: pytest.fail("a task was put in buckets"))
    for number in range(2_000):
        assert index.add(str(number), STORY, [], payload=f'{{"x":{number}}}') is None


def test_texts_in_a_payload_are_in_the_order_of_its_names() -> None:
    assert texts_in('{"b":["x",{"d":"y","c":"z"}],"a":"w","e":1}') == ["w", "x", "z", "y"]


@pytest.mark.parametrize(
    "hidden",
    [
        "Who built the old Vorna bridge below the town?",
        {"deep": [1, {"er": "Tell me: who built the old Vorna bridge below the town?"}]},
        ["Who built the old Vorna", "bridge below the town?"],
    ],
)
def test_text_in_the_payload_contaminates_a_training_task(bench: Bench, hidden: Any) -> None:
    asked = "Who built the old Vorna bridge below the town?"
    benchmark = write_jsonl(bench.folder / "bench.jsonl", [{"question": asked}])
    rows = [
        {"question": TEXT, "answer": "x", "s": split, "hidden": value}
        for split, value in (("train", hidden), ("test", hidden), ("train", "Who built the new Tesk bridge?"))
    ]
    path = write_jsonl(bench.folder / "q.jsonl", rows)
    result = bench.take(
        {"path": path, "domain": "qa", "split_field": "s", "payload": ["hidden"]},
        decontaminate=[{"path": benchmark, "dataset": "bench"}],
    )
    assert result.reasons == [(1, "contaminated")]
    assert "row 1: in the payload: " in result.quarantine[0]["detail"]


LEAKS: list[dict[str, Any] | bytes] = [
    {"question": "", "answer": "x", "s": SECRET},
    b'{"question": "Why?", "answer": "x", "s": {"deep": ["' + SECRET.encode() + b'", 99999999999999999999]}}',
    {"question": "Why?", "answer": "x", "s": SECRET, "split": "gold"},
    {"answer": "x", "s": SECRET},
    b'{"question": "Why?", "s": "' + SECRET.encode(),
    b'["' + SECRET.encode() + b'"]',
    b'{"s": "' + SECRET.encode() + b'\xe9"}',
    b'{"question": "Why?", "answer": "x", "s": ["' + SECRET.encode() + b'", NaN]}',
]


@pytest.mark.parametrize("row", LEAKS)
def test_nothing_shows_the_payload_of_a_rejected_row(
    bench: Bench, row: dict[str, Any] | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    good = {"question": TEXT, "answer": "x", "s": SECRET, "split": "train"}
    with caplog.at_level(logging.DEBUG):
        result = bench.take_rows([good, row], payload=["s"], split_field="split")
    assert len(result.quarantine) == 1
    assert SECRET not in json.dumps([result.quarantine, result.metrics]) + caplog.text
    assert "[payload]" in result.quarantine[0]["raw"]
    assert SECRET in result.questions[0]["payload"]
    files = [path for path in bench.folder.rglob("*") if path.is_file() and path.name != "q.jsonl"]
    assert {p.parent.parent.parent.name for p in files if SECRET.encode() in p.read_bytes()} <= {"questions"}


def test_unconfigured_split_column_is_not_reported_from_the_payload(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.take_rows([{"question": TEXT, "answer": "x", "split": SECRET}], payload=["split"])
    assert "split" not in caplog.text


def test_error_of_a_source_shows_no_payload(bench: Bench) -> None:
    with pytest.raises(StageFailed) as error:
        bench.take_rows([{"question": "", "answer": "x", "s": SECRET}], payload=["s"])
    assert SECRET not in str(error.value)
    (list_of_rows,) = bench.folder.rglob("unusable_rows.jsonl")
    assert SECRET not in list_of_rows.read_text() and "[payload]" in list_of_rows.read_text()


def test_row_without_answer_is_a_task_where_none_is_needed(bench: Bench) -> None:
    rows: list[dict[str, Any] | bytes] = [
        {"question": "Build it."},
        {"question": "Build two.", "answer": None},
        {"question": "Build three.", "answer": ["x"]},
        {"question": "Choose.", "choices": ["x", "y"]},
        {"question": "Choose one.", "choices": ["x", "y"], "answer": "B"},
        {"question": "Build four.", "answer": {"a": 1}},
    ]
    path = write_jsonl(bench.folder / "q.jsonl", rows)
    result = bench.take({"path": path}, environments={"default": {"needs_answers": False, "kind": "build"}})
    assert [(row["domain"], row["answers"]) for row in result.questions] == [
        ("task", []), ("task", []), ("task", ["x"]), ("task", []), ("choice", ["B"]),
    ]  # fmt: skip
    assert [row["choices"] for row in result.questions[3:]] == [["x", "y"]] * 2
    assert result.reasons == [(6, "wrong_type")]
    assert result.questions[0]["question_key"] == content_key("Build it.", [], [], kind="build")


def test_configured_domain_of_a_task_is_kept(bench: Bench) -> None:
    path = write_jsonl(bench.folder / "q.jsonl", [{"question": "Build it."}])
    (task,) = bench.take({"path": path, "domain": "math"}, environments={"default": {"needs_answers": False}}).questions
    assert (task["domain"], task["answers"]) == ("math", [])


def test_domain_task_needs_an_environment_that_takes_tasks(bench: Bench) -> None:
    with pytest.raises(StageFailed, match="domain task needs an environment that scores without gold answers"):
        bench.take_rows([{"question": "Build it.", "answer": "x"}], domain="task")


def test_any_domain_will_do_if_a_scorer_is_named(bench: Bench) -> None:
    (taken,) = bench.take_rows([{"question": "Rhyme on May.", "answer": "day"}], domain="poetry", scorer="qa").questions
    assert (taken["domain"], taken["scorer"]) == ("poetry", "qa")
    with pytest.raises(ConfigError, match="domain 'poetry' of data set 'qa-set' has no scorer of its own, only math"):
        bench.take_rows([{"question": "Rhyme on June.", "answer": "moon"}], domain="poetry")
    with pytest.raises(ConfigError, match="domain"):
        bench.take_rows([{"question": "Rhyme on June.", "answer": "moon"}], domain="Poetry!", scorer="qa")


def test_domain_is_needed_where_answers_are(bench: Bench) -> None:
    path = write_jsonl(bench.folder / "mine.jsonl", [{"question": "Build it."}])
    with pytest.raises(ConfigError, match="domain of data set 'mine' is not known"):
        bench.take({"path": path})
