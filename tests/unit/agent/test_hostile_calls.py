"""Native calls with arguments that readers take and writers do not."""

from __future__ import annotations

from typing import Any

import pytest
from support.rollouts.native_rollouts import Spoken, play_native

from treadle.agent.contract import Task


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


HOSTILE = {
    "nested": nested(300),
    "a lone surrogate": {"query": "\ud800"},
    "a lone surrogate as a name": {"\ud800": 1, "query": "x"},
    "a long integer": {"query": "x", "n": 10**40},
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("route", ["qwen", "llama", "chat"])
async def test_arguments_that_cannot_be_stored_are_the_agents_error(route: str, name: str) -> None:
    script = [Spoken("", [("search", HOSTILE[name])]), Spoken("done")]
    trajectory = await play_native(route, script, Task("q", "Who?"))
    assert trajectory.status == "answered"
    (call,) = trajectory.calls
    assert call.status in ("invalid", "ok") and (call.status == "invalid") == ("Error: " in call.text)
    assert name != "nested" or call.status == "invalid"
