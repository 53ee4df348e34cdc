"""What the model pool sends, to which server, and how many requests at once; against real servers on loopback."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

import pytest
from support.rollouts.model_pool import SAMPLING, ask, ask_sessions, endless, request, settings
from support.servers.own_clock import until
from support.servers.scripted_server import Fault, Item, RecordedRequest, Reply, ScriptedServer

from treadle.core.errors import EndpointUnavailable
from treadle.core.llm.config import Sampling
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import Completion, CompletionRequest


@pytest.mark.covers("flywheel-2")
async def test_request_contains_every_parameter_and_the_answer_its_ids() -> None:
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
async def test_chat_request_contains_its_own_block() -> None:
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


async def test_calls_that_were_made_without_tools_are_sent_back() -> None:
    """A model may call tools that it was not given; its message then has no content."""
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Which?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "There is no tool.", "tool_call_id": "c1"},
    ]
    async with (
        ScriptedServer([Reply("It is here.", without_ids=True)]) as server,
        ModelPool("agent", settings(server)) as pool,
    ):
        deadline = asyncio.get_running_loop().time() + 10
        completion = await pool.chat(messages, Sampling(max_tokens=4), seed=3, session="", deadline=deadline)
    assert completion.text == "It is here." and server.requests[0].body["messages"] == messages


async def test_text_prompts_request_no_ids() -> None:
    async with ScriptedServer(["a"]) as server, ModelPool("policy", settings(server)) as pool:
        text_request = CompletionRequest("text \ud800", 8, SAMPLING, (), 0)
        completion = await pool.complete(text_request, session="", deadline=asyncio.get_running_loop().time() + 10)
    assert completion.token_ids is None and "return_token_ids" not in server.requests[0].body


@pytest.mark.covers("flywheel-26")
async def test_concurrent_requests_never_share_stop_strings() -> None:
    chance = random.Random(5)

    async def script(recorded: RecordedRequest) -> str:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        return "thought </think> Analysis: more </search> end"

    stops = {"a": ("</search>",), "b": ("Analysis:", "</search>")}
    async with (
        ScriptedServer(script, stops="kept") as server,
        ModelPool("m", settings(server, hedge_floor_s=None)) as pool,
    ):
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


@pytest.mark.covers("flywheel-27")
async def test_sessions_stay_on_their_endpoint_move_during_an_outage_and_return() -> None:
    sessions = [f"question {number}" for number in range(30)]
    async with (
        ScriptedServer(endless) as first,
        ScriptedServer(endless) as second,
        ScriptedServer(endless) as third,
        ModelPool("policy", settings(first, second, third, hedge_floor_s=None)) as pool,
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
async def test_request_fails_after_bounded_time_if_all_endpoints_are_down() -> None:
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


async def test_requests_wait_for_an_endpoint_to_return() -> None:
    async with ScriptedServer(endless) as server, ModelPool("policy", settings(server)) as pool:
        await server.stop_listening()
        waiting = [asyncio.create_task(ask(pool, session=str(number))) for number in range(20)]
        await until(lambda: pool.states()[server.url] == "down")
        await server.start_listening()
        assert [item.text for item in await asyncio.gather(*waiting)] == ["ok"] * 20


async def test_requests_in_flight_respect_the_cap_and_cancelled_ones_free_their_slot() -> None:
    gate = asyncio.Event()

    async def script(recorded: RecordedRequest) -> str:
        await gate.wait()
        return "ok"

    few = {"max_in_flight": 4, "hedge_floor_s": None}
    async with ScriptedServer(script) as server, ModelPool("policy", settings(server, **few)) as pool:
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
    """A server with a capacity that answers 429 beyond it; answers the oldest request when idle."""

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


async def test_server_limit_is_found_and_kept() -> None:
    narrow, number = Narrow(8), iter(range(1000))
    async with ScriptedServer(narrow) as server, ModelPool("policy", settings(server, hedge_floor_s=None)) as pool:

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
        ModelPool("summarizer", settings(first, second, hedge_floor_s=None)) as pool,
    ):
        tasks = [asyncio.create_task(ask(pool, session="")) for _ in range(10)]
        await until(lambda: first.in_flight + second.in_flight == 10)
        assert first.in_flight == second.in_flight == 5
        gate.set()
        await asyncio.gather(*tasks)


async def test_closing_the_pool_cancels_active_and_waiting_requests() -> None:
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
