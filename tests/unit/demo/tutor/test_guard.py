"""Which requests the tutor refuses: those that a browser sends for a page of another origin."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from treadle.demo.tutor.__main__ import build_parser
from treadle.demo.tutor.server import TutorServer
from treadle.demo.tutor.settings import MODEL, TutorSettings

PAGES = [
    {"Origin": "http://attacker.example"},
    {"Origin": "http://127.0.0.1:9999"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
]


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def statuses(session: aiohttp.ClientSession, server: TutorServer, headers: dict[str, str]) -> set[int]:
    """Return the statuses of a completion, of what reads, and of what is not there."""
    body = {"model": MODEL, "prompt": "Who wrote it?", "max_tokens": 5}
    found = set()
    for path in ("/v1/completions", "/v1/chat/completions"):
        async with session.post(server.url.removesuffix("/v1") + path, json=body, headers=headers) as answer:
            found.add(answer.status)
    for path in ("/v1/models", "/health", "/log/counts", "/nothing"):
        async with session.get(server.url.removesuffix("/v1") + path, headers=headers) as answer:
            found.add(answer.status)
    return found


@pytest.mark.parametrize("headers", PAGES)
async def test_cross_origin_request_to_the_tutor_is_refused(
    session: aiohttp.ClientSession, headers: dict[str, str]
) -> None:
    async with TutorServer(TutorSettings()) as server:
        assert await statuses(session, server, headers) == {403}
        assert server.counts["requests"] == 0


@pytest.mark.parametrize("host", ["attacker.example", "attacker.example:80", "127.0.0.1.attacker.example", "192.0.2.1"])
async def test_foreign_host_name_is_refused(session: aiohttp.ClientSession, host: str) -> None:
    async with TutorServer(TutorSettings()) as server:
        assert await statuses(session, server, {"Host": host}) == {421}
        async with session.get(f"{server.url}/models", headers={"Host": host}) as answer:
            assert "answers to loopback addresses and localhost alone" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize(
    "headers", [{}, {"Host": "localhost:1"}, {"Host": "127.0.0.2:1"}, {"Host": "[::1]:9"}, {"Sec-Fetch-Site": "none"}]
)
async def test_programs_and_own_host_names_are_served(session: aiohttp.ClientSession, headers: dict[str, str]) -> None:
    async with TutorServer(TutorSettings()) as server:
        assert 403 not in (found := await statuses(session, server, headers)) and 421 not in found
        assert server.counts["requests"] == 2


async def test_non_loopback_address_serves_any_host_name_but_no_page(session: aiohttp.ClientSession) -> None:
    async with TutorServer(TutorSettings(), host="0.0.0.0") as server:
        assert 200 in await statuses(session, server, {"Host": "tutor.example:8002"})
        for headers in PAGES:
            assert await statuses(session, server, headers) == {403}


def test_help_explains_binding_to_another_address() -> None:
    assert "only the Origin of requests is checked, not Host" in " ".join(build_parser().format_help().split())
