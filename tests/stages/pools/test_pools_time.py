"""The stage `pools` where time runs out or rollouts break off or repeat: what is kept, and what is counted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.pools_agent import RIGHT, WRONG, Agent, importable, operators_of, server
from support.rollouts.pools_bench import PoolsBench
from support.servers.scripted_server import Fault, Item, RecordedRequest

from treadle.agent.call_cache import CallCache
from treadle.agent.judges.cases import Case, Verdict
from treadle.core.errors import EndpointUnavailable, JobsPending
from treadle.datagen.pools import evolution

STUBBORN = """
import asyncio
class Stubborn:
    name, version, branch = "stubborn", 1, "correct"
    async def apply(self, bench):
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
class Asker(Stubborn):
    async def apply(self, bench): return await bench.once("endless", super().apply)
"""


@pytest.fixture
def bench(tmp_path: Path) -> PoolsBench:
    return PoolsBench(tmp_path, [{}])


WAITING = """
import asyncio
class Waiting:
    name, version, branch, cancelled = "waiting", 1, "correct", 0
    async def apply(self, bench):
        try:
            await asyncio.Event().wait()
        finally:
            Waiting.cancelled += 1
"""


@pytest.mark.covers("flywheel-24")
async def test_question_out_of_time_keeps_finished_work(bench: PoolsBench, tmp_path: Path) -> None:
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}"))
    with importable(tmp_path, "waiting_operator", WAITING):
        async with server(agent) as scripted:
            operators = ["rerollout", "waiting_operator:Waiting"]
            record = await bench.make(scripted.url, options={"question_time_s": 1.5, "operators": operators})
        assert sys.modules["waiting_operator"].Waiting.cancelled == 1
    assert operators_of(bench.rows(record)) == ["initial", "rerollout"]
    (question,) = bench.rows(record, "pool_questions")
    assert question["status"] == "timeout" and "1.5 s" in question["error"] and question["num_rounds"] == 0
    events = [(event["operator"], event["outcome"], event["reason"]) for event in bench.rows(record, "pool_events")]
    assert events == [("rerollout", "produced", ""), ("waiting", "failed", "timeout")]


class JudgeThatGoesDown:
    """Gives one answer, then becomes unreachable."""

    def __init__(self, **_: Any) -> None:
        self.num_asked = 0

    async def __aenter__(self) -> JudgeThatGoesDown:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def verdict(self, case: Case, cache: CallCache) -> Verdict:
        self.num_asked += 1
        if self.num_asked > 1:
            raise EndpointUnavailable("no free slot before the deadline")
        return Verdict(True, 1.0, "qa_em")


async def test_judge_failure_after_the_question_deadline_leaves_nothing_pending(
    bench: PoolsBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.datagen.pools.opened.AnswerJudge", JudgeThatGoesDown)
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}"))
    with importable(tmp_path, "waiting_operator", WAITING):
        async with server(agent) as scripted:
            options = {"question_time_s": 1.5, "operators": ["rerollout", "waiting_operator:Waiting"]}
            record = await bench.make(scripted.url, options=options)
    assert [row["correct"] for row in bench.rows(record)] == [True, None]
    assert bench.rows(record)[1]["judge"]["error"] == "no free slot before the deadline"
    assert bench.rows(record, "pool_questions")[0]["status"] == "timeout"


def total(usages: list[dict[str, Any]]) -> dict[str, int]:
    """Return the sum over the policy's usage."""
    return {name: sum(one["policy"][name] for one in usages) for name in usages[0]["policy"]}


def second_turn(then: Fault) -> Callable[[RecordedRequest], Item]:
    """Return a policy whose first turn continues, and whose second one ends in a fault."""

    def script(request: RecordedRequest) -> Item:
        if Agent.task_of(request) == "preflight":
            return "x"
        return "Let me think." if "Let me think." not in request.text else then

    return script


@pytest.mark.covers("flywheel-24")
@pytest.mark.parametrize("which", ["Stubborn", "Asker"])
async def test_operator_that_swallows_cancellation_blocks_neither_question_nor_stage(
    bench: PoolsBench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    which: str,
) -> None:
    monkeypatch.setattr(evolution, "_CANCEL_TIMEOUT_S", 0.05)
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}"))
    with importable(tmp_path, "stubborn_operator", STUBBORN):
        async with server(agent) as scripted:
            operators = ["rerollout", f"stubborn_operator:{which}"]
            record = await bench.make(scripted.url, options={"question_time_s": 1.5, "operators": operators})
    assert operators_of(bench.rows(record)) == ["initial", "rerollout"]
    assert bench.rows(record, "pool_questions")[0]["status"] == "timeout"
    event = bench.rows(record, "pool_events")[-1]
    assert (event["operator"], event["outcome"], event["reason"]) == ("stubborn", "failed", "timeout")
    assert "did not stop after its cancellation" in caplog.text


@pytest.mark.covers("flywheel-24")
async def test_cost_of_a_timed_out_rollout_is_counted(tmp_path: Path) -> None:
    bench, slow = PoolsBench(tmp_path, [{}, {"question": "Easy?"}]), second_turn(Fault("hang"))
    async with server(lambda request: RIGHT if "Easy?" in request.text else slow(request)) as scripted:
        options = {"question_time_s": 1.5, "rounds": 0}
        record = await bench.make(scripted.url, environment={"on_unmarked": "continue"}, options=options)
    (question, easy), (event,) = bench.rows(record, "pool_questions"), bench.rows(record, "pool_events")
    assert (question["status"], question["num_trajectories"], easy["status"]) == ("timeout", 0, "ok")
    assert [event[name] for name in ("operator", "outcome", "reason", "parent")] == ["initial", "failed", "timeout", ""]
    assert question["usage"] == event["usage"]
    assert question["usage"]["policy"]["calls"] == 1 and question["usage"]["policy"]["prompt_tokens"] > 100
    made = record.metrics["operators"]["initial"]
    assert [made[name] for name in ("tried", "produced", "failed")] == [2, 1, 1]


async def test_cost_of_an_operator_rollout_that_failed_midway_is_counted(bench: PoolsBench) -> None:
    begun = second_turn(Fault.status(500))
    first = True

    def script(request: RecordedRequest) -> Item:
        nonlocal first
        if Agent.task_of(request) == "policy" and first:
            first = False
            return RIGHT
        return begun(request)

    changes = {"environment": {"on_unmarked": "continue"}}
    options = {"rounds": 1, "operators": ["rerollout"], "max_error_rate": 1.0}
    async with server(script) as scripted:
        with pytest.raises(JobsPending):
            await bench.make(scripted.url, options=options, **changes)
        record = await bench.make(scripted.url, options=options, accept_failures=True, **changes)
    (question,), (event,) = bench.rows(record, "pool_questions"), bench.rows(record, "pool_events")
    assert (event["operator"], event["outcome"], event["reason"]) == ("rerollout", "failed", "llm_failed")
    assert event["usage"]["policy"]["calls"] == 1
    spent = [row["usage"] for row in bench.rows(record)]
    assert question["usage"]["policy"] == total([*spent, event["usage"]])


@pytest.mark.parametrize("text", [WRONG, ""])
async def test_duplicate_initial_rollouts_are_dropped_with_an_event(bench: PoolsBench, text: str) -> None:
    texts = [text, text, RIGHT, f" {text}\n"]
    async with server(Agent(lambda _, turn: texts[turn - 1])) as scripted:
        record = await bench.make(scripted.url, options={"initial_rollouts": 4, "rounds": 0})
    rows, events = bench.rows(record), bench.rows(record, "pool_events")
    assert sorted(row["text"].strip() for row in rows) == sorted([text, RIGHT])
    (kept,) = (row["rollout_key"] for row in rows if row["text"].strip() == text)
    assert [event["rollout_key"] for event in events] == [kept, kept]
    assert {(event["operator"], event["outcome"], event["parent"]) for event in events} == {
        ("initial", "duplicate", "")
    }
    (question,) = bench.rows(record, "pool_questions")
    assert question["status"] == "ok" and question["usage"]["policy"]["calls"] == 4
    made = record.metrics["operators"]["initial"]
    assert [made[name] for name in ("tried", "produced", "duplicate")] == [4, 2, 2]


async def test_enough_correct_counts_distinct_trajectories(bench: PoolsBench) -> None:
    texts = [RIGHT, RIGHT, RIGHT, RIGHT.replace("it", "them")]
    async with server(Agent(lambda _, turn: texts[min(turn, 4) - 1])) as scripted:
        options = {"initial_rollouts": 3, "enough_correct": 2, "rounds": 3, "operators": ["rerollout"]}
        record = await bench.make(scripted.url, options=options)
    assert operators_of(bench.rows(record)) == ["initial", "rerollout"]
