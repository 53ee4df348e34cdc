"""Placement, retries, deadlines and preflight of the model pool, against real servers on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.scripted_server import ByteCodec, Fault, Item, RecordedRequest, Reply, ScriptedServer

from treadle.core.errors import ConfigError, ContextTooLong, DeadlineExceeded, EndpointUnavailable, ModelError
from treadle.core.llm.call import Call, completions_url
from treadle.core.llm.config import EndpointSettings, ModelSettings, Sampling
from treadle.core.llm.endpoint import GONE_AFTER_S, Endpoint
from treadle.core.llm.hedge import Hedges
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.llm.wire import parse_completion

SAMPLING = Sampling(temperature=0.7, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1, max_tokens=64)
FAST = {"backoff_base_s": 0.0, "probe_base_s": 0.001, "probe_max_s": 0.01, "outage_wait_s": 5.0}


def settings(*servers: ScriptedServer | str, **overrides: object) -> ModelSettings:
    urls = [item if isinstance(item, str) else item.url for item in servers]
    endpoints = tuple(EndpointSettings(url=url) for url in urls)
    return ModelSettings.model_validate({"model": "scripted", "endpoints": endpoints, **FAST, **overrides})


def request(text: str = "q", stop: tuple[str, ...] = ("</search>",), seed: int = 1) -> CompletionRequest:
    return CompletionRequest(list(text.encode()), max_tokens=32, sampling=SAMPLING, stop=stop, seed=seed)


async def ask(pool: ModelPool, text: str = "q", session: str = "s", within_s: float = 20.0) -> Completion:
    return await pool.complete(request(text), session=session, deadline=asyncio.get_running_loop().time() + within_s)


def recorder() -> tuple[list[float], Callable[[float], Awaitable[None]]]:
    """A stand-in for asyncio.sleep that notes what it was asked and returns at once."""
    asked: list[float] = []

    async def sleep(seconds: float) -> None:
        asked.append(seconds)
        await asyncio.sleep(0)

    return asked, sleep


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.mark.covers("flywheel-2")
async def test_a_request_carries_every_parameter_and_the_answer_its_ids() -> None:
    async with (
        ScriptedServer([Reply("a</search>", stop_reason="</search>")]) as server,
        ModelPool("policy", settings(server)) as pool,
    ):
        completion = await pool.complete(
            request("hello", stop=("</python>", "</search>", "</answer>"), seed=77),
            session="s",
            deadline=asyncio.get_running_loop().time() + 10,
        )
    assert server.requests[0].path == "/v1/completions"
    assert server.requests[0].body == {
        "model": "scripted",
        "prompt": list(b"hello"),
        "max_tokens": 32,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "seed": 77,
        "stop": ["</python>", "</search>", "</answer>"],
        "include_stop_str_in_output": True,
        "return_token_ids": True,
    }
    assert completion.text == "a</search>"
    assert completion.token_ids == tuple(b"a</search>")
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "</search>")
    assert (completion.prompt_tokens, completion.completion_tokens) == (5, 10)
    assert completion.endpoint == server.url and completion.retries == 0


@pytest.mark.covers("flywheel-2")
async def test_a_chat_request_carries_its_own_block() -> None:
    messages = [{"role": "system", "content": "judge"}, {"role": "user", "content": "q"}]
    async with ScriptedServer(["Correct"]) as server, ModelPool("judge", settings(server)) as pool:
        judge = Sampling(temperature=0.0, top_p=1.0, max_tokens=16)
        completion = await pool.chat(
            messages, judge, seed=3, session="", deadline=asyncio.get_running_loop().time() + 10
        )
    body = server.requests[0].body
    assert server.requests[0].path == "/v1/chat/completions" and body["messages"] == messages
    sent = {key: body[key] for key in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")}
    assert sent == judge.model_dump() and body["seed"] == 3
    assert completion.text == "Correct" and completion.token_ids is None


async def test_text_prompts_ask_for_no_ids() -> None:
    async with ScriptedServer(["a"]) as server, ModelPool("policy", settings(server)) as pool:
        text_request = CompletionRequest("text \ud800", 8, SAMPLING, (), 0)
        completion = await pool.complete(text_request, session="", deadline=asyncio.get_running_loop().time() + 10)
    assert completion.token_ids is None and "return_token_ids" not in server.requests[0].body


@pytest.mark.covers("flywheel-26")
async def test_concurrent_questions_never_see_each_others_stops() -> None:
    chance = random.Random(5)

    async def script(recorded: RecordedRequest) -> str:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        return "thought </think> Analysis: more </search> end"

    stops = {"a": ("</search>",), "b": ("Analysis:", "</search>")}
    async with ScriptedServer(script, honour_stops=True) as server, ModelPool("m", settings(server)) as pool:
        deadline = asyncio.get_running_loop().time() + 60

        async def one(kind: str) -> tuple[str, str]:
            completion = await pool.complete(request(kind, stops[kind]), session=kind, deadline=deadline)
            return kind, completion.text

        for _ in range(20):
            kinds = ["a", "b"] * 50
            chance.shuffle(kinds)
            for kind, text in await asyncio.gather(*map(one, kinds)):
                assert text.endswith(stops[kind][0])
                assert text == (
                    "thought </think> Analysis: more </search>" if kind == "a" else "thought </think> Analysis:"
                )
    assert len(server.requests) == 2000
    assert all(tuple(item.body["stop"]) == stops[item.text] for item in server.requests)


def endless(recorded: RecordedRequest) -> str:
    return "ok"


async def ask_sessions(pool: ModelPool, sessions: list[str]) -> dict[str, set[str]]:
    """Three calls per session, all at once; session -> endpoints that answered."""
    answered = defaultdict(set)

    async def one(session: str) -> None:
        answered[session].add((await ask(pool, session=session)).endpoint)

    await asyncio.gather(*(one(session) for session in sessions for _ in range(3)))
    return answered


@pytest.mark.covers("flywheel-27")
async def test_questions_stay_on_their_endpoint_move_when_it_is_down_and_return() -> None:
    sessions = [f"question {number}" for number in range(30)]
    async with (
        ScriptedServer(endless) as first,
        ScriptedServer(endless) as second,
        ScriptedServer(endless) as third,
        ModelPool("policy", settings(first, second, third)) as pool,
    ):
        home = await ask_sessions(pool, sessions)
        assert all(len(urls) == 1 for urls in home.values())
        assert set.union(*home.values()) == {first.url, second.url, third.url}

        await second.stop_listening()
        during = await ask_sessions(pool, sessions)
        assert pool.states()[second.url] == "down"
        for session in sessions:
            if home[session] == {second.url}:
                assert len(during[session]) == 1 and during[session] != {second.url}
            else:
                assert during[session] == home[session]

        await second.start_listening()
        await until(lambda: pool.states()[second.url] != "down")
        assert await ask_sessions(pool, sessions) == home
        assert set(pool.states().values()) == {"healthy"}


@pytest.mark.covers("flywheel-27")
async def test_with_all_endpoints_down_a_request_fails_after_bounded_time() -> None:
    async with (
        ScriptedServer() as first,
        ScriptedServer() as second,
        ModelPool("policy", settings(first, second, outage_wait_s=0.05)) as pool,
    ):
        await first.stop_listening()
        await second.stop_listening()
        with pytest.raises(EndpointUnavailable) as caught:
            await ask(pool, within_s=3600)
    assert "models.policy" in str(caught.value) and first.url in str(caught.value) and second.url in str(caught.value)
    assert caught.value.retryable


async def test_requests_wait_for_an_endpoint_that_comes_back() -> None:
    async with ScriptedServer(endless) as server, ModelPool("policy", settings(server)) as pool:
        await server.stop_listening()
        waiting = [asyncio.create_task(ask(pool, session=str(number))) for number in range(20)]
        await until(lambda: pool.states()[server.url] == "down")
        await server.start_listening()
        assert [item.text for item in await asyncio.gather(*waiting)] == ["ok"] * 20


def outage_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("treadle.core.llm")]


async def test_an_outage_is_one_line_when_it_begins_and_one_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    sessions = [f"question {number}" for number in range(20)]
    async with (
        ScriptedServer(endless) as first,
        ScriptedServer(endless) as second,
        ModelPool("policy", settings(first, second)) as pool,
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
        # The next outages within a minute are counted, not told.
        for _ in range(3):
            await first.stop_listening()
            await ask_sessions(pool, sessions)
            await first.start_listening()
            await until(lambda: pool.states()[first.url] != "down")
            await ask_sessions(pool, sessions)
        assert len(outage_lines(caplog)) == 2


async def test_that_no_endpoint_is_left_is_one_line_for_all_that_wait(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedServer(endless) as server, ModelPool("policy", settings(server)) as pool:
        await server.stop_listening()
        waiting = [asyncio.create_task(ask(pool, session=str(number))) for number in range(50)]
        await until(lambda: len(outage_lines(caplog)) == 2)
        await server.start_listening()
        await asyncio.gather(*waiting)
        down, left, back = outage_lines(caplog)
    assert "is down" in down and "requests wait up to 5 s (outage_wait_s)" in left and "answers again" in back


async def test_silence_is_one_line_too_and_a_long_answer_is_none(caplog: pytest.LogCaptureFixture) -> None:
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
        await until(lambda: pool.stats.retries["late"] > 0)  # the endpoint went down, was asked, and answered
        await until(lambda: "down" not in pool.states().values())
        assert outage_lines(caplog) == []
        silent.set()
        again = asyncio.create_task(ask(pool, "long", session="1"))
        await until(lambda: len(outage_lines(caplog)) > 0)
        silent.clear()
        back.set()
        await asyncio.gather(asking, again)
    lines = outage_lines(caplog)
    assert "is down: no answer within" in lines[0]
    assert all(re.search("is down: no answer|answers again after|no endpoint is left", line) for line in lines)


async def test_single_failures_and_failures_by_chance_are_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    items = [Fault.status(500), Fault("malformed"), Fault.status(500), "ok"] * 3
    async with ScriptedServer(items) as server, ModelPool("policy", settings(server)) as pool:
        for _ in range(3):
            await ask(pool)
            assert pool.states()[server.url] == "healthy"
    assert outage_lines(caplog) == []


async def test_hostile_words_and_the_key_do_not_reach_the_line_of_an_outage(
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


async def test_a_failing_endpoint_loses_the_request_after_two_attempts() -> None:
    def broken(recorded: RecordedRequest) -> Fault:
        return Fault.status(500, "boom")

    async with (
        ScriptedServer(broken) as bad,
        ScriptedServer(endless) as good,
        ModelPool("policy", settings(bad, good, probe_base_s=60.0)) as pool,
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


async def test_a_prompt_that_does_not_fit_is_asked_once() -> None:
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


async def test_a_rate_limited_endpoint_is_avoided_while_another_is_free() -> None:
    def limited(recorded: RecordedRequest) -> Fault:
        return Fault.status(503, "full", retry_after_s=3600)

    asked, sleep = recorder()
    sessions = [str(number) for number in range(16)]
    async with (
        ScriptedServer(limited) as busy,
        ScriptedServer(endless) as free,
        ModelPool("policy", settings(busy, free), sleep=sleep) as pool,
    ):
        first = await ask_sessions(pool, sessions)
        asked_busy = len(busy.requests)
        second = await ask_sessions(pool, sessions)
        assert set(pool.states().values()) == {"healthy"}
    assert set.union(*first.values(), *second.values()) == {free.url}
    assert asked_busy == len(busy.requests) == pool.stats.retries["rate_limit"] > 0
    assert asked == []


async def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    asked, sleep = recorder()
    async with (
        ScriptedServer([Fault.status(429, "slow down", retry_after_s=3600)]) as server,
        ModelPool("policy", settings(server), sleep=sleep) as pool,
    ):
        with pytest.raises(EndpointUnavailable, match="past the deadline"):
            await ask(pool, within_s=30)
    assert asked == [] and len(server.requests) == 1


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
async def test_broken_answers_are_asked_again(fault: Fault) -> None:
    async with ScriptedServer([fault, fault, "fine"]) as server, ModelPool("policy", settings(server)) as pool:
        completion = await ask(pool)
    assert completion.text == "fine" and completion.retries == 2
    assert [item.body for item in server.requests] == [server.requests[0].body] * 3


async def test_endless_nonsense_ends_as_a_model_error_and_endless_failures_as_owed() -> None:
    async with (
        ScriptedServer(lambda recorded: Fault("malformed")) as server,
        ModelPool("policy", settings(server, retry_limit=4)) as pool,
    ):
        with pytest.raises(ModelError, match="not a completion") as caught:
            await ask(pool)
    assert not isinstance(caught.value, EndpointUnavailable) and len(server.requests) == 5
    async with (
        ScriptedServer(lambda recorded: Fault.status(500, "boom")) as server,
        ModelPool("policy", settings(server, retry_limit=4)) as pool,
    ):
        with pytest.raises(EndpointUnavailable, match="boom; gave up after 5 attempts"):
            await ask(pool)
    assert len(server.requests) == 5


async def test_a_hanging_server_is_bounded_by_the_deadline() -> None:
    async with ScriptedServer([Fault("hang")]) as server, ModelPool("policy", settings(server)) as pool:
        with pytest.raises(DeadlineExceeded, match=server.url):
            await ask(pool, within_s=0.1)
        assert pool.stats.in_flight == 0


async def test_a_request_that_never_found_a_slot_is_owed() -> None:
    async with (
        ScriptedServer([Fault("hang")]) as server,
        ModelPool("policy", settings(server, max_in_flight=1)) as pool,
    ):
        first, second = await asyncio.gather(
            ask(pool, within_s=0.2), ask(pool, within_s=0.1), return_exceptions=True
        )  # fmt: skip
    assert isinstance(first, DeadlineExceeded)
    assert isinstance(second, EndpointUnavailable) and "no free slot" in str(second)
    assert len(server.requests) == 1


async def test_a_hanging_request_is_asked_again_after_the_request_time_limit() -> None:
    async with (
        ScriptedServer([Fault("hang"), "ok"]) as server,
        ModelPool("policy", settings(server, request_timeout_s=0.1)) as pool,
    ):
        completion = await ask(pool)
    assert completion.text == "ok" and pool.stats.retries == {"timeout": 1}


async def warmed(pool: ModelPool) -> None:
    """Enough answers to know how long one takes."""
    for number in range(16):
        await ask(pool, str(number), session=str(number))


@pytest.mark.parametrize("num_servers", [1, 2])
async def test_a_request_that_is_never_answered_is_asked_beside_and_costs_no_time_limit(num_servers: int) -> None:
    def script(recorded: RecordedRequest) -> Item:
        unlucky = recorded.text == "unlucky" and not any(item.outcome == "hang" for item in everything())
        return Fault("hang") if unlucky else "ok"

    def everything() -> list[RecordedRequest]:
        return [item for server in servers for item in server.requests]

    servers = [ScriptedServer(script) for _ in range(num_servers)]
    async with contextlib.AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        pool = await stack.enter_async_context(ModelPool("policy", settings(*servers, hedge_floor_s=0.05)))
        await warmed(pool)
        completion = await ask(pool, "unlucky", within_s=30)
        asked = [item for item in everything() if item.text == "unlucky"]
        assert completion.text == "ok" and completion.retries == 1
        assert pool.stats.retries == {"late": 1} and pool.stats.in_flight == 0
        assert len(asked) == 2 and asked[0].body == asked[1].body
        assert num_servers == 1 or {len(server.requests) for server in servers} != {0}
        hung = next(server for server in servers if any(item.outcome == "hang" for item in server.requests))
        assert num_servers == 1 or completion.endpoint != hung.url


async def test_a_long_request_that_was_asked_beside_still_counts() -> None:
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
        ModelPool("policy", settings(server, hedge_floor_s=0.05)) as pool,
    ):
        await warmed(pool)
        completion = await ask(pool, "long", within_s=30)
        await until(lambda: pool.stats.in_flight == 0)
    assert completion.text == "the long answer" and completion.retries == 1


async def test_what_a_server_refuses_beside_a_late_request_ends_it() -> None:
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


async def test_what_a_server_holds_that_fell_silent_is_asked_elsewhere_before_it_is_late() -> None:
    endpoint = Endpoint(EndpointSettings(url="http://localhost:1/v1"), max_in_flight=4)
    loop, hedged = asyncio.get_running_loop(), asyncio.Event()
    hedges = Hedges(3600.0, most_per_call=1)
    call = Call(completions_url, b"", parse_completion, "s", loop.time() + 3600)
    endpoint.silent = True
    assert endpoint.failed(at_once=True)
    endpoint.down_at = loop.time() - GONE_AFTER_S
    hedges.sent(call, endpoint, loop.time())

    async def hedge(late: Call) -> None:
        assert late is call
        hedged.set()

    watch = asyncio.create_task(hedges.watch(lambda late, where: None, hedge))
    async with asyncio.timeout(20):
        await hedged.wait()
    watch.cancel()
    endpoint.readmit()
    assert not endpoint.gone(loop.time())


async def test_a_single_failure_of_a_server_among_several_costs_no_pause() -> None:
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


async def test_no_request_is_asked_beside_where_that_is_switched_off() -> None:
    async with (
        ScriptedServer(lambda recorded: Fault("hang") if recorded.text == "q" else "ok") as server,
        ModelPool("policy", settings(server, hedge_floor_s=None)) as pool,
    ):
        await warmed(pool)
        with pytest.raises(DeadlineExceeded):
            await ask(pool, "q", within_s=0.3)
        assert len(server.requests) == 17


async def test_a_server_that_falls_silent_loses_all_that_it_holds_to_the_others() -> None:
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
            # Of a session's calls some may be late on a busy machine and be answered beside, but not all.
            assert [session for session in sessions if not again[session] & home[session]] == []


async def test_a_deadline_in_the_past_sends_nothing() -> None:
    async with ScriptedServer() as server, ModelPool("policy", settings(server)) as pool:
        with pytest.raises(DeadlineExceeded):
            await ask(pool, within_s=-1)
    assert server.requests == []


async def test_an_oversized_answer_is_refused() -> None:
    async with (
        ScriptedServer(lambda recorded: "x" * 5000) as server,
        ModelPool("policy", settings(server, max_response_bytes=2048, retry_limit=1)) as pool,
    ):
        with pytest.raises(ModelError, match="larger than 2048 bytes"):
            await ask(pool)


async def test_requests_in_flight_stay_under_the_cap_and_cancelled_ones_free_their_place() -> None:
    gate = asyncio.Event()

    async def script(recorded: RecordedRequest) -> str:
        await gate.wait()
        return "ok"

    async with ScriptedServer(script) as server, ModelPool("policy", settings(server, max_in_flight=4)) as pool:
        tasks = [asyncio.create_task(ask(pool, session=str(number))) for number in range(30)]
        await until(lambda: server.in_flight == 4)
        for task in tasks[2:10]:
            task.cancel()
        await until(lambda: len(server.requests) == 6)
        gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(item, Completion) for item in results) == 22
    assert pool.stats.peak_in_flight == 4


class Narrow:
    """A server that holds so many requests and answers 429 to the one more; answers the oldest when all is quiet."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.refused = 0
        self.held_at_answers: list[int] = []
        self._held: deque[asyncio.Event] = deque()

    async def __call__(self, recorded: RecordedRequest) -> Item:
        if len(self._held) >= self.most:
            self.refused += 1
            return Fault.status(429, "too many at once")
        done = asyncio.Event()
        self._held.append(done)
        await done.wait()
        return "ok"

    async def serve(self) -> None:
        while True:
            for _ in range(25):  # more turns of the loop than a refusal and the next request need
                await asyncio.sleep(0)
            if self._held:
                self.held_at_answers.append(len(self._held))
                self._held.popleft().set()


async def test_the_limit_of_a_server_is_found_and_held() -> None:
    narrow, number = Narrow(8), iter(range(1000))
    async with ScriptedServer(narrow) as server, ModelPool("policy", settings(server)) as pool:

        async def work() -> None:
            for _ in number:
                await ask(pool, within_s=60)

        serving = asyncio.create_task(narrow.serve())
        await asyncio.gather(*(work() for _ in range(100)))
        serving.cancel()
    assert pool.stats.completions == 1000 and pool.stats.retries == {"rate_limit": narrow.refused}
    assert server.max_in_flight <= 64
    # Found within the first 64 requests, left with the last ones, and never more than one beyond it in between.
    assert min(narrow.held_at_answers[:-100]) >= 6
    assert narrow.refused <= 56 + 4 * 10


async def test_requests_without_a_session_go_to_the_least_loaded() -> None:
    gate = asyncio.Event()

    async def script(recorded: RecordedRequest) -> str:
        await gate.wait()
        return "ok"

    async with (
        ScriptedServer(script) as first,
        ScriptedServer(script) as second,
        ModelPool("summarizer", settings(first, second)) as pool,
    ):
        tasks = [asyncio.create_task(ask(pool, session="")) for _ in range(10)]
        await until(lambda: first.in_flight + second.in_flight == 10)
        assert first.in_flight == second.in_flight == 5
        gate.set()
        await asyncio.gather(*tasks)


async def test_closing_the_pool_ends_what_is_in_flight_or_waiting() -> None:
    def hang(recorded: RecordedRequest) -> Fault:
        return Fault("hang")

    async with ScriptedServer(hang) as server:
        async with ModelPool("policy", settings(server, max_in_flight=3)) as pool:
            tasks = [asyncio.create_task(ask(pool, within_s=3600)) for _ in range(8)]
            await until(lambda: server.in_flight == 3)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(item, EndpointUnavailable) and "stopped" in str(item) for item in results)
        with pytest.raises(EndpointUnavailable, match="not open"):
            await ask(pool)


async def test_a_drained_endpoint_finishes_what_it_has_and_gets_nothing_new() -> None:
    gate = asyncio.Event()

    async def script(recorded: RecordedRequest) -> str:
        await gate.wait()
        return "ok"

    async with (
        ScriptedServer(script) as first,
        ScriptedServer(endless) as second,
        ModelPool("policy", settings(first, second)) as pool,
    ):
        sessions = [str(number) for number in range(20)]
        tasks = [asyncio.create_task(ask(pool, session=session)) for session in sessions]
        await until(lambda: first.in_flight > 0 and first.in_flight + len(second.requests) == 20)
        draining = asyncio.create_task(pool.drain(first.url))
        await asyncio.sleep(0)
        before = len(first.requests)
        await asyncio.gather(*(ask(pool, session=session) for session in sessions))
        assert len(first.requests) == before and not draining.done()
        gate.set()
        await draining
        assert len(await asyncio.gather(*tasks)) == 20
        pool.resume(first.url)
        answered = await ask_sessions(pool, sessions)
    assert set.union(*answered.values()) == {first.url, second.url}


async def test_a_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_MODEL_KEY", "sk-hidden")
    async with ScriptedServer([Fault.status(401, "bad key")]) as server:
        keyed = settings(server).model_copy(
            update={"endpoints": (EndpointSettings(url=server.url, api_key_env="TEST_MODEL_KEY"),)}
        )
        async with ModelPool("policy", keyed) as pool:
            with pytest.raises(ModelError, match="api_key_env") as caught:
                await ask(pool)
        assert server.requests[0].headers["Authorization"] == "Bearer sk-hidden"
        assert "sk-hidden" not in str(caught.value) + repr(keyed)
        monkeypatch.delenv("TEST_MODEL_KEY")
        with pytest.raises(ConfigError, match="TEST_MODEL_KEY is not set"):
            await ModelPool("policy", keyed).__aenter__()


@pytest.mark.parametrize("spelled", ["sk-hidden/key", "sk\\u002dhidden\\/key"])
async def test_a_completion_that_repeats_the_key_is_no_answer(monkeypatch: pytest.MonkeyPatch, spelled: str) -> None:
    monkeypatch.setenv("TEST_MODEL_KEY", "sk-hidden/key")
    good = '{"choices": [{"text": "%s", "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}'
    leak = Fault("status", 200, good % f"your key is {spelled}")
    async with ScriptedServer([leak, "fine", leak, leak]) as server:
        endpoints = (EndpointSettings(url=server.url, api_key_env="TEST_MODEL_KEY"),)
        keyed = settings(server, retry_limit=1).model_copy(update={"endpoints": endpoints})
        async with ModelPool("policy", keyed) as pool:
            assert (await ask(pool)).text == "fine" and pool.stats.retries == {"malformed": 1}
            with pytest.raises(ModelError, match="repeats the key") as caught:
                await ask(pool)
            assert "hidden" not in str(caught.value)


async def test_a_placeholder_for_a_key_may_be_a_word_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_MODEL_KEY", "EMPTY")
    async with ScriptedServer(["the set is EMPTY"]) as server:
        endpoints = (EndpointSettings(url=server.url, api_key_env="TEST_MODEL_KEY"),)
        async with ModelPool("policy", settings(server).model_copy(update={"endpoints": endpoints})) as pool:
            assert (await ask(pool)).text == "the set is EMPTY"


async def test_check_reports_what_the_servers_can_do() -> None:
    async with (
        ScriptedServer(endless, max_model_len=4096) as first,
        ScriptedServer(endless, max_model_len=2048) as second,
        ModelPool("policy", settings(first, second)) as pool,
    ):
        facts = await pool.check()
    assert (facts.model, facts.max_model_len, facts.token_ids) == ("scripted", 2048, True)
    assert facts.endpoints == (first.url, second.url)
    assert [item.body["max_tokens"] for item in first.requests] == [1]


async def test_check_finds_servers_without_ids() -> None:
    async with ScriptedServer(endless, ids=False) as server:
        async with ModelPool("policy", settings(server)) as pool:
            assert not (await pool.check()).token_ids
            assert (await ask(pool)).token_ids is None
        async with ModelPool("policy", settings(server, token_ids="required")) as pool:
            with pytest.raises(ConfigError, match="does not return token ids"):
                await pool.check()
            with pytest.raises(ModelError, match="returned no token ids"):
                await ask(pool)


def refuse_ids(recorded: RecordedRequest) -> str | Fault:
    return Fault.status(400, "prompt must be a string") if isinstance(recorded.prompt, list) else "ok"


async def test_check_falls_back_to_text_where_ids_are_refused() -> None:
    async with ScriptedServer(refuse_ids) as server, ModelPool("policy", settings(server)) as pool:
        assert not (await pool.check()).token_ids


async def test_check_rides_out_passing_faults() -> None:
    asked, sleep = recorder()
    async with (
        ScriptedServer([Fault.status(500), Fault("reset"), Fault("malformed"), "ok"]) as server,
        ModelPool("policy", settings(server), sleep=sleep) as pool,
    ):
        assert (await pool.check()).token_ids
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model": "other"}, "does not serve model 'other'; it serves: scripted"),
        ({"max_model_len": 9000}, "serves a window of 4096 tokens, fewer than max_model_len = 9000"),
    ],
)
async def test_check_refuses_a_server_that_disagrees(overrides: dict[str, object], message: str) -> None:
    async with ScriptedServer(endless) as server, ModelPool("policy", settings(server, **overrides)) as pool:
        with pytest.raises(ConfigError, match=message):
            await pool.check()


async def test_check_says_that_a_listed_model_without_completions_is_chat_only() -> None:
    async with ScriptedServer([Fault.status(404)] * 2) as server, ModelPool("policy", settings(server)) as pool:
        with pytest.raises(ConfigError, match="lists the model, but .*/completions answers HTTP 404: .* chat-only"):
            await pool.check()


async def test_check_asks_chat_only_services_over_their_route_with_openais_own_keys() -> None:
    async with (
        ScriptedServer(endless, chat_only=True) as server,
        ModelPool("judge", settings(server, api="chat")) as pool,
    ):
        assert not (await pool.check(OtherBytes(0))).token_ids
        sampling = Sampling(top_k=-1, max_tokens=5)
        messages = [{"role": "user", "content": "Same?"}]
        await pool.chat(
            messages, sampling, seed=3, session="", deadline=asyncio.get_running_loop().time() + 20, stop=(";",)
        )
    probe, asked = server.requests
    assert {probe.path, asked.path} == {"/v1/chat/completions"}
    assert probe.body["max_tokens"] == 1 and asked.body["stop"] == [";"]
    assert set(asked.body) == {"model", "messages", "max_tokens", "temperature", "top_p", "seed", "stop"}


async def test_check_says_where_a_server_has_no_chat() -> None:
    async with (
        ScriptedServer([Fault.status(404)]) as server,
        ModelPool("judge", settings(server, api="chat")) as pool,
    ):
        with pytest.raises(ConfigError, match='/chat/completions answers HTTP 404; set api = "completions"'):
            await pool.check()


class OtherBytes(ByteCodec):
    """As many ids as the server's, each by so many another."""

    folder = Path("/models/other")

    def __init__(self, shift: int) -> None:
        self._shift = shift

    def encode(self, text: str) -> list[int]:
        return [(item + self._shift) % 256 for item in super().encode(text)]


@pytest.mark.parametrize("bos", [(), (256,)])
async def test_check_compares_the_servers_ids_of_a_text_with_ours(bos: tuple[int, ...]) -> None:
    async with (
        ScriptedServer(endless, tells_prompts=True, bos=bos) as server,
        ModelPool("policy", settings(server)) as pool,
    ):
        assert (await pool.check(OtherBytes(0))).token_ids
        with pytest.raises(ConfigError, match=f"endpoint {server.url} understands .* tokenizer in /models/other makes"):
            await pool.check(OtherBytes(1))


@pytest.mark.parametrize(("tells_prompts", "token_ids"), [(False, "auto"), (True, "off")])
async def test_check_compares_no_ids_where_none_are_told_or_used(tells_prompts: bool, token_ids: str) -> None:
    async with (
        ScriptedServer(endless, tells_prompts=tells_prompts) as server,
        ModelPool("policy", settings(server, token_ids=token_ids)) as pool,
    ):
        await pool.check(OtherBytes(1))
    assert len(server.requests) == 1


async def test_check_names_an_unreachable_endpoint() -> None:
    async with ScriptedServer(endless) as server, ModelPool("policy", settings(server)) as pool:
        await server.stop_listening()
        with pytest.raises(EndpointUnavailable, match=f"models.policy: endpoint {server.url} cannot be reached"):
            await pool.check()
    with pytest.raises(ConfigError, match="models.policy has no endpoints"):
        await ModelPool("policy", settings()).__aenter__()
