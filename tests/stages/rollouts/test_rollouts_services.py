"""The stage `rollouts` between a model and a retrieval service: invented results, limits, time and overlap."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow.parquet as pq
import pytest
from support.rollouts.rollouts_bench import ANSWER, Bench, server
from support.servers.held_index import HeldIndex
from support.servers.scripted_server import Fault, Item, RecordedRequest, ScriptedServer
from support.servers.served_index import served
from support.tables.given_questions import GIVEN, TOKENIZER
from support.tables.score_tables import score_rows

from treadle.datagen.questions.tables import QUESTIONS

SEARCH = "<think>t</think><search>red</search>"
RESULT = "<result>Title 0\nred fox</result>"
STOPS = {"</python>", "</search>", "</answer>"}


def bench_of(folder: Path, num_questions: int = 6) -> Bench:
    return Bench(folder / "root", [f"Question {number}?" for number in range(num_questions)])


def index_of(folder: Path) -> HeldIndex:
    (folder / "index").mkdir()
    return HeldIndex(folder / "index", ["red fox", "blue fox"])


def searching_at(url: str) -> dict[str, Any]:
    return {"search": {"enabled": True, "service": {"endpoints": [{"url": url}]}}}


def said(request: RecordedRequest) -> str:
    """Return the text after the prompt."""
    return request.text.rpartition("assistant\n")[2]


def generations(scripted: ScriptedServer) -> list[RecordedRequest]:
    """All requests but those of the preflight, which ask for one token."""
    return [request for request in scripted.requests if request.body["max_tokens"] > 1]


@pytest.mark.covers("evaluation-14")
async def test_invented_result_is_cut_and_the_next_request_contains_only_the_real_one(tmp_path: Path) -> None:
    def reply(request: RecordedRequest) -> Item:
        return ANSWER if said(request) else f"{SEARCH}<result>invented</result> so it is <answer>fake</answer>"

    bench = bench_of(tmp_path)
    async with served(index_of(tmp_path)) as url, server(reply) as scripted:
        record = await bench.make(scripted.url, environment=searching_at(url), options={"max_questions": 1})
        first, second = generations(scripted)
    assert second.text == first.text + SEARCH + RESULT
    (row,) = bench.rows(record)
    assert (row["status"], row["text"]) == ("answered", SEARCH + RESULT + ANSWER)


@pytest.mark.covers("evaluation-15")
async def test_model_that_always_searches_gets_six_searches_and_a_notice(tmp_path: Path) -> None:
    bench, index = bench_of(tmp_path), index_of(tmp_path)
    async with served(index, cache_mib=0) as url, server(lambda _: SEARCH) as scripted:
        record = await bench.make(scripted.url, environment=searching_at(url), options={"max_questions": 1})
        assert len(generations(scripted)) == 8
    assert index.batches == [["red"]] * 6
    (row,) = bench.rows(record)
    assert row["status"] == "limit"
    assert [call["status"] for call in json.loads(row["tool_calls"])] == ["ok"] * 6 + ["refused"] * 2
    notice = "<result>The limit of search calls (6) is reached; this call was not run. Go on without it.</result>"
    assert row["text"] == (SEARCH + RESULT) * 6 + SEARCH + notice + SEARCH


@pytest.mark.covers("evaluation-16")
@pytest.mark.parametrize("ids", [True, False])
async def test_every_generation_stops_after_a_call_or_an_answer(tmp_path: Path, ids: bool) -> None:
    def reply(request: RecordedRequest) -> Item:
        return ANSWER if said(request).count("<result>") == 2 else SEARCH

    bench = bench_of(tmp_path)
    async with (
        served(index_of(tmp_path)) as url,
        ScriptedServer(reply, codec=TOKENIZER, ids=ids, max_model_len=32768) as scripted,
    ):
        await bench.make(scripted.url, environment=searching_at(url))
        asked = generations(scripted)
    assert len(asked) == 6 * 3
    assert all(set(request.body["stop"]) == STOPS for request in asked)
    assert all(request.body["include_stop_str_in_output"] is True for request in asked)


@pytest.mark.covers("evaluation-17")
async def test_unresponsive_model_costs_only_that_rollout_which_scores_zero(tmp_path: Path) -> None:
    def reply(request: RecordedRequest) -> Item:
        return Fault("hang") if "Question 0?" in request.text and request.body["max_tokens"] > 1 else ANSWER

    bench = bench_of(tmp_path)
    async with server(reply) as scripted:
        record = await bench.make(scripted.url, environment={"rollout_time_s": 3.0}, options={"max_concurrent": 2})
    rows = bench.rows(record)
    assert [row["status"] for row in rows] == ["timeout"] + ["answered"] * 5
    assert rows[0]["text"] == ""
    ended = pq.read_table(bench.run.storage.open(record.telemetry["rollout_telemetry"])).to_pylist()
    finished_at = {row["rollout_key"]: row["finished_at"] for row in ended}
    silent, another, *_ = (finished_at[row["rollout_key"]] for row in rows)
    assert another < silent, "it kept no other one waiting"
    asked = bench.run.record(GIVEN)
    assert asked is not None
    questions = list(bench.run.rows(asked.outputs["questions"]).rows(QUESTIONS.schema.names))
    scores, _ = score_rows(tmp_path / "scores", questions, rows)
    figures = ("prediction", "is_valid_answer", "correct", "score", "efficiency")
    assert [scores[0][name] for name in figures] == ["", False, False, 0.0, 0.0]
    assert {part["name"]: part["value"] for part in scores[0]["parts"]} == dict.fromkeys(
        ("acc", "em", "f1", "f1_legacy"), 0.0
    )
    assert [row["score"] for row in scores[1:]] == [1.0] * 5


@pytest.mark.covers("evaluation-19")
async def test_searches_of_all_active_rollouts_run_concurrently(tmp_path: Path) -> None:
    def reply(request: RecordedRequest) -> Item:
        return ANSWER if said(request) else f"<search>red {request.body['seed']}</search>"

    async def num_under_way() -> int:
        async with session.get(f"{url}/metrics") as response:
            lines = (await response.text()).splitlines()
        (waiting,) = [line for line in lines if line.startswith("treadle_retriever_waiting_queries ")]
        return int(float(waiting.split()[1])) + sum(map(len, index.batches))

    bench, index = bench_of(tmp_path, num_questions=20), index_of(tmp_path)
    index.held = True
    async with served(index) as url, server(reply) as scripted, aiohttp.ClientSession() as session:
        stage = asyncio.create_task(
            bench.make(scripted.url, environment=searching_at(url), options={"max_concurrent": 20})
        )
        while await num_under_way() < 20 and not stage.done():
            pass
        index.go.release(20)
        record = await stage
    assert [(row["status"], row["calls_requested"]) for row in bench.rows(record)] == [("answered", 1)] * 20
    assert sum(map(len, index.batches)) == 20
