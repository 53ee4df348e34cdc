"""The client of the DevTools protocol against a scripted browser."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from treadle.agent.browser.devtools import BrowserLost, CommandFailed, DevTools


class Pipes:
    """Both ends of the pipes; `answer` returns the messages that follow a command, None ends the browser."""

    def __init__(self, answer: Callable[[dict[str, Any]], list[dict[str, Any]] | None]) -> None:
        self.output = asyncio.StreamReader()
        self._answer = answer

    async def write(self, data: bytes) -> None:
        assert data.endswith(b"\0")
        messages = self._answer(orjson.loads(data[:-1]))
        if messages is None:
            self.output.feed_eof()
            return
        for message in messages:
            self.output.feed_data(orjson.dumps(message) + b"\0")


async def test_replies_find_their_commands_in_any_order() -> None:
    held: list[dict[str, Any]] = []

    def answer(command: dict[str, Any]) -> list[dict[str, Any]]:
        held.append(command)
        return [{"id": one["id"], "result": {"of": one["method"]}} for one in reversed(held)] if len(held) == 2 else []

    devtools = DevTools(Pipes(answer))
    found = await asyncio.gather(devtools.call("A"), devtools.call("B", "s1", x=1))
    assert found == [{"of": "A"}, {"of": "B"}]
    assert held[1]["sessionId"] == "s1" and held[1]["params"] == {"x": 1}
    await devtools.close()


async def test_events_reach_the_listener_of_their_session_alone() -> None:
    events = [{"method": "E", "sessionId": name, "params": {"n": name}} for name in ("s1", "s2")]
    devtools = DevTools(Pipes(lambda command: [*events, {"id": command["id"], "result": {}}]))
    heard: list[Any] = []
    with devtools.listening("s1", lambda name, event: heard.append((name, event))):
        await devtools.call("A")
    await devtools.call("B")
    assert heard == [("E", {"n": "s1"})]
    await devtools.close()


async def test_refused_command_raises_the_words_of_the_browser() -> None:
    devtools = DevTools(Pipes(lambda command: [{"id": command["id"], "error": {"message": "no such page"}}]))
    with pytest.raises(CommandFailed, match="no such page"):
        await devtools.call("A")
    await devtools.close()


async def test_end_of_the_browser_ends_all_commands() -> None:
    devtools = DevTools(Pipes(lambda command: None if command["method"] == "Last" else []))
    waiting = asyncio.gather(*(devtools.call("A") for _ in range(3)), devtools.call("Last"), return_exceptions=True)
    assert [type(one) for one in await waiting] == [BrowserLost] * 4
    with pytest.raises(BrowserLost):
        await devtools.call("B")
    await devtools.close()


async def test_output_that_is_no_message_counts_as_the_end() -> None:
    pipes = Pipes(lambda command: [])
    devtools = DevTools(pipes)
    waiting = asyncio.ensure_future(devtools.call("A"))
    await asyncio.sleep(0)
    pipes.output.feed_data(b"{ not json \0")
    with pytest.raises(BrowserLost):
        await waiting
    await devtools.close()
