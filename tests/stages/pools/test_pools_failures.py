"""The stage `pools` if operators fail, endpoints are lost or the budget is spent: what is kept, and resumed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.rollouts.pools_agent import RIGHT, WRONG, Agent, importable, operators_of, server
from support.rollouts.pools_bench import PoolsBench
from support.servers.scripted_server import Fault, Item, RecordedRequest

from treadle.core.errors import BudgetExceeded, EndpointUnavailable, JobsPending, StageFailed


@pytest.fixture
def bench(tmp_path: Path) -> PoolsBench:
    return PoolsBench(tmp_path, [{}])


@pytest.mark.covers("flywheel-23")
async def test_crashing_operator_affects_only_itself(bench: PoolsBench, tmp_path: Path) -> None:
    source = (
        "class Broken:\n    name = 'broken'\n    version = 1\n    branch = 'correct'\n"
        "    async def apply(self, bench):\n        raise KeyError('no such thing')\n"
    )
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}"))
    with importable(tmp_path, "broken_operator", source):
        async with server(agent) as scripted:
            operators = ["rerollout", "broken_operator:Broken", "global_refine"]
            record = await bench.make(scripted.url, options={"rounds": 1, "operators": operators})
    assert operators_of(bench.rows(record)) == ["initial", "rerollout", "global_refine"]
    (question,) = bench.rows(record, "pool_questions")
    assert question["status"] == "partial" and "broken" in question["error"] and "no such thing" in question["error"]
    event = bench.rows(record, "pool_events")[1]
    assert (event["operator"], event["outcome"], event["reason"]) == ("broken", "failed", "operator_error")
    assert event["parent"] == bench.rows(record)[0]["rollout_key"] and "KeyError" in event["error"]


MISBEHAVING = """
import asyncio
from treadle.datagen.operators.base import Edit
from treadle.datagen.operators.rejection import EditRejected
class Operator:
    name, version, branch = "broken", 1, "correct"
class Forgets(Operator):
    async def apply(self, bench): return None
class Trajectory(Operator):
    async def apply(self, bench): return bench.trajectory
class Nothing(Operator):
    async def apply(self, bench): return Edit(None)
class Step(Operator):
    async def apply(self, bench): return Edit(bench.trajectory, step="two")
class Reply(Operator):
    async def apply(self, bench): raise EditRejected("no", reply=bench)
class Cancelled(Operator):
    async def apply(self, bench): raise asyncio.CancelledError
class Exits(Operator):
    async def apply(self, bench): raise SystemExit(0)
class NotAwaitable(Operator):
    def apply(self, bench): return Edit(bench.trajectory)
"""


@pytest.mark.covers("flywheel-23")
@pytest.mark.parametrize(
    "which", ["Forgets", "Trajectory", "Nothing", "Step", "Reply", "Cancelled", "Exits", "NotAwaitable"]
)
async def test_operator_that_violates_its_contract_affects_only_itself(
    bench: PoolsBench, tmp_path: Path, which: str
) -> None:
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}"))
    with importable(tmp_path, "misbehaving_operator", MISBEHAVING):
        async with server(agent) as scripted:
            operators = ["rerollout", f"misbehaving_operator:{which}"]
            record = await bench.make(scripted.url, options={"rounds": 1, "operators": operators})
    assert operators_of(bench.rows(record)) == ["initial", "rerollout"]
    event = bench.rows(record, "pool_events")[1]
    assert (event["operator"], event["outcome"], event["reason"]) == ("broken", "failed", "operator_error")
    assert bench.rows(record, "pool_questions")[0]["status"] == "partial"


@pytest.mark.covers("flywheel-27")
async def test_lost_endpoint_leaves_questions_pending_until_accepted(
    tmp_path: Path,
) -> None:
    bench = PoolsBench(tmp_path, [{}, {"question": "Other?"}])
    agent = Agent(lambda _, turn: WRONG.replace("guess", f"guess {turn}"))
    critic_is_down = True

    def critic(request: RecordedRequest) -> Item:
        return Fault.status(500) if critic_is_down and request.body.get("stop") else agent(request)

    async with server(agent) as scripted, server(critic) as broken:
        urls = {**dict.fromkeys(("policy", "refiner", "judge"), scripted.url), "critic": broken.url}
        options = {"rounds": 1, "operators": ["self_correct", "hint_tail"]}
        with pytest.raises(JobsPending, match="2 of 2 questions"):
            await bench.make(urls, options=options)
        before = agent.asked["policy"]
        with pytest.raises(StageFailed, match="max_error_rate"):
            await bench.make(urls, options=options, accept_failures=True)
        record = await bench.make(urls, options={**options, "max_error_rate": 1.0}, accept_failures=True)
    assert {question["status"] for question in bench.rows(record, "pool_questions")} == {"partial"}
    assert operators_of(bench.rows(record)) == ["initial", "hint_tail"] * 2
    failed = [event for event in bench.rows(record, "pool_events") if event["outcome"] == "failed"]
    assert {event["reason"] for event in failed} == {"llm_failed"}
    assert before == 4, "nothing is asked that the journal holds"


@pytest.mark.parametrize("domain", ["qa", "math"])
@pytest.mark.parametrize("gone", [False, True])
async def test_accepted_unfinished_question_keeps_its_verdicts_and_branch(
    tmp_path: Path, domain: str, gone: bool
) -> None:
    bench = PoolsBench(tmp_path, [{"domain": domain}])
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}").replace("{Paris", "{The city of Paris"))

    def critic(request: RecordedRequest) -> Item:
        return Fault.status(500) if request.body.get("stop") else agent(request)

    async with server(agent) as scripted, server(lambda _: "Correct") as judge, server(critic) as broken:
        urls = {**dict.fromkeys(("policy", "refiner"), scripted.url), "judge": judge.url, "critic": broken.url}
        operators = ["rerollout", "redundant_mod", "hint_tail"]
        options = {"rounds": 1, "operators": operators, "max_error_rate": 1.0, "f1_threshold": 0.3}
        with pytest.raises(JobsPending):
            await bench.make(urls, options=options)
        if gone:
            await broken.stop_listening()
            await judge.stop_listening()
        soon = {"model": {"outage_wait_s": 0.2}}
        roles = {"roles": {"judge": soon, "critic": soon}} if gone else {}
        record = await bench.make(urls, options=options, accept_failures=True, **roles)
    rows, (question,) = bench.rows(record), bench.rows(record, "pool_questions")
    assert [(row["operator"], row["correct"]) for row in rows] == [("initial", True), ("rerollout", True)]
    assert (question["status"], question["num_correct"], question["initial_correct"]) == ("partial", 2, True)
    events = bench.rows(record, "pool_events")
    assert [(event["operator"], event["outcome"]) for event in events] == [
        ("rerollout", "produced"),
        ("redundant_mod", "failed"),
    ]


@pytest.mark.covers("flywheel-31")
async def test_resumed_stage_repeats_no_request_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    texts = {number: RIGHT.replace("it", f"it {number}") for number in range(50)}

    def agent() -> Agent:
        def answer(text: str, turn: int) -> str:
            return texts[int.from_bytes(text.encode()[-9:], "big") % 50]

        return Agent(answer)

    digests = []
    for cut in (None, 5):
        bench = PoolsBench(tmp_path / str(cut), [{"question": f"Which {number}?"} for number in range(3)])
        script, served = agent(), Counter[str]()

        def counting(
            request: RecordedRequest, script: Agent = script, served: Counter[str] = served, cut: int | None = cut
        ) -> Item:
            if request.body.get("stop"):
                if cut is not None and served.total() >= cut and not served["open"]:
                    return Fault.status(500)
                served[f"{request.body['seed']} {request.text}"] += 1
            return script(request)

        async with server(counting) as scripted:
            options = {"rounds": 2, "operators": ["rerollout", "hint_tail"]}
            if cut is not None:
                with pytest.raises((JobsPending, EndpointUnavailable)):
                    await bench.make(scripted.url, options=options)
                served["open"] = 1
            record = await bench.make(scripted.url, options=options)
        assert all(count == 1 for count in served.values())
        digests.append({kind: ref.digest for kind, ref in record.outputs.items()})
    assert digests[0] == digests[1]


async def test_budget_counts_journal_entries_of_unfinished_questions(bench: PoolsBench) -> None:
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}"))
    async with server(agent) as scripted:
        with pytest.raises(BudgetExceeded, match="max_total_tokens = 1500"):
            await bench.make(scripted.url, options={"max_total_tokens": 1500})
        asked = agent.asked.total()
        with pytest.raises(BudgetExceeded):
            await bench.make(scripted.url, options={"max_total_tokens": 1500})
        assert agent.asked.total() == asked, "a spent budget is noticed before anything is asked"
        record = await bench.make(scripted.url)
    assert record.metrics["status_ok"] == 1
