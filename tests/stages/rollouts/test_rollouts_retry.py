"""Retrying only rollouts with a given status: `treadle stage 1/rollouts@base --retry timeout`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.rollouts.rollouts_bench import ANSWER, Bench, server, work_requests
from support.servers.scripted_server import Fault, Item, RecordedRequest

from treadle.cli.views.tables import timeouts_text
from treadle.core.errors import JobsPending, RunError
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord

QUESTIONS = [f"Question {number}?" for number in range(5)]
TIME = {"environment": {"rollout_time_s": 1.5}}


def endless(request: RecordedRequest) -> Item:
    """Never end the answer to two of the questions."""
    slow = "Question 1?" in request.text or "Question 3?" in request.text
    return Fault("hang") if slow and request.body["max_tokens"] > 1 else ANSWER


async def retried(bench: Bench, url: str, *statuses: str, **changes: Any) -> StageRecord:
    instance = bench.instance(url, **changes)
    return await asyncio.to_thread(execute, instance, bench.run, retry=frozenset(statuses))


def telemetry(bench: Bench, record: StageRecord) -> dict[str, dict[str, Any]]:
    rows = pq.read_table(bench.run.storage.open(record.telemetry["rollout_telemetry"])).to_pylist()
    return {row["rollout_key"]: row for row in rows}


async def test_only_timed_out_rollouts_are_retried(tmp_path: Path) -> None:
    bench, calm = Bench(tmp_path / "a", QUESTIONS), Bench(tmp_path / "b", QUESTIONS)
    async with server() as scripted:
        wanted = await calm.make(scripted.url, **TIME)
    async with server(endless) as scripted:
        first = await bench.make(scripted.url, **TIME, options={"shards": 2})
    assert first.metrics["status_timeout"] == 2
    line = timeouts_text(bench.run, first)
    assert "2 rollouts ended by timeout; retry them with: treadle stage 1/rollouts@base --run r" in line
    assert line.endswith(" --retry timeout")

    # One of them cannot be asked: the result stays, and the next try asks for that one alone.
    async with server(lambda request: Fault.status(500) if "Question 3?" in request.text else ANSWER) as scripted:
        with pytest.raises(JobsPending, match="1 of 5 rollouts could not be finished"):
            await retried(bench, scripted.url, "timeout", **TIME)
        assert {
            request.text.count("Question 1?") for request in work_requests(scripted) if request.outcome == "ok"
        } == {1}
    assert bench.run.record(bench.instance("http://x/v1").address) == first
    status = bench.run.status(bench.instance("http://x/v1").address)
    assert (status.state, status.retry_state, status.retried) == ("completed", "failed", ("timeout",))
    async with server() as scripted:
        record = await retried(bench, scripted.url, "timeout", **TIME)
        assert ["Question 3?" in request.text for request in work_requests(scripted)] == [True]
    assert record.outputs["rollouts"].digest == wanted.outputs["rollouts"].digest != first.outputs["rollouts"].digest
    assert record.metrics == wanted.metrics
    before, after = telemetry(bench, first), telemetry(bench, record)
    assert after.keys() == before.keys()
    ended = {row["rollout_key"]: row["status"] for row in bench.rows(first)}
    assert all((after[key] == before[key]) is (ended[key] != "timeout") for key in before)

    async with server() as scripted:
        assert (await retried(bench, scripted.url, "timeout", **TIME)).reused and not scripted.requests
    assert timeouts_text(bench.run, record) == ""
    left = [path for path in (tmp_path / "a").rglob("*") if path.is_file() and "journal" in path.parts]
    assert left == []


async def test_unretryable_selection_is_refused_in_one_line(tmp_path: Path) -> None:
    bench = Bench(tmp_path, QUESTIONS[:1])
    async with server() as scripted:
        with pytest.raises(RunError, match="has no result for these inputs and settings; run it first"):
            await retried(bench, scripted.url, "timeout")
        await bench.make(scripted.url)
        with pytest.raises(RunError, match="has no status late; --retry takes answered, budget, "):
            await retried(bench, scripted.url, "late")
        with pytest.raises(RunError, match="has no result for these inputs and settings"):
            await retried(bench, scripted.url, "timeout", environment={"rollout_time_s": 7.0})


async def test_accepted_failures_stay_unless_named(tmp_path: Path) -> None:
    """One rollout gave no answer and one failed: only what is named is asked again, and the other row stays."""
    bench, calm = Bench(tmp_path / "a", QUESTIONS), Bench(tmp_path / "b", QUESTIONS)
    lenient = {"options": {"max_error_rate": 0.5}}

    def with_gaps(request: RecordedRequest) -> Item:
        if "Question 3?" in request.text:
            return Fault.status(500)
        return "I do not know" if "Question 1?" in request.text else ANSWER

    async with server(with_gaps) as scripted:
        first = await bench.make(scripted.url, accept_failures=True, **lenient)
    assert (first.metrics["status_no_answer"], first.metrics["status_failed"]) == (1, 1)
    async with server(lambda request: Fault.status(500) if "Question 3?" in request.text else ANSWER) as scripted:
        second = await retried(bench, scripted.url, "no_answer", **lenient)
        assert ["Question 1?" in request.text for request in work_requests(scripted)] == [True]
    before, after = bench.rows(first), bench.rows(second)
    assert [row["status"] for row in after] == ["answered", "answered", "answered", "failed", "answered"]
    assert after[0] == before[0] and after[2:] == before[2:]
    assert before[3]["job"] is None and "HTTP 500" in before[3]["error"]
    async with server() as scripted:
        third = await retried(bench, scripted.url, "failed", **lenient)
        assert ["Question 3?" in request.text for request in work_requests(scripted)] == [True]
        wanted = await calm.make(scripted.url, **lenient)
    assert third.outputs["rollouts"].digest == wanted.outputs["rollouts"].digest
