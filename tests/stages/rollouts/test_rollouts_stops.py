"""The stage `rollouts` against servers that keep, leave out or ignore stop strings, on every route."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.rollouts_bench import ANSWER, Bench, corpus, server, work_requests
from support.servers.hosted_service import agent_requests, turn_of
from support.servers.scripted_server import Item, RecordedRequest, Reply, ScriptedServer, Stops
from support.tables.given_questions import TOKENIZER

from treadle.core.errors import ConfigError
from treadle.core.runs.records import StageRecord
from treadle.environments.diagnosis.reading import diagnoses_of

SEARCH = "<think>s</think><search>moss</search>"
PROGRAM = "<think>p</think><python>print(6 * 7)</python>"
TURNS = [SEARCH, PROGRAM, ANSWER]
ROUTES: dict[str, dict[str, Any]] = {
    "ids": {"token_ids": "required"},
    "text": {"tokenizer": None},
    "chat": {"api": "chat", "tokenizer": None},
}


def in_turn(request: RecordedRequest) -> Item:
    if request.messages is not None:
        number = turn_of(request)
    else:
        number = request.text.rpartition("assistant")[2].count("<result>")
    return TURNS[number] + " and on it goes <search>x</search>"


def tools(folder: Path) -> dict[str, Any]:
    return {
        "search": {"enabled": True, "corpus": [str(corpus(folder))], "cache_folder": str(folder)},
        "python": {"enabled": True, "sandbox": {"packages": [], "interpreter": sys.executable, "pool_size": 1}},
    }


def stopping(stops: Stops, **options: Any) -> ScriptedServer:
    return ScriptedServer(in_turn, codec=TOKENIZER, max_model_len=32768, stops=stops, **options)


async def roll_out(folder: Path, stops: Stops, route: str) -> tuple[StageRecord, dict[str, Any]]:
    folder.mkdir()
    bench = Bench(folder / "root", ["Question 0?"])
    async with stopping(stops) as scripted:
        record = await bench.make(scripted.url, model=ROUTES[route], environment=tools(folder))
    (row,) = bench.rows(record)
    return record, row


@pytest.mark.parametrize("route", ROUTES)
async def test_rows_are_equal_however_the_server_treats_stop_strings(tmp_path: Path, route: str) -> None:
    found = {stops: await roll_out(tmp_path / stops, stops, route) for stops in ("kept", "named", "dropped", "ignored")}
    kept = found["kept"][1]
    assert kept["status"] == "answered" and json.loads(kept["tool_calls"])[1]["status"] == "ok"
    for stops, (record, row) in found.items():
        same = [name for name in kept if name not in ("samples", "segments", "completion_tokens")]
        same.remove("prompt_tokens")
        assert {name: row[name] for name in same} == {name: kept[name] for name in same}, stops
        kinds = [[(one["kind"], one["text"]) for one in json.loads(each["segments"])] for each in (row, kept)]
        assert kinds[0] == kinds[1]
        (sample,), (other,) = row["samples"], kept["samples"]
        assert sample["prompt_ids"] == other["prompt_ids"] and len(sample["turn_starts"]) == len(other["turn_starts"])
        assert [span["role"] for span in sample["spans"]] == [span["role"] for span in other["spans"]]
        # The record counts how often a marker was restored.
        assert record.metrics.get("odd_marker_restored", 0) == (3 if stops in ("named", "dropped") else 0)
        if route == "ids":
            assert TOKENIZER.decode(sample["ids"]) == row["text"]
            marked = [id for id, origin in zip(sample["ids"], sample["origins"], strict=True) if origin == 2]
            # No id that was not sampled has a log-prob loss.
            closing = "</search></python></answer>" if stops in ("named", "dropped") else ""
            assert TOKENIZER.decode(marked).startswith(closing)


@pytest.mark.parametrize("route", ["ids", "text"])
async def test_server_with_undetectable_stops_is_refused_before_a_rollout(tmp_path: Path, route: str) -> None:
    bench = Bench(tmp_path / "root", ["Question 0?"])
    async with stopping("mute") as scripted:
        with pytest.raises(ConfigError, match="does not show whether answers end before or after a stop string"):
            await bench.make(scripted.url, model=ROUTES[route])
        assert work_requests(scripted) == []


@pytest.mark.parametrize(
    ("finish_reason", "status"), [("eos_token", "no_answer"), ("stop_sequence", "limit"), ("stop", "limit")]
)
async def test_turn_ended_inside_a_call_is_a_call_unless_the_server_distinguishes_it(
    tmp_path: Path, finish_reason: str, status: str
) -> None:
    reply = Reply("<search>moss", finish_reason=finish_reason)
    bench = Bench(tmp_path / "root", ["Question 0?", "Question 1?"])
    async with ScriptedServer(
        lambda request: reply if "Question 0?" in request.text else ANSWER,
        codec=TOKENIZER,
        max_model_len=32768,
        stops="dropped",
    ) as scripted:
        searching = {**tools(tmp_path), "python": {"enabled": False}}
        record = await bench.make(scripted.url, environment=searching)
    first, _ = bench.rows(record)
    assert first["status"] == status


async def test_stage_with_only_unreadable_replies_reports_causes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path / "root", ["Question 0?", "Question 1?"])
    async with server(lambda _: "The answer is forty-two.") as scripted:
        with caplog.at_level(logging.WARNING, "treadle"):
            record = await bench.make(scripted.url)
    (line,) = [each.getMessage() for each in caplog.records if "with an answer" in each.getMessage()]
    assert line.startswith("1/rollouts@base: 2 of 2 rollouts did not end with an answer (no_answer 2)")
    assert "\n" not in line
    (found,) = diagnoses_of(record, bench.run)
    assert (found.problem, found.endings) == ("no_answer", {"no_answer": 2})
    assert found.examples[0].text == "The answer is forty-two." and "<answer>" in found.asked and found.causes
    assert not any(cause in line for cause in found.causes), "the summary of the stage says why, once"


async def test_answer_cut_by_a_content_filter_has_its_own_status_and_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path / "root", ["Question 0?", "Question 1?"])
    filtered = Reply("<search>how to", finish_reason="content_filter")
    async with server(lambda request: filtered if "Question 0?" in request.text else ANSWER) as scripted:
        with caplog.at_level(logging.WARNING, "treadle"):
            record = await bench.make(scripted.url)
    first, second = bench.rows(record)
    assert (first["status"], first["text"], second["status"]) == ("filtered", "<search>how to", "answered")
    assert (record.metrics["status_filtered"], record.metrics["odd_content_filter"]) == (1, 1)
    assert any("1 answers were cut off by the service's content filter" in item.getMessage() for item in caplog.records)
    assert len(agent_requests(scripted)) == 2
