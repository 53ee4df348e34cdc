"""Web of a service: one cache for all workers, buckets of results, replay without requests."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.servers.web_servers import Page, Request, Site
from support.web.web_answers import ENVIRON

from treadle.core.errors import StorageError
from treadle.web.cached import CachedWeb, ServedWebSettings, WebCacheSettings
from treadle.web.config import ProviderSettings
from treadle.web.keys import page_key
from treadle.web.providers import WebProvider
from treadle.web.shared_cache import SharedCache
from treadle.web.types import Fetched, PageText, RecordMiss, Unfetchable, WebHit

FAR = 1e12


class Finding:
    """A provider that returns as many hits as it is asked for."""

    name = "finding"

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def search(self, query: str, language: str, *, deadline: float, num_results: int) -> tuple[WebHit, ...]:
        self.asked.append(num_results)
        await asyncio.sleep(0)
        return tuple(WebHit(f"{query} {number}", f"http://site.test/{number}", "s") for number in range(num_results))

    async def close(self) -> None: ...


class Pages:
    """Fetcher and reader in one: the text of a page is its URL; `/gone` is no page."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def fetch(self, url: str, *, deadline: float, held_slots: ExitStack) -> Fetched:
        self.fetched.append(url)
        await asyncio.sleep(0)
        if url.endswith("/gone"):
            raise Unfetchable("http", "status 404")
        return Fetched(url, "text/html", "", "", b"")

    async def read(self, page: Fetched, *, max_bytes: int, deadline: float) -> PageText:
        return PageText("t", f"Text of {page.final_url}", "text/html", "test")


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@asynccontextmanager
async def web(
    folder: Path, time: Time | None = None, *, mode: str = "record", **parts: Any
) -> AsyncIterator[CachedWeb]:
    cache = WebCacheSettings(path=folder / "web.sqlite")
    opened = CachedWeb(ServedWebSettings(mode=mode), cache, clock=time or Time(), **parts)
    await opened.open()
    try:
        yield opened
    finally:
        await opened.close()


@pytest.mark.covers("planning-26")
async def test_searches_are_asked_for_in_buckets_and_larger_results_serve_smaller_ones(tmp_path: Path) -> None:
    provider = Finding()
    async with web(tmp_path, provider=provider) as one:
        assert len(await one.search("q", 10, deadline=FAR)) == 10
        assert len(await one.search(" q\n", 50, deadline=FAR)) == 50
        assert provider.asked == [10, 100]
        assert len(await one.search("q", 30, deadline=FAR)) == 30
        assert len(await one.search("q", 5, deadline=FAR)) == 5
        async with web(tmp_path, provider=provider) as second:
            assert len(await second.search("q", 100, deadline=FAR)) == 100
    assert provider.asked == [10, 100], "of one worker, and then of the other"
    async with web(tmp_path, provider=provider) as one:
        await one.search("Q", 10, deadline=FAR)
        await one.search("东京塔", 10, deadline=FAR)
    assert provider.asked == [10, 100, 10, 10]


@pytest.mark.covers("planning-26")
async def test_a_rate_limited_key_is_replaced_and_no_key_is_stored_or_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(request: Request) -> Page | str:
        if request.headers["x-api-key"] == ENVIRON["KEY_A"]:
            return Page("slow down", 429)
        return '{"organic": [{"title": "t", "link": "http://e.org", "snippet": "s"}]}'

    with Site({"/search": answer}) as site:
        settings = ProviderSettings(type="serper", url=f"{site.origin}/search", api_key_envs=("KEY_A", "KEY_B"))
        async with web(tmp_path, provider=WebProvider(settings, environ=ENVIRON)) as one:
            deadline = asyncio.get_running_loop().time() + 60
            (hit,) = await one.search("q", 50, deadline=deadline)
    assert hit.url == "http://e.org"
    assert [request.headers["x-api-key"] for request in site.requests] == [ENVIRON["KEY_A"], ENVIRON["KEY_B"]]
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for key in ENVIRON.values():
        assert key.encode() not in stored and key not in caplog.text


@pytest.mark.covers("planning-26")
async def test_replay_serves_the_cache_whatever_its_age_and_never_sends_a_request(tmp_path: Path) -> None:
    provider, pages, time = Finding(), Pages(), Time()
    async with web(tmp_path, time, provider=provider, fetcher=pages, reader=pages) as one:
        await one.search("q", 10, deadline=FAR)
        await one.page("http://e.org/a", deadline=FAR)
    time.now += timedelta(days=400)
    used = list(provider.asked), list(pages.fetched)
    async with web(tmp_path, time, mode="replay", provider=provider, fetcher=pages, reader=pages) as one:
        assert one.searches and len(await one.search("q", 50, deadline=FAR)) == 10
        assert (await one.page("http://e.org/a", deadline=FAR))[0].text == "Text of http://e.org/a"
        for missing in (one.search("other", 10, deadline=FAR), one.page("http://e.org/b", deadline=FAR)):
            with pytest.raises(RecordMiss, match="replay"):
                await missing
    assert (provider.asked, pages.fetched) == used


async def test_entries_expire_and_failures_of_pages_are_not_kept(tmp_path: Path) -> None:
    provider, pages, time = Finding(), Pages(), Time()
    async with web(tmp_path, time, provider=provider, fetcher=pages, reader=pages) as one:
        for hours in (0, 0.9, 0.2):
            time.now += timedelta(hours=hours)
            await one.search("q", 10, deadline=FAR)
        assert provider.asked == [10, 10]
        for hours, was_cached in ((0, False), (2.9, True), (0.2, False)):
            time.now += timedelta(hours=hours)
            assert (await one.page("http://e.org/a", deadline=FAR))[1] == was_cached
        for _ in range(2):
            page, was_cached = await one.page("http://e.org/gone", deadline=FAR)
            assert (page.failure, was_cached, page.key) == ("http", False, page_key("http://e.org/gone"))
    assert pages.fetched.count("http://e.org/gone") == 2


async def test_equal_requests_at_once_are_sent_once(tmp_path: Path) -> None:
    provider, pages = Finding(), Pages()
    async with web(tmp_path, provider=provider, fetcher=pages, reader=pages) as one:
        found = await asyncio.gather(*(one.search("q", 10, deadline=FAR) for _ in range(5)))
        read = await asyncio.gather(*(one.page("http://e.org/a", deadline=FAR) for _ in range(5)))
    assert len(provider.asked) == len(pages.fetched) == 1
    assert all(hits == found[0] for hits in found) and {page.text for page, _ in read} == {"Text of http://e.org/a"}


async def test_smaller_results_never_replace_larger_ones_and_the_oldest_go_first(tmp_path: Path) -> None:
    times = iter(range(10_000))
    cache = SharedCache(tmp_path / "c.sqlite", max_entries={"search": 10}, clock=lambda: float(next(times)))
    await cache.open()
    await cache.put("search", "k", b"large", num_results=100, max_age_s=1e9)
    await cache.put("search", "k", b"small", num_results=10, max_age_s=1e9)
    assert await cache.get("search", "k") == b"large"
    await cache.put("search", "k", b"new", num_results=10, max_age_s=0.5)
    assert (await cache.get("search", "k"), await cache.get("search", "k", num_results=11)) == (b"new", None)
    for number in range(200):
        await cache.put("search", str(number), b"x")
    await cache.close()
    with sqlite3.connect(tmp_path / "c.sqlite") as connection:
        (num,) = connection.execute("SELECT COUNT(*) FROM entries").fetchone()
    assert num < 10 + 64


async def test_damaged_cache_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "web.sqlite").write_bytes(b"no database at all" * 100)
    async with web(tmp_path, provider=Finding()) as one:
        with pytest.raises(StorageError, match=r"web\.sqlite"):
            await one.search("q", 10, deadline=FAR)
