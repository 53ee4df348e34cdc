"""Log lines of outages."""

from __future__ import annotations

import asyncio
import random
import re

import pytest
from support.rollouts.model_pool import ask, ask_sessions, endless, endpoint_at, settings, warmed
from support.servers.own_clock import until
from support.servers.scripted_server import Fault, Item, RecordedRequest, ScriptedServer

from treadle.core.errors import EndpointUnavailable
from treadle.core.llm.config import EndpointSettings, ModelSettings
from treadle.core.llm.endpoint import Endpoint
from treadle.core.llm.outage import Outages
from treadle.core.llm.pool import ModelPool


def outage_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("treadle.core.llm")]


async def test_outage_logs_one_line_at_its_start_and_one_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    sessions = [f"question {number}" for number in range(20)]
    async with (
        ScriptedServer(endless) as first,
        ScriptedServer(endless) as second,
        ModelPool("policy", settings(first, second, hedge_floor_s=None)) as pool,
    ):
        await ask_sessions(pool, sessions)
        await first.stop_listening()
        await ask_sessions(pool, sessions)
        [down] = outage_lines(caplog)
        assert down.startswith(f"models.policy: {first.url} is down: ")
        assert down.endswith("; 1 of 2 endpoints left")
        await first.start_listening()
        await until(lambda: pool.states()[first.url] != "down")
        await ask_sessions(pool, sessions)
        _, back = outage_lines(caplog)
        assert re.fullmatch(rf"models.policy: {first.url} answers again after \S+ s", back)
        # Further outages within a minute are counted, not logged.
        for _ in range(3):
            await first.stop_listening()
            await ask_sessions(pool, sessions)
            await first.start_listening()
            await until(lambda: pool.states()[first.url] != "down")
            await ask_sessions(pool, sessions)
        assert len(outage_lines(caplog)) == 2


async def test_loss_of_all_endpoints_logs_one_line_for_all_waiting_requests(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedServer(endless) as server, ModelPool("policy", settings(server)) as pool:
        await server.stop_listening()
        waiting = [asyncio.create_task(ask(pool, session=str(number))) for number in range(50)]
        await until(lambda: len(outage_lines(caplog)) == 2)
        await server.start_listening()
        await asyncio.gather(*waiting)
        down, left, back = outage_lines(caplog)
    assert "is down" in down and "requests wait up to 60 s (outage_wait_s)" in left and "answers again" in back


async def test_silence_logs_one_line_and_a_long_answer_none(caplog: pytest.LogCaptureFixture) -> None:
    silent, long, back = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def script(recorded: RecordedRequest) -> Item:
        if long.is_set() and recorded.text == "long":
            await back.wait()
        return "ok"

    async with (
        ScriptedServer(script, silent=silent) as first,
        ScriptedServer(script, silent=silent) as second,
        ModelPool("policy", settings(first, second, hedge_floor_s=0.05, connect_timeout_s=3600.0)) as pool,
    ):
        await warmed(pool)
        long.set()
        asking = asyncio.create_task(ask(pool, "long", session="0"))
        await until(lambda: pool.stats.retries["late"] > 0)  # the endpoint failed, was probed, and answered
        await until(lambda: "down" not in pool.states().values())
        assert outage_lines(caplog) == []
        silent.set()
        again = asyncio.create_task(ask(pool, "long", session="1"))
        await until(lambda: len(outage_lines(caplog)) > 0)
        silent.clear()
        back.set()
        await asyncio.gather(asking, again)
    lines = outage_lines(caplog)
    assert "is down: it does not respond" in lines[0]
    parts = "is down: it does not respond|answers again after|all endpoints are down"
    assert all(re.search(parts, line) for line in lines)


async def test_isolated_and_random_failures_are_not_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    items = [Fault.status(500), Fault("malformed"), Fault.status(500), "ok"] * 3
    async with ScriptedServer(items) as server, ModelPool("policy", settings(server)) as pool:
        for _ in range(3):
            await ask(pool)
            assert pool.states()[server.url] == "healthy"
    assert outage_lines(caplog) == []


async def test_hostile_text_and_keys_stay_out_of_the_outage_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TEST_MODEL_KEY", "sk-hidden")
    words = "\x1b[2J\u202eboom\n2026-01-01 ERROR treadle: forged Bearer sk-hidden"
    async with ScriptedServer(lambda recorded: Fault.status(500, words)) as server:
        keyed = settings(server, outage_wait_s=0.05, probe_base_s=60.0)
        endpoints = (EndpointSettings(url=server.url, api_key_env="TEST_MODEL_KEY"),)
        async with ModelPool("policy", keyed.model_copy(update={"endpoints": endpoints})) as pool:
            for _ in range(2):
                with pytest.raises(EndpointUnavailable):
                    await ask(pool)
    line = outage_lines(caplog)[0]
    assert "is down: HTTP 500: " in line and "boom" in line and "[key]" in line
    assert not set(line) & {"\x1b", "\u202e", "\n"} and "sk-hidden" not in line


async def test_endpoint_is_checked_again_after_an_unforeseen_error() -> None:
    errors = [RuntimeError("can't start new thread")]

    async def ask(endpoint: Endpoint) -> int:
        if errors:
            raise errors.pop()
        return 200

    endpoint = endpoint_at("http://127.0.0.1:9/v1", 8)
    outages = Outages("policy", ModelSettings(model="m", probe_base_s=0.001), [endpoint], ask, random.Random(0))
    outages.note_fault(endpoint, "refused", at_once=True)
    await until(lambda: endpoint.usable and outages.over.is_set())
    await outages.close()


async def test_answer_to_an_earlier_request_does_not_end_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    never = asyncio.Event()

    async def ask(endpoint: Endpoint) -> int:
        await never.wait()
        return 200

    endpoint = endpoint_at("http://127.0.0.1:9/v1", 8)
    endpoint.in_flight = 1
    outages = Outages("policy", ModelSettings(model="m"), [endpoint], ask, random.Random(0))
    before = asyncio.get_running_loop().time() - 1.0
    outages.note_fault(endpoint, "refused", at_once=True)
    outages.note_success(endpoint, before)
    assert [message for message in caplog.messages if "answers again" in message] == []
    outages.note_success(endpoint, asyncio.get_running_loop().time())
    assert len([message for message in caplog.messages if "answers again" in message]) == 1
    await outages.close()
