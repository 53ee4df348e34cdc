"""HTTP endpoints as tools: requests, answers, failures of the server, secrets and hostile answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError
from support.servers.own_clock import ForwardClock
from support.servers.ports import free_port
from support.servers.scripted_search import Pauses

from treadle.agent.contract import Task
from treadle.agent.tools.http import MAX_ANSWER_BYTES, NO_TEXT, HttpTool, HttpToolSettings
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.settings import ToolResources
from treadle.core.errors import ConfigError, ToolError
from treadle.core.work_clock import timed_work, work_clock
from treadle.environments.tools.registry import TOOLS

CONTEXT = CallContext("q", (), seed=0)
KEY = "key-9f2c71d4e8"
Reply = web.StreamResponse | None | str
"""An answer; None cuts the connection, a text never answers."""


class Endpoint:
    """Answers with a script, whose last answer is repeated."""

    def __init__(self, *script: Callable[[], Reply]) -> None:
        self.script = list(script)
        self.asked: list[tuple[str, str, bytes, Mapping[str, str]]] = []
        self.freed = asyncio.Event()
        self.on_hang: Callable[[], None] = lambda: None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.url.raw_query_string, await request.read(), request.headers))
        answer = (self.script[0] if len(self.script) == 1 else self.script.pop(0))()
        if answer is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if isinstance(answer, str):
            self.on_hang()
            await self.freed.wait()
            return web.Response()
        return answer


def settings(**keys: Any) -> HttpToolSettings:
    given = {"type": "http", "url": "http://127.0.0.1:1/x", "description": "Look up.", **keys}
    parsed = TOOLS.parse(given)
    assert isinstance(parsed, HttpToolSettings)
    return parsed


class Called:
    """What calls of a scripted endpoint led to."""

    def __init__(self, endpoint: Endpoint, outcomes: list[ToolOutcome], pauses: Pauses) -> None:
        self.endpoint, self.outcomes, self.pauses = endpoint, outcomes, pauses

    @property
    def outcome(self) -> ToolOutcome:
        (found,) = self.outcomes
        return found


def call(
    *script: Callable[[], Reply], arguments: Mapping[str, Any] | None = None, times: int = 1, **keys: Any
) -> Called:
    async def run() -> Called:
        endpoint = Endpoint(*script)
        endpoint.on_hang = partial(ForwardClock(patch).pass_, 3600.0)
        app = web.Application()
        app.router.add_route("*", "/x", endpoint.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/x{keys.pop('query', '')}"
            pauses = Pauses()
            source = settings(url=url, **keys).source("look-up", ToolResources())
            assert isinstance(source, HttpTool)

            async def pause(seconds: float) -> None:
                assert work_clock().loop_time(0.0) is None, "the clock is not held"
                await pauses(seconds)

            source._sleep = pause
            outcomes = []
            async with source:
                tools = await source.episode(Task("k", "q"), 0)
                for _ in range(times):
                    with timed_work() as clock:
                        before = clock.time()
                        made = await tools.call("look-up", arguments or {}, deadline=before, context=CONTEXT)
                        outcomes.append(made)
            return Called(endpoint, outcomes, pauses)
        finally:
            endpoint.freed.set()
            await runner.cleanup()

    with pytest.MonkeyPatch.context() as patch:
        return asyncio.run(run())


def replies(status: int = 200, body: str | bytes = "fine", **more: Any) -> Callable[[], Reply]:
    data = body.encode() if isinstance(body, str) else body
    more.setdefault("content_type", "text/plain")
    return lambda: web.Response(status=status, body=data, **more)


def test_arguments_are_the_json_body() -> None:
    arguments = {"id": "a\ud800é", "n": [1, None], "big": 10**30}
    called = call(replies(body='{"a": 1}', content_type="application/json"), arguments=arguments)
    assert (called.outcome.status, called.outcome.text) == ("ok", '{"a": 1}')
    ((method, query, body, headers),) = called.endpoint.asked
    assert (method, query, json.loads(body)) == ("POST", "", arguments)
    assert headers["Content-Type"] == "application/json"


def test_arguments_are_the_query_of_a_get() -> None:
    arguments = {"q": "a b&c=d#e\ud800", "ids": [1, 2], "on": True, "none": None, "t": {"x": 1.5}}
    called = call(replies(), arguments=arguments, method="GET", query="?format=json")
    ((method, query, body, _),) = called.endpoint.asked
    assert (method, body) == ("GET", b"")
    assert query == "format=json&q=a+b%26c%3Dd%23e%EF%BF%BD&ids=1&ids=2&on=true&t=%7B%22x%22:+1.5%7D"


@pytest.mark.parametrize("status", [400, 403, 404, 422])
def test_client_errors_are_the_agents(status: int) -> None:
    called = call(replies(status, "no such id" + 100 * "x"), max_output_chars=80)
    assert called.outcome.status == "error" and called.outcome.text.startswith(f"HTTP {status}: no such")
    assert len(called.outcome.text) == 80 and len(called.endpoint.asked) == 1


@pytest.mark.parametrize(
    "failure",
    [replies(429), replies(500), replies(503), replies(408), lambda: None, lambda: "hang"],
    ids=["429", "500", "503", "408", "reset", "frozen"],
)
def test_failures_of_the_server_are_retried_and_then_pending(failure: Callable[[], Reply]) -> None:
    called = call(failure, failure, replies())
    assert called.outcome.text == "fine" and len(called.endpoint.asked) == 3 and len(called.pauses.seconds) == 2
    with pytest.raises(ToolError, match=r"look-up, http://127.0.0.1:\d+/x: .*; retries: 1") as raised:
        call(failure, retry_limit=1, query="?secret=1")
    assert raised.value.retryable and "secret" not in str(raised.value)


def test_pauses_that_the_server_asks_for_are_kept_up_to_a_minute() -> None:
    called = call(replies(429, headers={"Retry-After": "7"}), replies(503, headers={"Retry-After": "900"}), replies())
    assert called.pauses.seconds == [7.0, 60.0]


def test_unreachable_endpoint_is_pending() -> None:
    async def run() -> None:
        source = settings(url=f"http://127.0.0.1:{free_port()}/x", retry_limit=0).source("t", ToolResources())
        async with source:
            tools = await source.episode(Task("k", "q"), 0)
            await tools.call("t", {}, deadline=float("inf"), context=CONTEXT)

    with pytest.raises(ToolError, match="Cannot connect") as raised:
        asyncio.run(run())
    assert raised.value.retryable


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (replies(401), "hold the keys"),
        (replies(302, headers={"Location": "http://10.0.0.1/"}), "moved to http://10.0.0.1/"),
        (replies(headers={"Content-Encoding": "gzip"}), "compressed"),
    ],
)
def test_wrong_setup_stops_at_once(reply: Callable[[], Reply], said: str) -> None:
    with pytest.raises(ToolError, match=said) as raised:
        call(reply)
    assert not raised.value.retryable


def test_hostile_answers_are_text() -> None:
    cases: list[tuple[Callable[[], Reply], str, str]] = [
        (replies(body=b"a\xffb"), "ok", "a\ufffdb"),
        (replies(body="é".encode("latin-1"), charset="iso-8859-1"), "ok", "é"),
        (replies(body=b"ab", headers={"Content-Type": "text/plain; charset=rot13"}, content_type=None), "ok", "ab"),
        (
            replies(body=b"\x00\xd8", headers={"Content-Type": "text/plain; charset=utf-16"}, content_type=None),
            "ok",
            "",
        ),
        (replies(body=b"\x89PNG", content_type="image/png"), "error", "image/png"),
        (replies(204, b""), "ok", NO_TEXT),
        (replies(404, b""), "error", "HTTP 404"),
        (replies(body=b"x" * (MAX_ANSWER_BYTES + 1)), "error", "ask for less"),
    ]
    for reply, status, text in cases:
        found = call(reply).outcome
        assert found.status == status and text in found.text and found.text.isprintable()
    assert len(call(replies(body=b"x" * MAX_ANSWER_BYTES), max_output_chars=50).outcome.text) == 50


def test_secrets_are_sent_and_never_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "other-44ab12cd"
    monkeypatch.setenv("SHOP_KEY", KEY)
    monkeypatch.setenv("SHOP_USER", other)
    keys: dict[str, Any] = {"api_key_env": "SHOP_KEY", "headers_env": {"X-User": "SHOP_USER"}}
    called = call(replies(404, f"no {KEY} for {other}"), **keys)
    ((*_, headers),) = called.endpoint.asked
    assert (headers["Authorization"], headers["X-User"]) == (f"Bearer {KEY}", other)
    assert called.outcome.text == "HTTP 404: no [key] for [key]"
    for secret in (KEY, other):
        for status in (200, 201, 401, 500):
            try:
                said = call(replies(status, f"you are {secret}"), retry_limit=0, **keys).outcome.text
            except ToolError as error:
                said = str(error)
            assert secret not in said and ("[key]" in said or "contains" in said)


def test_keys_without_a_value_are_named() -> None:
    with pytest.raises(ConfigError, match="tool look-up needs a key, but environment variable NO_SUCH_KEY is not set"):
        call(replies(), api_key_env="NO_SUCH_KEY")


def test_the_same_answers_make_the_same_record() -> None:
    made = call(replies(body="7"), times=2).outcomes
    assert [(one.status, one.text, one.note) for one in made] == [("ok", "7", "")] * 2


def test_schema_is_in_the_table_or_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    schema = {"properties": {"id": {"type": "string"}}, "required": ["id"]}
    Path("s.json").write_text(json.dumps(schema))
    for made in (settings(parameters=schema), settings(schema_file="s.json")):
        assert TOOLS.parse(made.model_dump()) == made
        (shown,) = made.source("t", ToolResources()).schemas
        assert shown.parameters["type"] == "object" and shown.description == "Look up."
        assert shown.argument_error({"id": "a"}) == "" and "admin" in shown.argument_error({"id": "a", "admin": True})
    Path("s.json").write_text("[1")
    for keys, said in (
        ({"schema_file": "s.json"}, "cannot be read as JSON"),
        ({"schema_file": "none.json"}, "there is no file"),
        ({"parameters": {"type": "string"}}, 'has type = "object"'),
        ({"parameters": {"properties": {"a": {"type": "dict"}}}}, "properties.a.type: 'dict' is not valid"),
        ({"url": "http://user:pw@h/x"}, "no credentials"),
        ({"url": "file:///etc/passwd"}, "not an http"),
        ({"headers_env": {"X\r\nY": "A_KEY"}}, "no name of a header"),
        ({"headers_env": {"X": "sk-lower"}}, "in capitals"),
        ({"description": ""}, "description"),
    ):
        with pytest.raises((ValidationError, ValueError), match=said):
            settings(**keys)
