"""How many pages are fetched at once, and which requests wait."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, ExitStack

import pytest
from support.servers.own_clock import ForwardClock, until
from support.servers.web_servers import Hostile, Names, Page, Site
from support.web.fetching import LOOPBACK, fetching, refusal
from support.web.hostile_scripts import KIB, drip, falling_silent

from treadle.retriever.client import SearchUnavailable
from treadle.web.pages import fetch as fetch_module
from treadle.web.slots import PageTime


@pytest.mark.parametrize("limits", [{"max_per_host": 2}, {"max_fetches": 2}], ids=["of a host", "of all"])
async def test_concurrent_requests_do_not_exceed_the_slots(limits: dict[str, int]) -> None:
    with Site({f"/{number}": "x" for number in range(6)}) as site:
        asked = [site.hold(f"/{number}") for number in range(6)]
        async with fetching(allowed=LOOPBACK, fetch=limits) as fetch, fetching(allowed=LOOPBACK) as free:
            pages = [asyncio.create_task(fetch(site.url(f"/{number}"))) for number in range(6)]
            for event in asked[:2]:
                await asyncio.to_thread(event.wait)
            for _ in range(3):  # others who start now are sooner there than a third of these would have been
                await refusal(free(site.url("/no-such-page")))
            assert site.connections() == 2 + 3
            for number in range(6):
                site.release(f"/{number}")
            assert [(await page).body for page in pages] == [b"x"] * 6


async def test_slow_host_takes_no_slots_from_others() -> None:
    with Site({f"/{number}": "x" for number in range(9)}) as slow, Site({"/": "y"}, host="127.0.0.2") as quick:
        asked = [slow.hold(f"/{number}") for number in range(9)]
        async with fetching(allowed=LOOPBACK, fetch={"max_per_host": 1, "max_fetches": 2}) as fetch:
            pages = [asyncio.create_task(fetch(slow.url(f"/{number}"))) for number in range(9)]
            await asyncio.to_thread(asked[0].wait)
            assert (await fetch(quick.url())).body == b"y"
            for number in range(9):
                slow.release(f"/{number}")
            await asyncio.gather(*pages)


async def test_host_gets_no_more_slots_by_another_spelling() -> None:
    with Site({"/0": "x", "/1": "x"}) as site:
        asked = site.hold("/0")
        names = Names({"site.test": [["127.0.0.1"]], "site.test.": [["127.0.0.1"]]})
        async with fetching(allowed=LOOPBACK, resolver=names, fetch={"max_per_host": 1}) as fetch:
            first = asyncio.create_task(fetch(f"http://site.test:{site.port}/0"))
            await asyncio.to_thread(asked.wait)
            with pytest.raises(SearchUnavailable):
                await fetch(f"http://site.test.:{site.port}/1", 0.1)
            site.release("/0")
            assert (await first).body == b"x" and site.paths == ["/0"]


async def test_waiting_for_a_slot_does_not_count_as_page_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first takes its whole time; were the second's time running meanwhile, it would never be asked for."""
    with Hostile(drip) as first, Site({"/": "x"}) as second:
        async with fetching(allowed=LOOPBACK, page_timeout_s=60.0, fetch={"max_fetches": 1}) as fetch:
            pages = [asyncio.create_task(fetch(url, 120.0)) for url in (first.url, second.url())]
            await asyncio.to_thread(first.silent.wait)
            ForwardClock(monkeypatch).pass_(61.0)
            await asyncio.wait(pages)
        assert first.requests == 1 and second.paths == ["/"]


async def test_deadline_includes_waiting_for_a_slot() -> None:
    with Site({"/": "x"}) as site:
        asked = site.hold("/")
        async with fetching(allowed=LOOPBACK, fetch={"max_fetches": 1}) as fetch:
            first = asyncio.create_task(fetch(site.url()))
            await asyncio.to_thread(asked.wait)
            with pytest.raises(SearchUnavailable, match="waited for a place") as caught:
                await fetch(site.url("/other"), 0.1)
            assert caught.value.retryable, "it is our load and no fault of the page"
            site.release("/")
            assert (await first).body == b"x" and site.paths == ["/"]


async def test_slot_is_released_after_every_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    with Hostile(drip) as slow, Site({"/": "x", "/no": Page("", 404)}) as site:
        places = {"max_fetches": 1, "max_per_host": 1}
        async with fetching(allowed=LOOPBACK, page_timeout_s=60.0, fetch=places) as fetch:
            dripping = asyncio.create_task(refusal(fetch(slow.url)))
            await asyncio.to_thread(slow.silent.wait)
            ForwardClock(monkeypatch).pass_(61.0)
            await dripping
            for url in (site.url("/no"), "http://10.0.0.1/", "http://x.invalid/", site.url("/no")):
                await refusal(fetch(url))
            held = site.hold("/")
            left = asyncio.create_task(fetch(site.url()))
            await asyncio.to_thread(held.wait)
            left.cancel()
            await asyncio.wait([left])
            assert left.cancelled()
            site.release("/")
            assert (await fetch(site.url())).body == b"x"


async def test_closing_cancels_active_requests() -> None:
    with Hostile(falling_silent()) as server:
        async with fetching(allowed=LOOPBACK) as fetch:
            page = asyncio.create_task(fetch(server.url))
            while not server.requests:
                await asyncio.sleep(0)
        assert (await refusal(page)).kind in ("connect", "timeout")


# Memory.


async def test_page_holds_its_slot_until_released() -> None:
    with Site({"/a": "a", "/b": "b", "/no": Page("", 404)}) as site:
        async with fetching(allowed=LOOPBACK, fetch={"max_fetches": 1}) as fetch:
            with ExitStack() as held_slots:
                await refusal(fetch(site.url("/no"), held_slots=held_slots))
                assert (await fetch(site.url("/a"), held_slots=held_slots)).body == b"a"
                with pytest.raises(SearchUnavailable):
                    await fetch(site.url("/b"), 0.1)
            assert (await fetch(site.url("/b"))).body == b"b"
        assert site.paths == ["/no", "/a", "/b"]


async def test_large_bodies_are_limited_without_delaying_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were they not, 256 pages of 10 MiB could wait for their reader at once, and more with each search."""
    for name, value in (("LARGE_BYTES", 4 * KIB), ("NUM_LARGE", 3), ("NUM_LARGE_OF_SITE", 2)):
        monkeypatch.setattr(fetch_module, name, value)
    large, wait_for_slot = list[PageTime](), PageTime.waiting

    def waiting(time: PageTime) -> AbstractContextManager[None]:
        large.append(time)
        return wait_for_slot(time)

    monkeypatch.setattr(PageTime, "waiting", waiting)
    routes = {**{f"/{number}": "x" * 8 * KIB for number in range(4)}, "/small": "x" * 4 * KIB}
    with Site(routes) as site, Site(routes, host="127.0.0.2") as other:
        async with fetching(allowed=LOOPBACK, page_timeout_s=60.0) as fetch:
            held = [ExitStack() for _ in range(4)]
            pages = [asyncio.create_task(fetch(site.url(f"/{at}"), 120.0, held[at])) for at in range(4)]
            await until(lambda: len(large) == 4 and sum(page.done() for page in pages) >= 2)
            # Longer than a page's own time, which does not run while waiting.
            ForwardClock(monkeypatch).pass_(61.0)
            assert len((await fetch(site.url("/small"))).body) == 4 * KIB
            third = ExitStack()
            assert len((await fetch(other.url("/0"), held_slots=third)).body) == 8 * KIB
            with pytest.raises(SearchUnavailable):
                await fetch(other.url("/1"), 0.1)
            assert sum(page.done() for page in pages) == 2
            for held_slots in held:
                held_slots.close()
            assert [len((await page).body) for page in pages] == [8 * KIB] * 4
            for held_slots in (*held, third):
                held_slots.close()
