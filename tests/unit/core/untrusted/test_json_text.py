"""JSON of other programs: a value that the standard does not allow costs its own field, not the whole text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.engines.config import VllmServer
from treadle.core.engines.event_log import EventLog
from treadle.core.engines.serving import _number_type
from treadle.core.llm.failures import Failure, error_message
from treadle.core.llm.hosted import refused_keys
from treadle.core.llm.wire import parse_chat, parse_completion, parse_probe
from treadle.core.untrusted.input_files import read_rows
from treadle.core.untrusted.json_text import load_json
from treadle.datagen.questions.rows import RowRejected, parse_row
from treadle.datagen.questions.stage import QuestionsSettings
from treadle.retriever.answers import SEARCH, parse_documents
from treadle.retriever.dense.endpoint_encoder import _vectors
from treadle.sft.launch import TrainingStep
from treadle.web.provider_requests import failure_of as web_failure_of
from treadle.web.record.import_cache import read_search_cache
from treadle.web.types import SearchEntry

DIGITS = "7" * 5000
ODD = ["NaN", "-Infinity", "1e999", DIGITS, '"\\ud800"', '"\\udc00 \\ud83d\\ude00"', '{"a": 1, "a": NaN}']
"""Values that `orjson` refuses, and with them the whole text."""


def with_odd(text: str, odd: str) -> bytes:
    return text.replace("ODD", odd).encode()


COMPLETION = (
    '{"created": ODD, "usage": {"prompt_tokens": 3, "completion_tokens": 1, "cost": ODD},'
    ' "choices": [{"text": "x", "finish_reason": "stop", "logprobs": {"token_logprobs": [ODD]}, "token_ids": [1],'
    ' "prompt_token_ids": [1, 2], "message": {"content": "x", "audio": ODD}}]}'
)
READ: dict[str, tuple[Callable[[bytes], Any], str, Any]] = {
    "completion": (lambda data: parse_completion(data).token_ids, COMPLETION, (1,)),
    "probe": (lambda data: parse_probe(data).prompt_ids, COMPLETION, (1, 2)),
    "chat": (lambda data: parse_chat(data).text, COMPLETION, "x"),
    "refusal": (error_message, '{"error": {"message": "no such model", "code": ODD}}', "no such model"),
    "refused key": (
        lambda data: refused_keys(400, data),
        '{"error": {"message": "This is not supported", "param": "stop", "code": ODD}}',
        ("stop",),
    ),
    "hits": (
        lambda data: parse_documents(data, SEARCH)[0].contents,
        '[[{"id": "7", "contents": "x", "date": ODD}], [2.5]]',
        "x",
    ),
    "vectors": (lambda data: _vectors(data, 1).tolist(), '{"data": [{"index": 0, "embedding": [1], "x": ODD}]}', [[1]]),
    "web refusal": (
        lambda data: web_failure_of(429, {}, data).kind,
        '{"message": "Not enough credits", "left": ODD}',
        "quota",
    ),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd[:20])
@pytest.mark.parametrize("name", READ)
def test_unused_value_does_not_fail_an_answer(name: str, odd: str) -> None:
    read, text, expected = READ[name]
    assert read(with_odd(text, odd)) == expected


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (parse_completion, COMPLETION.replace('"text": "x"', '"text": ODD'), "no text"),
        (parse_completion, COMPLETION.replace('"prompt_tokens": 3', '"prompt_tokens": ODD'), "no token usage"),
        (parse_completion, COMPLETION.replace('"token_ids": [1]', '"token_ids": [ODD]'), "not a list of ids"),
        (lambda data: parse_documents(data, SEARCH), '[[{"id": "7", "contents": "x"}], [ODD]]', "score"),
        (lambda data: _vectors(data, 1), '{"data": [{"index": 0, "embedding": [ODD]}]}', "vectors"),
    ],
)
@pytest.mark.parametrize("odd", ["NaN", "-Infinity", "1e999", DIGITS], ids=lambda odd: odd[:20])
def test_required_value_that_is_not_a_number_is_malformed(
    read: Callable[[bytes], Any], text: str, said: str, odd: str
) -> None:
    with pytest.raises(Failure, match=said) as failed:
        read(with_odd(text, odd))
    assert failed.value.kind == "malformed"


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(), st.lists))
def test_any_json_written_by_python_is_read(value: Any) -> None:
    read = load_json(json.dumps(value).encode())
    assert json.dumps(read).replace("-0.0", "0.0") == json.dumps(value).replace("-0.0", "0.0")


@given(st.binary(max_size=40))
def test_invalid_json_is_refused_with_the_first_error(data: bytes) -> None:
    try:
        expected = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            load_json(data)
        except ValueError as error:
            assert isinstance(error, orjson.JSONDecodeError)
    else:
        assert load_json(data) == expected


def test_lone_surrogates_and_depth_affect_only_themselves() -> None:
    assert load_json(b'\xef\xbb\xbf["\\ud800x", "\\ud83d\\ude00", "\\\\ud800"]') == ["\ufffdx", "\U0001f600", "\\ud800"]
    assert load_json(b'["caf\xe9", NaN]')[0] == "caf\ufffd"
    kept = load_json(b'["\\ud800", "caf\xe9", "\\ufffd", "\\ud83d\\ude00"]', keep_surrogates=True)
    assert kept == ["\ud800", "caf\udce9", "\ufffd", "\U0001f600"]
    assert load_json(f"[{2**64}, NaN]".encode())[0] == float(2**64)
    with pytest.raises(ValueError):
        load_json(b"[" * 1_000_000)


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd[:20])
def test_search_cache_with_such_a_value_is_read(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "cache.json"
    text = '{"query": {"organic": [{"title": "T", "link": "https://a.example/", "rank": ODD}], "credits": ODD}}'
    path.write_bytes(with_odd(text, odd))
    (entry,) = read_search_cache(path, recorded_at=datetime(2026, 1, 1, tzinfo=UTC))
    assert isinstance(entry, SearchEntry) and [hit.title for hit in entry.hits] == ["T"]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd[:20])
def test_infinity_in_a_model_config_keeps_the_weight_types(tmp_path: Path, odd: str) -> None:
    (tmp_path / "config.json").write_bytes(with_odd('{"torch_dtype": "float32", "time_step_limit": [0.0, ODD]}', odd))
    assert _number_type(VllmServer(), str(tmp_path), "cpu") == "float32"


def test_training_step_with_nan_entropy_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    step = {"step": 1, "num_steps": 1, "loss": 0.5, "grad_norm": 1.0, "learning_rate": math.nan, "epoch": 1.0}
    path.write_text(json.dumps({"event": "step", **step, "seconds": 2.0}) + "\n")
    events = EventLog(path, TrainingStep)
    assert [event["event"] for event in events.new()] == ["step"]
    assert [done.loss for done in events.steps] == [0.5]


SETTINGS = QuestionsSettings.model_validate({"sources": [{"path": "q.jsonl", "domain": "qa"}]})


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd[:20])
@pytest.mark.parametrize("name", ["q.jsonl", "q.json"])
def test_question_is_read_regardless_of_unused_columns(tmp_path: Path, name: str, odd: str) -> None:
    row = '{"question": "Why?", "answer": 12, "weight": ODD, "more": {"list": [ODD]}}'
    (tmp_path / name).write_bytes(with_odd(f"[{row}]" if name == "q.json" else f"{row}\n", odd))
    (read,) = read_rows(tmp_path / name)
    question = parse_row(read, SETTINGS.sources[0], SETTINGS)
    assert question.answers == ("12",)
    orjson.loads(question.meta)


def test_parquet_question_is_read_regardless_of_unused_columns(tmp_path: Path) -> None:
    table = pa.table({"question": ["Why?"], "answer": ["x"], "weight": [math.nan], "limit": [-math.inf]})
    pq.write_table(table, tmp_path / "q.parquet")
    (read,) = read_rows(tmp_path / "q.parquet")
    assert parse_row(read, SETTINGS.sources[0], SETTINGS).answers == ("x",)


@pytest.mark.parametrize("odd", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize("column", ["question", "answer"])
def test_required_column_that_is_not_a_number_is_named(tmp_path: Path, column: str, odd: str) -> None:
    row = {"question": "Why?", "answer": "x"} | {column: "ODD"}
    (tmp_path / "q.jsonl").write_bytes(with_odd(json.dumps(row).replace('"ODD"', "ODD"), odd))
    (read,) = read_rows(tmp_path / "q.jsonl")
    with pytest.raises(RowRejected, match="of type float") as rejected:
        parse_row(read, SETTINGS.sources[0], SETTINGS)
    assert rejected.value.reason == "wrong_type"


def test_gold_answer_with_more_digits_than_python_parses_is_kept(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(f'{{"question": "How many?", "answer": {DIGITS}}}')
    (read,) = read_rows(tmp_path / "q.jsonl")
    settings = SETTINGS.model_copy(update={"max_answer_chars": 10_000})
    assert parse_row(read, SETTINGS.sources[0], settings).answers == (DIGITS,)
