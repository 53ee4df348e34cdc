"""Requests with late answers or a silent server are hedged."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from support.rollouts.model_pool import ask, ask_sessions, endless, endpoint_at, settings, warmed
from support.servers.own_clock import ForwardClock, until
from support.servers.scripted_server import Fault, Item, RecordedRequest, ScriptedServer

from treadle.core import steady_loop
from treadle.core.errors import ContextTooLong, DeadlineExceeded, EndpointUnavailable
from treadle.core.llm.call import PoolCall
from treadle.core.llm.endpoint import Endpoint
from treadle.core.llm.failures import Failure
from treadle.core.llm.hedge import Hedges
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.wire import Answer


def texts(server: ScriptedServer) -> list[str]:
    return [item.text for item in server.requests]


@pytest.mark.parametrize("num_servers", [1, 2])
async def test_unanswered_request_is_hedged_and_causes_no_timeout(num_servers: int) -> None:
    def script(recorded: RecordedRequest) -> Item:
        unlucky = recorded.text == "unlucky" and not any(item.outcome == "hang" for item in everything())
        return Fault("hang") if unlucky else "ok"

    def everything() -> list[RecordedRequest]:
        return [item for server in servers for item in server.requests]

    servers = [ScriptedServer(script) for _ in range(num_servers)]
    async with contextlib.AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        once = settings(*servers, hedge_floor_s=0.05, retry_limit=0)
        pool = await stack.enter_async_context(ModelPool("policy", once))
        await warmed(pool)
        of_others = pool.stats.retries["late"]  # on a busy machine
        completion = await ask(pool, "unlucky", within_s=30)
        asked = [item for item in everything() if item.text == "unlucky"]
        assert completion.text == "ok" and completion.retries == 1
        assert pool.stats.retries == {"late": of_others + 1} and pool.stats.in_flight == 0
        assert len(asked) == 2 and asked[0].body == asked[1].body
        assert num_servers == 1 or {len(server.requests) for server in servers} != {0}
        hung = next(server for server in servers if any(item.outcome == "hang" for item in server.requests))
        assert num_servers == 1 or completion.endpoint != hung.url


async def test_long_hedged_request_still_counts() -> None:
    asked_beside = asyncio.Event()

    async def script(recorded: RecordedRequest) -> Item:
        if recorded.text != "long":
            return "ok"
        if sum(item.text == "long" for item in server.requests) > 1:
            asked_beside.set()
            return Fault("hang")
        await asked_beside.wait()
        return "the long answer"

    async with (
        ScriptedServer(script) as server,
        ModelPool("policy", settings(server, hedge_floor_s=0.05, retry_limit=0)) as pool,
    ):
        await warmed(pool)
        completion = await ask(pool, "long", within_s=30)
        await until(lambda: pool.stats.in_flight == 0)
    assert completion.text == "the long answer" and completion.retries == 1


async def test_refused_hedge_ends_the_call() -> None:
    def script(recorded: RecordedRequest) -> Item:
        if recorded.text != "long":
            return "ok"
        return Fault("hang") if sum(item.text == "long" for item in server.requests) == 1 else Fault.too_long()

    async with (
        ScriptedServer(script) as server,
        ModelPool("policy", settings(server, hedge_floor_s=0.05)) as pool,
    ):
        await warmed(pool)
        with pytest.raises(ContextTooLong):
            await ask(pool, "long", within_s=30)


@pytest.mark.parametrize("ends", ["with a reset", "with a refusal", "with an answer"])
async def test_answer_of_a_hedge_counts_although_the_late_attempt_ends_at_the_same_time(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both arrive in one round of the event loop, and the hedge's answer comes first."""
    hedged = Answer("of the hedge", None, "stop", None, 1, 1)
    asked = list[str]()

    async def exchange(pool: ModelPool, endpoint: Endpoint, call: PoolCall) -> tuple[int, dict[str, str], bytes]:
        asked.append(endpoint.url)
        (other,) = [one for one in pool._endpoints if one is not endpoint]
        call.deliver(other, hedged, call.sent_at)
        if ends == "with a reset":
            raise Failure("reset", "the server closed the connection")
        return (500, {}, b"") if ends == "with a refusal" else (200, {}, b"{}")

    monkeypatch.setattr(ModelPool, "_exchange", exchange)
    urls = {"http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1"}
    async with ModelPool("policy", settings(*urls)) as pool:
        completion = await ask(pool)
        assert (completion.text, {completion.endpoint}) == ("of the hedge", urls - set(asked))
        assert len(asked) == 1 and not any(one.last_error for one in pool.endpoint_states())


async def test_deadline_after_a_failed_hedge_leaves_the_work_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(recorded: RecordedRequest) -> Item:
        if recorded.text != "long":
            return "ok"
        return Fault("hang") if sum(item.text == "long" for item in server.requests) == 1 else Fault.status(500, "boom")

    async with (
        ScriptedServer(script) as server,
        ModelPool("policy", settings(server, hedge_floor_s=0.05, retry_limit=0, probe_base_s=60.0)) as pool,
    ):
        await warmed(pool)
        clock = ForwardClock(monkeypatch)
        asking = asyncio.create_task(ask(pool, "long", within_s=30))
        await until(lambda: texts(server).count("long") > 1 and pool.stats.in_flight == 1)  # The hedge has failed.
        clock.pass_(31)
        with pytest.raises(EndpointUnavailable, match="boom; the deadline passed"):
            await asking


async def test_failed_hedge_of_an_earlier_attempt_does_not_change_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    hedged, first_failed = asyncio.Event(), asyncio.Event()

    async def script(recorded: RecordedRequest) -> Item:
        if recorded.text != "long":
            return "ok"
        if sum(item.text == "long" for item in server.requests) == 1:
            await hedged.wait()
            await until(lambda: pool.stats.in_flight == 1)  # The failure of the hedge has arrived.
            first_failed.set()
            return Fault.status(500, "boom")
        hedged.set()
        return Fault("hang") if first_failed.is_set() else Fault.status(500, "boom")

    async with (
        ScriptedServer(script) as server,
        ModelPool("policy", settings(server, hedge_floor_s=0.05, retry_limit=9, probe_base_s=60.0)) as pool,
    ):
        await warmed(pool)
        clock = ForwardClock(monkeypatch)
        asking = asyncio.create_task(ask(pool, "long", within_s=30))
        hangs = lambda: any(item.outcome == "hang" for item in server.requests)  # noqa: E731
        await until(lambda: pool.stats.retries["server"] == 1 and hangs())  # The second attempt is on its way.
        clock.pass_(31)
        with pytest.raises(DeadlineExceeded):
            await asking


async def test_requests_at_a_silent_server_are_hedged_before_they_are_late() -> None:
    endpoint = endpoint_at("http://localhost:1/v1", 4)
    loop, hedged = asyncio.get_running_loop(), asyncio.Event()
    hedges = Hedges(3600.0, most_per_call=1)
    call = PoolCall("completions", b"", "s", loop.time() + 3600)
    endpoint.silent = True
    assert endpoint.failed(at_once=True)
    hedges.sent(call, endpoint, loop.time())

    async def hedge(late: PoolCall) -> None:
        assert late is call
        hedged.set()

    watch = asyncio.create_task(hedges.watch(lambda late, where: None, hedge))
    async with asyncio.timeout(120):
        await hedged.wait()
    watch.cancel()
    endpoint.readmit()
    assert not endpoint.is_unresponsive


async def test_server_that_falls_silent_after_its_requests_were_late_loses_them_all() -> None:
    endpoint = endpoint_at("http://localhost:1/v1", 9)
    loop, both = asyncio.get_running_loop(), asyncio.Event()
    hedges = Hedges(3600.0, most_per_call=1)
    for _ in range(8):
        hedges.answered(1.0)
    calls = [PoolCall("completions", b"", "s", loop.time() + 3600) for _ in range(2)]
    for call in calls:
        hedges.sent(call, endpoint, loop.time() - 7200)
    reports: list[PoolCall] = []
    hedged: list[PoolCall] = []

    def note_late(call: PoolCall, where: object) -> None:
        reports.append(call)
        if len(reports) == 4:  # Both were reported while the server was alive.
            endpoint.silent = True
            endpoint.failed(at_once=True)

    async def hedge(late: PoolCall) -> None:
        late.hedged += 1
        hedged.append(late)
        if len(hedged) == 2:
            both.set()

    watch = asyncio.create_task(hedges.watch(note_late, hedge))
    async with asyncio.timeout(120):
        await both.wait()
    watch.cancel()
    assert set(hedged) == set(calls) and len(reports) >= 4


@pytest.mark.covers("service-15")
async def test_call_at_a_silent_server_moves_to_another_one_even_without_hedges() -> None:
    silent, never = asyncio.Event(), asyncio.Event()

    async def script(recorded: RecordedRequest) -> str:
        await never.wait()
        return "late"

    async with ScriptedServer(script, silent=silent) as hung, ScriptedServer(endless) as other:
        silent.set()
        async with ModelPool("policy", settings(hung, other, hedge_floor_s=None, outage_wait_s=1.0)) as pool:
            answers = await asyncio.gather(*(ask(pool, session=name, within_s=0.4) for name in ("one", "two")))
            assert {answer.endpoint for answer in answers} == {other.url}
            assert pool.states()[hung.url] == "down"
        silent.clear()
        never.set()


@pytest.mark.parametrize("hedge_floor_s", [None, 0.05])
def test_calls_end_if_all_servers_are_silent(hedge_floor_s: float | None) -> None:
    async def script(recorded: RecordedRequest) -> str:
        await asyncio.Event().wait()
        return "late"

    async def work() -> None:
        silent = asyncio.Event()
        silent.set()
        async with ScriptedServer(script, silent=silent) as first, ScriptedServer(script, silent=silent) as second:
            overrides: dict[str, object] = {"hedge_floor_s": hedge_floor_s, "outage_wait_s": 1.0}
            async with ModelPool("policy", settings(first, second, **overrides)) as pool:
                with pytest.raises(EndpointUnavailable):
                    await ask(pool, within_s=0.4)
                assert "healthy" not in pool.states().values()
            silent.clear()

    steady_loop.run(work())  # As in a run: time for which this process is stopped does not count.


async def test_no_request_is_hedged_if_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        ScriptedServer(lambda recorded: Fault("hang") if recorded.text == "q" else "ok") as server,
        ModelPool("policy", settings(server, hedge_floor_s=None, probe_base_s=60.0)) as pool,
    ):
        await warmed(pool)
        clock = ForwardClock(monkeypatch)
        asking = asyncio.create_task(ask(pool, "q", within_s=45))
        await until(lambda: "q" in texts(server))
        clock.pass_(30)
        await warmed(pool)
        clock.pass_(16)
        with pytest.raises(DeadlineExceeded):
            await asking
        assert texts(server).count("q") == 1


@pytest.mark.covers("service-15")
async def test_silent_server_loses_all_its_requests_to_the_others() -> None:
    silent = asyncio.Event()
    back = asyncio.Event()

    async def script(recorded: RecordedRequest) -> Item:
        if silent.is_set():
            await back.wait()
        return "ok"

    sessions = [f"question {number}" for number in range(40)]
    async with ScriptedServer(script, silent=silent) as first, ScriptedServer(endless) as second:
        overrides: dict[str, object] = {"hedge_floor_s": 0.05, "connect_timeout_s": 3600.0}
        async with ModelPool("policy", settings(first, second, **overrides)) as pool:
            both = {first.url, second.url}
            home = await ask_sessions(pool, sessions)
            assert set.union(*home.values()) == both
            silent.set()
            assert set.union(*(await ask_sessions(pool, sessions)).values()) == {second.url}
            assert pool.states() == {first.url: "down", second.url: "healthy"}
            silent.clear()
            back.set()
            await until(lambda: pool.states()[first.url] != "down")
            again = await ask_sessions(pool, sessions)
            assert set.union(*again.values()) == both
            # Some of a session's calls may be late on a busy machine and be hedged, but not all.
            assert [session for session in sessions if not again[session] & home[session]] == []


@pytest.mark.covers("service-15")
async def test_silence_alone_makes_requests_late_before_answers_have_shown_how_long_they_take() -> None:
    silent, back = asyncio.Event(), asyncio.Event()
    silent.set()

    async def script(recorded: RecordedRequest) -> str:
        await back.wait()
        return "late"

    async with (
        ScriptedServer(script, silent=silent) as hung,
        ScriptedServer(endless) as other,
        ModelPool("policy", settings(hung, other, hedge_floor_s=0.05)) as pool,
    ):
        answers = await asyncio.gather(ask(pool, session="one"), ask(pool, session="two"))
        assert {answer.endpoint for answer in answers} == {other.url}
        assert pool.states()[hung.url] == "down"
        silent.clear()
        await until(lambda: pool.states()[hung.url] == "trial")
        back.set()
