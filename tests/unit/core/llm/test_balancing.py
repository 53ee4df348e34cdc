"""To which of several servers requests go: balanced by requests in flight, sticky by session, without hung servers."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from pathlib import Path

import pytest
from support.rollouts.model_pool import ask, settings
from support.servers.own_clock import until
from support.servers.scripted_server import Item, RecordedRequest, ScriptedServer
from support.training.scripted_groups import ALONE, ANSWER, SEARCH, StubTool, make_rollouts

from treadle.agent.contract import Task
from treadle.core.chat import ChatTokenizer
from treadle.core.llm.pool import ModelPool
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.rl.groups.group import GroupJob
from treadle.rl.groups.rollout import roll_out_groups

NUM_CALLERS = 64
FOUND = "It lies in Vorna."
REQUESTS_PER_CALLER = 15


class VirtualTime:
    """Clock that moves to the next end of a request as soon as every caller waits for one."""

    def __init__(self) -> None:
        self.num_callers = NUM_CALLERS
        self._now_s = 0.0
        self._waiting: list[tuple[float, int, asyncio.Event]] = []
        self._number = 0

    async def sleep(self, seconds: float) -> None:
        """Return after this time."""
        self._number += 1
        woken = asyncio.Event()
        heapq.heappush(self._waiting, (self._now_s + seconds, self._number, woken))
        self.move()
        await woken.wait()

    def move(self) -> None:
        """Wake the first that waits, if all callers wait."""
        if self._waiting and len(self._waiting) == self.num_callers:
            self._now_s, _, woken = heapq.heappop(self._waiting)
            woken.set()


@pytest.mark.covers("service-20")
@pytest.mark.parametrize("requests_per_session", [0, 5])
async def test_slow_replica_gets_few_of_the_requests(requests_per_session: int) -> None:
    clock = VirtualTime()

    def replica(seconds: float) -> ScriptedServer:
        async def script(recorded: RecordedRequest) -> str:
            await clock.sleep(seconds)
            return "ok"

        return ScriptedServer(script)

    async with replica(10.0) as slow, replica(1.0) as one, replica(1.0) as two, replica(1.0) as three:
        servers = settings(slow, one, two, three, hedge_floor_s=None)
        async with ModelPool("policy", servers) as pool:

            async def call(caller: int) -> None:
                for number in range(REQUESTS_PER_CALLER):
                    session = f"{caller}/{number // requests_per_session}" if requests_per_session else ""
                    await ask(pool, f"{caller}/{number}", session=session)
                clock.num_callers -= 1
                clock.move()

            await asyncio.gather(*(call(caller) for caller in range(NUM_CALLERS)))
            answered = {state.url: state.answered for state in pool.endpoint_states()}
    assert sum(answered.values()) == NUM_CALLERS * REQUESTS_PER_CALLER
    assert 0 < answered[slow.url] < 0.15 * sum(answered.values())


@pytest.mark.covers("service-21")
async def test_session_stays_where_it_began_and_a_new_one_goes_to_the_least_loaded() -> None:
    gate = asyncio.Event()

    async def script(recorded: RecordedRequest) -> str:
        if recorded.text == "held":
            await gate.wait()
        return "ok"

    async with (
        ScriptedServer(script) as first,
        ScriptedServer(script) as second,
        ModelPool("policy", settings(first, second, hedge_floor_s=None)) as pool,
    ):
        home = (await ask(pool, session="known")).endpoint
        held = [asyncio.create_task(ask(pool, "held", session="known")) for _ in range(5)]
        await until(lambda: first.in_flight + second.in_flight == 5)
        assert (await ask(pool, session="known")).endpoint == home, "although it is busy"
        assert {(await ask(pool, session=f"new {number}")).endpoint for number in range(8)} == {
            first.url,
            second.url,
        } - {home}
        gate.set()
        await asyncio.gather(*held)


async def test_session_that_began_during_an_outage_stays_where_it_is_afterwards() -> None:
    async def script(recorded: RecordedRequest) -> str:
        return "ok"

    async with (
        ScriptedServer(script) as first,
        ScriptedServer(script) as second,
        ModelPool("policy", settings(first, second, hedge_floor_s=None)) as pool,
    ):
        await second.stop_listening()
        sessions = [f"question {number}" for number in range(20)]
        await asyncio.gather(*(ask(pool, session="") for _ in range(4)))
        assert pool.states()[second.url] == "down"
        await asyncio.gather(*(ask(pool, session=session) for session in sessions))
        await second.start_listening()
        await until(lambda: pool.states()[second.url] != "down")
        again = [session for session in sessions if (await ask(pool, session=session)).endpoint == second.url]
    assert not again


async def test_rollouts_of_one_question_are_spread_over_the_servers(tmp_path: Path) -> None:
    codec = ChatTokenizer.load(write_byte_tokenizer(tmp_path / "tokenizer"))
    gate, asked = asyncio.Event(), Counter[str]()

    def replica(name: str) -> ScriptedServer:
        async def script(recorded: RecordedRequest) -> Item:
            asked[name] += 1
            if asked.total() == 8:
                gate.set()
            await gate.wait()
            return ANSWER

        return ScriptedServer(script)

    async with (
        replica("one") as one,
        replica("two") as two,
        ModelPool("policy", settings(one, two, token_ids="required", hedge_floor_s=None)) as pool,
    ):
        rollouts = make_rollouts(pool, codec, branching=ALONE)
        (group,) = await roll_out_groups(rollouts, [GroupJob("g", Task("k", "Where?"), 8, 1)])
    assert len(group.trajectories) == 8 and asked == {"one": 4, "two": 4}


async def test_states_count_answers_tokens_and_failures_by_class() -> None:
    async def script(recorded: RecordedRequest) -> Item:
        return "four"

    async with (
        ScriptedServer(script) as server,
        ModelPool("policy", settings(server, "http://127.0.0.1:1/v1")) as pool,
    ):
        await asyncio.gather(*(ask(pool, str(number), session="") for number in range(6)))
        up, down = pool.endpoint_states()
    assert (up.health, up.answered, up.sampled_tokens, up.errors) == ("healthy", 6, 24, {})
    assert (down.health, down.answered, down.in_flight, down.queued) == ("down", 0, 0, 0)
    assert set(down.errors) == {"connect"} and "connect" in down.last_error.lower()


@pytest.mark.covers("service-15")
async def test_replica_that_freezes_in_a_step_of_group_rollouts_costs_no_rollout(tmp_path: Path) -> None:
    codec = ChatTokenizer.load(write_byte_tokenizer(tmp_path / "tokenizer"))
    frozen, back, asked = asyncio.Event(), asyncio.Event(), Counter[str]()

    def replica(name: str, silent: asyncio.Event | None = None) -> ScriptedServer:
        async def script(recorded: RecordedRequest) -> Item:
            asked[name] += 1
            if silent is not None and asked[name] == 3:
                silent.set()
            if silent is not None and silent.is_set():
                await back.wait()
            return ANSWER if FOUND in recorded.text else SEARCH

        return ScriptedServer(script, silent=silent)

    async with replica("hung", frozen) as hung, replica("other") as other:
        overrides = {"hedge_floor_s": 0.05, "connect_timeout_s": 3600.0, "token_ids": "required"}
        async with ModelPool("policy", settings(hung, other, **overrides)) as pool:
            rollouts = make_rollouts(pool, codec, branching=ALONE, tools=[StubTool("search", FOUND)])
            jobs = [GroupJob(f"g{number}", Task(f"k{number}", "Where?"), 4, number) for number in range(3)]
            groups = await roll_out_groups(rollouts, jobs)
            assert frozen.is_set(), "it froze with requests on the wire"
            frozen.clear()
            back.set()
    assert [group.error for group in groups] == [""] * 3
    for trajectory in (one for group in groups for one in group.trajectories):
        assert trajectory.trajectory.status == "answered"
        assert codec.decode(trajectory.completion_ids).startswith(SEARCH)
        assert len(trajectory.turn_starts) == 2
