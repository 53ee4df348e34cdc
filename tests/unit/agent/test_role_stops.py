"""Models other than the policy that are stopped in the middle, on servers that leave the stop string out."""

from __future__ import annotations

import asyncio

import pytest
from support.rollouts.model_pool import settings
from support.sandbox.memories import Remembering
from support.servers.scripted_server import ScriptedServer, Stops

from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.metering import Meter, TokenBudget
from treadle.agent.role import RoleModel, dropped_stop_string, parse_cached_reply
from treadle.core.llm.config import Sampling
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import Completion

STOPS = TOOL_DIALECT.stops


@pytest.mark.parametrize(
    ("before", "text", "named", "stops", "marker"),
    [
        ("so <think>", "it is 7", None, ("</think>",), "</think>"),
        ("", "<python>print(1)", None, STOPS, "</python>"),
        ("<search>q</search><answer>", "7", None, STOPS, "</answer>"),
        ("", "<python>print('", "</search>", STOPS, "</search>"),
        ("Step: 3", " is fine", None, (*STOPS, "Analysis:"), ""),
    ],
)
def test_dropped_stop_string_is_restored_from_name_or_open_block(
    before: str, text: str, named: str | None, stops: tuple[str, ...], marker: str
) -> None:
    completion = Completion(text, None, "stop", named, 9, 3, "http://x/v1", 0.1, 0, stop_dropped=True)
    assert dropped_stop_string(before, completion, stops) == marker


@pytest.mark.parametrize("stops", ["kept", "named", "dropped"])
async def test_reply_is_the_same_however_the_server_treats_stop_strings(stops: Stops) -> None:
    cache = Remembering()
    async with (
        ScriptedServer(lambda _: "it is 7</think> and more", stops=stops) as server,
        ModelPool("critic", settings(server)) as pool,
    ):
        await pool.check()
        model = RoleModel("critic", "critic", Meter(pool, TokenBudget(None)), Sampling(max_tokens=64))
        reply = await model.ask(
            [{"role": "user", "content": "Think."}],
            cache=cache,
            unit="ask-0",
            seed=1,
            session="s",
            deadline=asyncio.get_running_loop().time() + 20,
            prefill="<think>",
            stop=("</think>",),
        )
    assert reply.text == "it is 7</think>"
    known = cache.get("ask-0")
    assert known is not None and parse_cached_reply(known) == reply
