"""Fetchers with settings that a test gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Protocol

import pytest
from aiohttp.abc import AbstractResolver

from treadle.web.config import WebSettings
from treadle.web.pages.fetch import Fetcher
from treadle.web.sockets import MeteredSocket
from treadle.web.types import Fetched, Unfetchable

LOOPBACK = ("127.0.0.0/8", "::1/128")


class Fetch(Protocol):
    """Fetches a URL, with a time limit for the call."""

    async def __call__(self, url: str, within_s: float = 60.0, held_slots: ExitStack | None = None) -> Fetched: ...


@asynccontextmanager
async def fetching(
    *,
    allowed: Sequence[str] = (),
    resolver: AbstractResolver | None = None,
    make_socket: Callable[[int, int, int], MeteredSocket] = MeteredSocket,
    pause: Callable[[float], Awaitable[object]] | None = None,
    fetch: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Fetch]:
    """Yield a function that fetches a URL. `fetch` and `settings` are keys of FetchSettings and WebSettings."""
    made = WebSettings.model_validate(
        {
            "provider": {"type": "searxng", "url": "http://127.0.0.1:1"},
            "page_timeout_s": 60.0,
            "fetch": {"allowed_networks": tuple(allowed), **(fetch or {})},
            **settings,
        }
    )
    fetcher = Fetcher(made, resolver=resolver, make_socket=make_socket, pause=pause or _no_pause)
    await fetcher.open()

    async def fetched(url: str, within_s: float = 60.0, held_slots: ExitStack | None = None) -> Fetched:
        return await fetcher.fetch(url, deadline=asyncio.get_running_loop().time() + within_s, held_slots=held_slots)

    try:
        yield fetched
    finally:
        await fetcher.close()


async def refusal(page: Awaitable[Fetched]) -> Unfetchable:
    """Why a page is not had."""
    with pytest.raises(Unfetchable) as caught:
        await page
    return caught.value


async def _no_pause(_: float) -> None:
    return None
