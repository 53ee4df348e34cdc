"""Every server as users meet it, over every route, through the real preflight and a real rollout."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.model_servers.played_servers import SERVERS, PlayedServer
from support.model_servers.server_table import ask_server, page, refuses_long_prompts

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "model-servers.md"


async def test_page_says_what_works_over_each_route() -> None:
    assert PAGE.read_text(encoding="utf-8") == await page(), "run `make docs`"


@pytest.mark.parametrize("played", [one for one in SERVERS if one.usage], ids=lambda one: one.name)
async def test_chat_with_native_calls_works_everywhere(played: PlayedServer) -> None:
    answer, notes = await ask_server(played, "chat, native calls")
    assert answer == "yes"
    assert any("demands it back" in note for note in notes) == played.needs_reasoning


@pytest.mark.parametrize("played", [one for one in SERVERS if one.usage], ids=lambda one: one.name)
async def test_refusal_of_a_long_prompt_is_read_in_each_servers_words(played: PlayedServer) -> None:
    assert await refuses_long_prompts(played)
