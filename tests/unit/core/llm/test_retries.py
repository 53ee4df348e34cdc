"""Which requests the model pool retries, which failures are final, and how long a request may take."""

from __future__ import annotations

import asyncio

import pytest
from support.rollouts.model_pool import ask, ask_sessions, endless, recorder, settings
from support.servers.own_clock import ForwardClock, until
from support.servers.scripted_server import Fault, Item, RecordedRequest, ScriptedServer

from treadle.core.errors import ContextTooLong, DeadlineExceeded, EndpointUnavailable, ModelError
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import Completion


async def test_failing_endpoint_loses_the_request_after_two_attempts() -> None:
    def broken(recorded: RecordedRequest) -> Fault:
        return Fault.status(500, "boom")

    async with (
        ScriptedServer(broken) as bad,
        ScriptedServer(endless) as good,
        ModelPool("policy", settings(bad, good, probe_base_s=60.0, hedge_floor_s=None)) as pool,
    ):
        number = 0
        while not bad.requests:  # until a session has its home on the broken one
            assert (await ask(pool, session=str(number))).endpoint == good.url
            number += 1
        assert len(bad.requests) == pool.stats.retries["server"] == 2
        assert pool.states()[bad.url] == "healthy"
        answered = await ask_sessions(pool, [str(number) for number in range(40)])
        assert set.union(*answered.values()) == {good.url}
        assert pool.states()[bad.url] != "healthy"


async def test_prompt_that_does_not_fit_is_sent_once() -> None:
    async with ScriptedServer([Fault.too_long(2048)]) as server, ModelPool("policy", settings(server)) as pool:
        with pytest.raises(ContextTooLong, match="maximum context length is 2048"):
            await ask(pool)
    assert len(server.requests) == 1


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422])
async def test_refusals_are_final(code: int) -> None:
    async with (
        ScriptedServer([Fault.status(code, "no \x1b[31mway")]) as server,
        ModelPool("policy", settings(server)) as pool,
    ):
        with pytest.raises(ModelError, match=f"models.policy: {server.url}: HTTP {code}: no ") as caught:
            await ask(pool)
    assert not isinstance(caught.value, (EndpointUnavailable, ContextTooLong))
    assert "\x1b" not in str(caught.value) and len(server.requests) == 1


async def test_redirects_are_not_followed() -> None:
    async with ScriptedServer(endless) as other:
        moved = Fault("status", 307, "", {"Location": f"{other.url}/completions"})
        async with ScriptedServer([moved]) as server, ModelPool("policy", settings(server)) as pool:
            with pytest.raises(ModelError, match="redirects are not followed"):
                await ask(pool)
    assert other.requests == []


async def test_retry_after_is_honoured() -> None:
    asked, sleep = recorder()
    async with (
        ScriptedServer([Fault.status(429, "slow down", retry_after_s=7), "ok"]) as server,
        ModelPool("policy", settings(server), sleep=sleep) as pool,
    ):
        completion = await ask(pool)
    assert completion.retries == 1 and pool.stats.retries == {"rate_limit": 1}
    assert len(asked) == 1 and asked[0] == pytest.approx(7, abs=1)


async def test_rate_limited_endpoint_is_avoided_while_another_is_free() -> None:
    def limited(recorded: RecordedRequest) -> Fault:
        return Fault.status(503, "full", retry_after_s=3600)

    asked, sleep = recorder()
    sessions = [str(number) for number in range(16)]
    async with (
        ScriptedServer(limited) as busy,
        ScriptedServer(endless) as free,
        ModelPool("policy", settings(busy, free, hedge_floor_s=None), sleep=sleep) as pool,
    ):
        first = await ask_sessions(pool, sessions)
        asked_busy = len(busy.requests)
        second = await ask_sessions(pool, sessions)
        assert set(pool.states().values()) == {"healthy"}
    assert set.union(*first.values(), *second.values()) == {free.url}
    assert asked_busy == len(busy.requests) == pool.stats.retries["rate_limit"] > 0
    assert asked == []


async def test_wait_longer_than_the_outage_wait_is_not_started() -> None:
    asked, sleep = recorder()
    async with (
        ScriptedServer([Fault.status(429, "slow down", retry_after_s=3600)]) as server,
        ModelPool("policy", settings(server), sleep=sleep) as pool,
    ):
        with pytest.raises(EndpointUnavailable, match=r"it asked for a pause of 3600 s, longer than \d+ s"):
            await ask(pool, within_s=30)
    assert asked == [] and len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_pause_may_exceed_the_time_of_the_work(status: int) -> None:
    asked, sleep = recorder()
    async with (
        ScriptedServer([Fault.status(status, "slow down", retry_after_s=40), "ok"]) as server,
        ModelPool("policy", settings(server, outage_wait_s=60.0), sleep=sleep) as pool,
    ):
        assert (await ask(pool, within_s=30)).text == "ok"
    assert [round(pause) for pause in asked] == [40] and len(server.requests) == 2


async def test_pauses_grow_with_jitter_and_are_capped() -> None:
    asked, sleep = recorder()
    async with ScriptedServer([Fault.status(500)] * 5 + ["ok"]) as server:
        slow = settings(server, backoff_base_s=1.0, backoff_max_s=4.0, probe_base_s=0.001)
        async with ModelPool("policy", slow, sleep=sleep) as pool:
            assert (await ask(pool)).retries == 5
    assert len(asked) == 5
    for pause, most in zip(asked, [1.0, 2.0, 4.0, 4.0, 4.0], strict=True):
        assert most / 2 <= pause <= most


@pytest.mark.parametrize("fault", [Fault("malformed"), Fault("no_choices"), Fault("reset"), Fault("reset_midway")])
async def test_broken_answers_are_retried(fault: Fault) -> None:
    async with ScriptedServer([fault, fault, "fine"]) as server, ModelPool("policy", settings(server)) as pool:
        completion = await ask(pool)
    assert completion.text == "fine" and completion.retries == 2
    assert [item.body for item in server.requests] == [server.requests[0].body] * 3


async def test_endless_malformed_answers_are_a_model_error_and_failures_stay_pending() -> None:
    async with (
        ScriptedServer(lambda recorded: Fault("malformed")) as server,
        ModelPool("policy", settings(server, retry_limit=4)) as pool,
    ):
        with pytest.raises(ModelError, match="not JSON") as caught:
            await ask(pool)
    assert not isinstance(caught.value, EndpointUnavailable) and len(server.requests) == 5
    async with (
        ScriptedServer(lambda recorded: Fault.status(500, "boom")) as server,
        ModelPool("policy", settings(server, retry_limit=4)) as pool,
    ):
        with pytest.raises(EndpointUnavailable, match="boom; gave up after 5 attempts"):
            await ask(pool)
    assert len(server.requests) == 5


async def test_hanging_server_is_bounded_by_the_deadline() -> None:
    async with (
        ScriptedServer([Fault("hang")]) as server,
        ModelPool("policy", settings(server, probe_base_s=60.0)) as pool,
    ):
        with pytest.raises(DeadlineExceeded, match=server.url):
            await ask(pool, within_s=0.1)
        assert pool.stats.in_flight == 0


@pytest.mark.parametrize("fault", [Fault.status(429), Fault.status(500), Fault("malformed"), Fault("reset")])
async def test_deadline_at_a_live_server_is_a_timeout_after_a_failed_attempt(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sleep = recorder()
    async with (
        ScriptedServer([fault, Fault("hang")]) as server,
        ModelPool("policy", settings(server, probe_base_s=60.0), sleep=sleep) as pool,
    ):
        asking = asyncio.create_task(ask(pool, within_s=30))
        await until(lambda: len(server.requests) == 2)
        ForwardClock(monkeypatch).pass_(31)
        with pytest.raises(DeadlineExceeded, match=server.url):
            await asking
        assert len(server.requests) == 2


async def test_waiting_for_a_slot_does_not_count_as_request_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        ScriptedServer([Fault("hang"), "ok"]) as server,
        ModelPool("policy", settings(server, max_in_flight=1, probe_base_s=60.0)) as pool,
    ):
        asking = asyncio.gather(ask(pool, within_s=30), ask(pool, within_s=20), return_exceptions=True)
        await until(lambda: len(server.requests) == 1)
        ForwardClock(monkeypatch).pass_(31)
        first, second = await asking
    assert isinstance(first, DeadlineExceeded)
    assert isinstance(second, Completion) and second.text == "ok"


async def test_hanging_request_is_retried_after_the_request_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        ScriptedServer([Fault("hang"), "ok"]) as server,
        ModelPool("policy", settings(server, request_timeout_s=30.0, probe_base_s=60.0)) as pool,
    ):
        asking = asyncio.create_task(ask(pool, within_s=600))
        await until(lambda: len(server.requests) == 1)
        ForwardClock(monkeypatch).pass_(31)
        completion = await asking
    assert completion.text == "ok" and pool.stats.retries == {"timeout": 1}


async def test_single_failure_of_one_of_several_servers_causes_no_pause() -> None:
    asked, sleep = recorder()
    failing = {"a": Fault.status(500), "b": Fault("malformed"), "c": Fault("reset")}

    def script(recorded: RecordedRequest) -> Item:
        return failing.pop(recorded.text, "ok")

    async with ScriptedServer(script) as first, ScriptedServer(script) as second:
        slow = settings(first, second, backoff_base_s=1.0)
        async with ModelPool("policy", slow, sleep=sleep) as pool:
            for text in ("warm", "a", "warm", "b", "warm", "c"):
                assert (await ask(pool, text)).text == "ok"
    assert sorted(pool.stats.retries) == ["malformed", "reset", "server"] and asked == []
    # The session stays where its prefix is known.
    assert {len(first.requests), len(second.requests)} == {0, 9}


async def test_deadline_in_the_past_sends_nothing() -> None:
    async with ScriptedServer() as server, ModelPool("policy", settings(server)) as pool:
        with pytest.raises(DeadlineExceeded):
            await ask(pool, within_s=-1)
    assert server.requests == []


async def test_oversized_answer_is_refused() -> None:
    async with (
        ScriptedServer(lambda recorded: "x" * 5000) as server,
        ModelPool("policy", settings(server, max_response_bytes=2048, retry_limit=1)) as pool,
    ):
        with pytest.raises(ModelError, match="larger than 2048 bytes"):
            await ask(pool)
