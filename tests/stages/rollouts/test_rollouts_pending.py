"""The stage `rollouts` where infrastructure breaks, the budget is spent or the stage is cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.rollouts_bench import ANSWER, Bench, corpus, server, work_requests
from support.servers.scripted_server import Fault, Item, RecordedRequest
from support.tables.given_questions import GIVEN, TOKENIZER

from treadle.core.errors import (
    BudgetExceeded,
    JobsPending,
    StageFailed,
)
from treadle.core.journal.journal import Journal
from treadle.core.runs.address import Address
from treadle.core.runs.stage import Outputs, Progress, StageContext
from treadle.environments.rollouts.run import RolloutsRun
from treadle.environments.rollouts.stage import ROLLOUTS_STAGE


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield Bench(tmp_path, [f"Question {number}?" for number in range(6)])


@pytest.mark.covers("flywheel-25")
async def test_infrastructure_failures_stay_pending_and_a_resumed_run_retries_only_them(tmp_path: Path) -> None:
    calm, stormy = Bench(tmp_path / "a", ["a", "b", "c"]), Bench(tmp_path / "b", ["a", "b", "c"])
    searches = {"search": {"enabled": True, "corpus": [str(corpus(tmp_path))], "cache_folder": str(tmp_path)}}
    settings: dict[str, Any] = {"options": {"samples_per_question": 2, "max_concurrent": 2}, "environment": searches}

    def reply(request: RecordedRequest) -> Item:
        return (
            ANSWER if "<result>" in request.text.split("assistant\n")[-1] else "<think>t</think><search>moss</search>"
        )

    async with server(reply) as scripted:
        undisturbed = await calm.make(scripted.url, **settings)

    broken = Counter[str]()

    def faulty(request: RecordedRequest) -> Item:
        item = reply(request)
        broken[str(item)] += 1
        return Fault.status(500) if item == ANSWER and broken[ANSWER] > 2 else item

    async with server(faulty) as scripted:
        with pytest.raises(JobsPending, match=r"4 of 6 rollouts could not be finished; first cause: .*500") as owed:
            await stormy.make(scripted.url, **settings)
        assert owed.value.retryable
        answered = {request.body["seed"] for request in work_requests(scripted) if request.outcome == "ok"}
    async with server(reply) as scripted:
        record = await stormy.make(scripted.url, **settings)
        again = {request.body["seed"] for request in work_requests(scripted)}
    assert not answered & again
    assert record.outputs["rollouts"].digest == undisturbed.outputs["rollouts"].digest
    once = [{"tool": "search", "requested": 1, "executed": 1, "failed": 0}]
    assert all(row["tools"] == once for row in stormy.rows(record))


async def test_outage_is_waited_out_in_further_passes(bench: Bench) -> None:
    broken = Counter[str]()

    def faulty(request: RecordedRequest) -> Item:
        broken[request.text] += bool(request.body.get("stop"))
        return Fault.status(500) if 1 <= broken[request.text] <= 2 else ANSWER

    async with server(faulty) as scripted:
        record = await bench.make(
            scripted.url,
            options={"pending_retries": 3, "max_concurrent": 1},
            model={"retry_limit": 0, "outage_wait_s": 60.0},
        )
    assert record.metrics["status_answered"] == 6


@pytest.mark.covers("flywheel-30")
async def test_accepted_failures_keep_their_slot_with_a_cause(bench: Bench) -> None:
    def faulty(request: RecordedRequest) -> Item:
        return Fault.status(500) if "Question 3?" in request.text else ANSWER

    async with server(faulty) as scripted:
        with pytest.raises(StageFailed, match="1 of 6 rollouts .* more than max_error_rate = 0.1"):
            await bench.make(scripted.url, accept_failures=True)
        record = await bench.make(scripted.url, accept_failures=True, options={"max_error_rate": 0.2})
    rows = bench.rows(record)
    assert [row["status"] for row in rows] == ["answered"] * 3 + ["failed"] + ["answered"] * 2
    assert "500" in rows[3]["error"] and rows[3]["text"] == "" and rows[2]["error"] is None


async def test_refused_request_stays_pending_without_further_passes(bench: Bench) -> None:
    def refuse(request: RecordedRequest) -> Item:
        return Fault.status(400, "bad words") if "Question 3?" in request.text else ANSWER

    async with server(refuse) as scripted:
        with pytest.raises(JobsPending, match="1 of 6 .*bad words") as owed:
            await bench.make(scripted.url, options={"pending_retries": 5})
        assert not owed.value.retryable
        assert sum("Question 3?" in request.text for request in work_requests(scripted)) == 1


async def test_token_budget_stops_the_stage_and_a_higher_budget_resumes_it(bench: Bench) -> None:
    async with server() as scripted:
        with pytest.raises(BudgetExceeded, match="max_total_tokens = 1500"):
            await bench.make(scripted.url, options={"max_total_tokens": 1500, "max_concurrent": 1})
        first = len(work_requests(scripted))
        await bench.make(scripted.url, options={"max_total_tokens": 100_000})
        assert 0 < first < 6 and len(work_requests(scripted)) == 6


async def test_token_budget_counts_answers_of_interrupted_rollouts(bench: Bench, tmp_path: Path) -> None:
    searches = {"search": {"enabled": True, "corpus": [str(corpus(tmp_path))], "cache_folder": str(tmp_path)}}
    search = "<think>t</think><search>moss</search>"

    def broken_off(request: RecordedRequest) -> Item:
        if not request.body.get("stop"):
            return ANSWER
        return Fault.status(500) if "<result>" in request.text.split("assistant\n")[-1] else search

    async with server(broken_off) as scripted:
        with pytest.raises(JobsPending):
            await bench.make(scripted.url, environment=searches)
        answered = [request for request in work_requests(scripted) if request.outcome == "ok"]
    used = sum(len(request.prompt) + len(TOKENIZER.encode(search)) for request in answered)
    assert len(answered) == 6
    async with server() as scripted:
        with pytest.raises(BudgetExceeded, match=f"^{used} tokens are used of max_total_tokens = {used}"):
            await bench.make(scripted.url, environment=searches, options={"max_total_tokens": used})
        assert work_requests(scripted) == []


async def test_cancelled_stage_leaves_a_consistent_journal_and_no_running_task(bench: Bench, tmp_path: Path) -> None:
    stuck = asyncio.Event()

    async def reply(request: RecordedRequest) -> Item:
        if not request.body.get("stop") or len(work_requests(scripted)) <= 4:
            return ANSWER
        stuck.set()
        return Fault("hang")

    questions = bench.run.record(GIVEN)
    assert questions is not None
    before = asyncio.all_tasks()
    async with server(reply) as scripted:
        with Journal(tmp_path / "journal") as journal:
            context = StageContext(
                address=Address.parse("1/rollouts@base"),
                attempt=1,
                settings=bench.instance(scripted.url, options={"max_concurrent": 2}).settings,
                inputs={"questions": (bench.run.rows(questions.outputs["questions"]),)},
                producers={"questions": (Address.parse("1/questions"),)},
                journal=journal,
                progress=Progress(),
                accept_failures=False,
                scratch=tmp_path,
                workspace=tmp_path / "workspace",
                store=bench.run.store,
                outputs=Outputs(bench.run.storage, ROLLOUTS_STAGE, "0" * 64, "attempt"),
            )
            stage = asyncio.create_task(RolloutsRun(context).work())
            await stuck.wait()
            stage.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stage
            assert journal.num_finished == 4
    assert asyncio.all_tasks() == before
