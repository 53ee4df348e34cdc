"""Limits of page fetches, against real servers that break every one of them."""

from __future__ import annotations

import asyncio
import gzip
import socket
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import aiohttp.connector
import pytest
from support.certificates import server_context
from support.fetching import LOOPBACK, fetching, refusal
from support.web_servers import Hostile, Names, Page, Site

from treadle.agent.web import fetch as fetch_module
from treadle.agent.web.page_reader import PageReader
from treadle.agent.web.slots import PageTime
from treadle.agent.web.types import Unfetchable
from treadle.retriever.client import SearchUnavailable

KIB = 1024
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
FAR = 256 * KIB
"""More than is ever read at once: what comes after so much is met by another part of aiohttp than what comes before."""
Script = Callable[[Hostile, socket.socket], None]


def saying(*parts: bytes, then: bytes = b"") -> Script:
    """Say these parts, then the last one without end; without a last one hang up."""

    def script(server: Hostile, line: socket.socket) -> None:
        for part in parts:
            server.say(line, part)
        while then:
            server.say(line, then)

    return script


def falling_silent(*parts: bytes) -> Script:
    """Say these parts, and nothing more."""

    def script(server: Hostile, line: socket.socket) -> None:
        for part in parts:
            server.say(line, part)
        server.ended.wait()

    return script


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


# Size.


async def test_a_gigabyte_is_refused_by_its_length_before_any_of_it_is_read() -> None:
    with Hostile(falling_silent(HEAD + b"Content-Length: 1073741824\r\n\r\n")) as server:
        async with fetching(allowed=LOOPBACK, max_page_bytes=64 * KIB) as fetch:
            assert (await refusal(fetch(server.url))).kind == "too_large"
        async with fetching(allowed=LOOPBACK, max_page_bytes=2 << 30, page_timeout_s=0.2) as fetch:
            assert (await refusal(fetch(server.url))).kind == "timeout", "the control: it waits for the body"


@pytest.mark.parametrize(
    "script",
    [
        saying(CHUNKED, then=chunk(b"x" * 16 * KIB)),
        saying(HEAD + b"\r\n", then=b"x" * 16 * KIB),
    ],
    ids=["chunks", "no length"],
)
async def test_a_body_without_end_is_left_at_the_limit(script: Script) -> None:
    with Hostile(script) as server:
        async with fetching(allowed=LOOPBACK, max_page_bytes=256 * KIB) as fetch:
            refused = await refusal(fetch(server.url))
        assert (refused.kind, refused.detail) == ("too_large", "it is larger than 262144 bytes")
        # The rest lies in buffers of the kernel and the event loop.
        assert server.requests == 1 and server.num_sent < 64 << 20


async def test_the_limit_is_the_last_byte_that_is_taken() -> None:
    with Site({"/in": "x" * 4096, "/beyond": "x" * 4097}) as site:
        async with fetching(allowed=LOOPBACK, max_page_bytes=4096) as fetch:
            assert len((await fetch(site.url("/in"))).body) == 4096
            assert (await refusal(fetch(site.url("/beyond")))).kind == "too_large"


@pytest.mark.parametrize(("encoding", "named"), [("gzip", "gzip"), ("X-GZIP", "gzip"), ("deflate", "deflate")])
async def test_a_packed_body_comes_as_it_was_sent(encoding: str, named: str) -> None:
    """A bomb is unpacked, and stopped, in the process that reads pages; here it costs what was sent."""
    bomb = gzip.compress(bytes(16 << 20)) if named == "gzip" else zlib.compress(bytes(16 << 20))
    with Site({"/": Page(bomb, headers={"Content-Encoding": encoding})}) as site:
        async with fetching(allowed=LOOPBACK, max_page_bytes=32 * KIB) as fetch:
            page = await fetch(site.url())
    assert (page.body, page.encoding) == (bomb, named) and len(bomb) < 32 * KIB


async def test_a_bomb_of_a_server_is_stopped_where_it_is_unpacked_and_the_next_page_is_read() -> None:
    bomb = gzip.compress(bytes(64 << 20), compresslevel=1)
    packed = {"Content-Encoding": "gzip"}
    with Site({"/": Page(bomb, headers=packed), "/next": Page(gzip.compress(b"<p>text"), headers=packed)}) as site:
        reader = PageReader(1)
        await reader.open()
        try:
            async with fetching(allowed=LOOPBACK, max_page_bytes=512 * KIB) as fetch:
                assert len(bomb) < 512 * KIB
                with pytest.raises(Unfetchable) as refused:
                    await reader.read(await fetch(site.url()), max_bytes=512 * KIB)
                assert refused.value.kind == "too_large"
                assert (await reader.read(await fetch(site.url("/next")), max_bytes=512 * KIB)).text == "text"
        finally:
            await reader.close()


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "deflate, gzip", "compress", "gzip;q=1", "x" * 4000])
async def test_other_and_stacked_packings_are_refused(encoding: str) -> None:
    with Site({"/": Page(b"x", headers={"Content-Encoding": encoding})}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await refusal(fetch(site.url()))).kind == "encoding"


async def test_packings_in_two_headers_are_stacked_too() -> None:
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"
    with Hostile(saying(head)) as server:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await refusal(fetch(server.url))).kind == "encoding"


# Headers.


@pytest.mark.parametrize(
    "script",
    [
        saying(HEAD, then=b"X-Header: 1\r\n" * 1000),
        saying(HEAD + b"X-Header: ", then=b"x" * 4096),
        saying(b"HTTP/1.1 200 ", then=b"x" * 4096),
        saying(HEAD + b"Set-Cookie: a=" + b"x" * 20_000 + b"\r\n\r\n"),
        saying(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/" + b"x" * 20_000 + b"\r\n\r\n"),
        saying(HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
        saying(HEAD + b"Content-Length: -5\r\n\r\nhello"),
        saying(HEAD + b"Content-Length: 9" + b"9" * 60 + b"\r\n\r\nhello"),
        saying(b"220 mail.example ESMTP\r\n"),
        saying(b"\x00\xff" * 100),
        saying(CHUNKED + b"not a number\r\n"),
    ],
    ids=[
        "lines without end",
        "a line without end",
        "a status without end",
        "a long line",
        "a long Location",
        "two lengths",
        "a negative length",
        "an impossible length",
        "another protocol",
        "no protocol",
        "a chunk of no size",
    ],
)
async def test_a_header_without_end_or_sense_is_refused(script: Script) -> None:
    with Hostile(script) as server:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await refusal(fetch(server.url))).kind in ("http", "too_large")
        assert server.requests == 1


@pytest.mark.parametrize(
    "script",
    [
        saying(then=b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100),
        saying(CHUNKED + chunk(b"hello") + b"0\r\n" + b"X-Trailer: 1\r\n" * 1000),
        saying(CHUNKED + chunk(b"x" * FAR) + b"0\r\n", then=b"X-Trailer: 1\r\n" * 100),
        saying(CHUNKED + b"5;", then=b"x" * 4096),
        saying(CHUNKED, then=chunk(b"x") * 1000),
        saying(then=b"\r\n" * 1000),
    ],
    ids=[
        "early hints",
        "trailers",
        "trailers of a long body",
        "extensions of a chunk",
        "a byte in each chunk",
        "blank lines",
    ],
)
async def test_what_brings_no_page_is_left_long_before_its_time(script: Script) -> None:
    with Hostile(script) as server:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await refusal(fetch(server.url))).kind == "http"
        assert server.requests == 1 and server.num_sent < 64 << 20


@pytest.mark.parametrize("size", [16, 1000, 70_000])
async def test_a_page_in_small_pieces_is_had_whole(size: int) -> None:
    pieces = chunk(b"x" * size) * ((1 << 20) // size)
    with Hostile(saying(CHUNKED + pieces + b"0\r\n\r\n")) as server:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert len((await fetch(server.url)).body) == (1 << 20) // size * size


async def test_a_large_page_is_had_whole_through_tls_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, trusting = server_context(tmp_path, "127.0.0.1")
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", trusting)
    with Site({"/": bytes(9 << 20)}, tls=server) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert len((await fetch(site.url())).body) == 9 << 20


# Time.


def drip(server: Hostile, line: socket.socket) -> None:
    """A byte now and then, for ever: no pause between two of them is ever long."""
    server.say(line, HEAD + b"\r\n")
    while not server.ended.wait(0.01):
        server.say(line, b"x")


@pytest.mark.parametrize(
    "script",
    [
        drip,
        falling_silent(),
        falling_silent(HEAD),
        falling_silent(HEAD + b"Content-Length: 9\r\n\r\nx"),
        falling_silent(CHUNKED + chunk(b"hello")),
    ],
    ids=["drip", "silence", "silence in the header", "silence in the body", "silence between chunks"],
)
async def test_a_server_that_takes_its_time_is_left_when_the_pages_time_is_over(script: Script) -> None:
    with Hostile(script) as server:
        async with fetching(allowed=LOOPBACK, page_timeout_s=0.2) as fetch:
            assert (await refusal(fetch(server.url))).kind == "timeout"
        assert server.requests == 1, "no second try: more than half of the time was spent"


@pytest.mark.parametrize("within_s", [0.0, -1.0])
async def test_nothing_is_begun_after_the_deadline(within_s: float) -> None:
    with Site({"/": "x"}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            with pytest.raises(SearchUnavailable):
                await fetch(site.url(), within_s)
        assert site.connections() == 0


async def test_what_is_begun_has_its_own_time_whatever_the_deadline() -> None:
    with Site({"/": "x"}) as site, Hostile(falling_silent()) as slow:
        asked = site.hold("/")
        async with fetching(allowed=LOOPBACK, page_timeout_s=1.0) as fetch:
            clock = asyncio.get_running_loop()
            pages = [asyncio.create_task(fetch(url, 0.1)) for url in (site.url(), slow.url)]
            end = clock.time() + 0.1
            await asyncio.to_thread(asked.wait)
            while clock.time() <= end:
                await asyncio.sleep(0)
            site.release("/")
            assert (await pages[0]).body == b"x"
            assert (await refusal(pages[1])).kind == "timeout"


async def test_a_slow_server_behind_a_redirect_is_left_too() -> None:
    with Hostile(drip) as slow, Site({"/": Page(status=302, headers={"Location": slow.url})}) as site:
        async with fetching(allowed=LOOPBACK, page_timeout_s=0.2) as fetch:
            assert (await refusal(fetch(site.url()))).kind == "timeout"


async def test_a_connection_that_is_not_made_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        # Nobody takes these: once the queue is full, the kernel answers nobody.
        waiting = [socket.socket() for _ in range(8)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        async with fetching(allowed=LOOPBACK, fetch={"connect_timeout_s": 0.1, "attempts": 1}) as fetch:
            refused = await refusal(fetch(f"http://127.0.0.1:{port}/"))
        assert (refused.kind, refused.detail) == ("connect", "no connection in time")
        for one in waiting:
            one.close()


async def test_nonsense_far_into_a_body_ends_at_the_latest_with_the_pages_time() -> None:
    with Hostile(saying(CHUNKED + chunk(b"x" * FAR) + b"not a number\r\n")) as server:
        async with fetching(allowed=LOOPBACK, page_timeout_s=0.2) as fetch:
            assert (await refusal(fetch(server.url))).kind in ("timeout", "http", "connect")


# Places.


@pytest.mark.parametrize("limits", [{"max_per_host": 2}, {"max_fetches": 2}], ids=["of a host", "of all"])
async def test_no_more_are_asked_at_once_than_there_are_places(limits: dict[str, int]) -> None:
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


async def test_a_slow_host_takes_no_places_from_others() -> None:
    with Site({f"/{number}": "x" for number in range(9)}) as slow, Site({"/": "y"}, host="127.0.0.2") as quick:
        asked = [slow.hold(f"/{number}") for number in range(9)]
        async with fetching(allowed=LOOPBACK, fetch={"max_per_host": 1, "max_fetches": 2}) as fetch:
            pages = [asyncio.create_task(fetch(slow.url(f"/{number}"))) for number in range(9)]
            await asyncio.to_thread(asked[0].wait)
            assert (await fetch(quick.url())).body == b"y"
            for number in range(9):
                slow.release(f"/{number}")
            await asyncio.gather(*pages)


async def test_a_host_has_no_more_places_by_another_spelling() -> None:
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


async def test_waiting_for_a_place_costs_nothing_of_the_pages_time() -> None:
    """The first takes its whole time; were the second's time running meanwhile, it would never be asked for."""
    with Hostile(drip) as first, Site({"/": "x"}) as second:
        async with fetching(allowed=LOOPBACK, page_timeout_s=0.5, fetch={"max_fetches": 1}) as fetch:
            pages = [asyncio.create_task(fetch(url)) for url in (first.url, second.url())]
            await asyncio.wait(pages)
        assert first.requests == 1 and second.paths == ["/"]


async def test_the_deadline_runs_while_a_place_is_waited_for() -> None:
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


async def test_a_place_is_free_again_after_each_kind_of_end() -> None:
    with Hostile(drip) as slow, Site({"/": "x", "/no": Page("", 404)}) as site:
        places = {"max_fetches": 1, "max_per_host": 1}
        async with fetching(allowed=LOOPBACK, page_timeout_s=1.0, fetch=places) as fetch:
            for url in (slow.url, site.url("/no"), "http://10.0.0.1/", "http://x.invalid/", site.url("/no")):
                await refusal(fetch(url))
            held = site.hold("/")
            left = asyncio.create_task(fetch(site.url()))
            await asyncio.to_thread(held.wait)
            left.cancel()
            await asyncio.wait([left])
            assert left.cancelled()
            site.release("/")
            assert (await fetch(site.url())).body == b"x"


async def test_closing_breaks_off_what_is_under_way() -> None:
    with Hostile(falling_silent()) as server:
        async with fetching(allowed=LOOPBACK) as fetch:
            page = asyncio.create_task(fetch(server.url))
            while not server.requests:
                await asyncio.sleep(0)
        assert (await refusal(page)).kind in ("connect", "timeout")


# Memory.


async def test_a_page_holds_its_place_until_it_is_needed_no_more() -> None:
    with Site({"/a": "a", "/b": "b", "/no": Page("", 404)}) as site:
        async with fetching(allowed=LOOPBACK, fetch={"max_fetches": 1}) as fetch:
            with ExitStack() as places:
                await refusal(fetch(site.url("/no"), places=places))
                assert (await fetch(site.url("/a"), places=places)).body == b"a"
                with pytest.raises(SearchUnavailable):
                    await fetch(site.url("/b"), 0.1)
            assert (await fetch(site.url("/b"))).body == b"b"
        assert site.paths == ["/no", "/a", "/b"]


async def test_large_bodies_are_few_at_a_time_and_wait_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were they not, 256 pages of 10 MiB could wait for their reader at once, and more with each search."""
    for name, value in (("LARGE_BYTES", 4 * KIB), ("NUM_LARGE", 3), ("NUM_LARGE_OF_SITE", 2)):
        monkeypatch.setattr(fetch_module, name, value)
    routes = {**{f"/{number}": "x" * 8 * KIB for number in range(4)}, "/small": "x" * 4 * KIB}
    with Site(routes) as site, Site(routes, host="127.0.0.2") as other:
        async with fetching(allowed=LOOPBACK, page_timeout_s=0.5) as fetch:
            held = [ExitStack() for _ in range(4)]
            pages = [asyncio.create_task(fetch(site.url(f"/{at}"), places=held[at])) for at in range(4)]
            await asyncio.wait(pages, return_when=asyncio.FIRST_COMPLETED)
            assert len((await fetch(site.url("/small"))).body) == 4 * KIB
            third = ExitStack()
            assert len((await fetch(other.url("/0"), places=third)).body) == 8 * KIB
            with pytest.raises(SearchUnavailable):
                await fetch(other.url("/1"), 0.1)
            # Longer than a page's own time, which does not run for those who wait.
            done, waiting = await asyncio.wait(pages, timeout=0.6)
            assert (len(done), len(waiting)) == (2, 2)
            for places in held:
                places.close()
            assert [len((await page).body) for page in pages] == [8 * KIB] * 4
            for places in (*held, third):
                places.close()


# What is read, what is tried again.


@pytest.mark.parametrize("status", [204, 206, 304, 400, 401, 403, 404, 410, 451, 501])
async def test_another_status_than_200_is_no_page(status: int) -> None:
    with Site({"/": Page("" if status in (204, 304) else "x", status)}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            refused = await refusal(fetch(site.url()))
        assert (refused.kind, refused.detail) == ("http", f"status {status}")
        assert len(site.requests) == 1


async def test_a_redirect_that_leads_nowhere_is_no_page() -> None:
    with Site({"/": Page("", 302), "/300": Page("", 300)}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await refusal(fetch(site.url()))).detail == "status 302"
            assert (await refusal(fetch(site.url("/300")))).detail == "status 300"


class Pauses:
    """Stands for sleeping; remembers how long."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_busy_server_is_asked_again_after_a_pause(status: int, attempts: int) -> None:
    pauses = Pauses()
    with Site({"/": Page("x", status)}) as site:
        async with fetching(allowed=LOOPBACK, pause=pauses, fetch={"attempts": attempts}) as fetch:
            assert (await refusal(fetch(site.url()))).detail == f"status {status}"
        assert len(site.requests) == attempts and len(pauses.seconds) == attempts - 1


@pytest.mark.parametrize(
    "script",
    [
        saying(),
        saying(HEAD),
        saying(HEAD + b"Content-Length: 9\r\n\r\nx"),
        saying(CHUNKED + b"5\r\nhel"),
    ],
    ids=["at once", "in the header", "in the body", "in a chunk"],
)
@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_server_that_breaks_off_is_asked_again(script: Script, attempts: int) -> None:
    with Hostile(script) as server:
        async with fetching(allowed=LOOPBACK, fetch={"attempts": attempts}) as fetch:
            assert (await refusal(fetch(server.url))).kind == "connect"
        assert server.requests == attempts


async def test_a_server_is_not_asked_again_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageTime, "half_is_left", property(lambda _: False))
    with Site({"/": Page("x", 503)}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            await refusal(fetch(site.url()))
        assert len(site.requests) == 1


async def test_what_failed_once_may_be_had_the_second_time() -> None:
    answers = [Page("", 503), Page("there")]
    with Site({"/": lambda _: answers.pop(0)}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await fetch(site.url())).body == b"there"


async def test_a_port_where_nobody_listens_is_a_failure_of_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    async with fetching(allowed=LOOPBACK) as fetch:
        refused = await refusal(fetch(f"http://127.0.0.1:{port}/"))
    assert (refused.kind, refused.detail) == ("connect", "Connection refused")


TYPES = [
    ("text/html", "text/html", ""),
    ('TEXT/HTML ; Charset="GBK"', "text/html", "gbk"),
    ("text/html; charset=x\u00e9\u00e9; charset=utf-8", "text/html", "x"),
    ("application/xhtml+xml", "application/xhtml+xml", ""),
    ("text/plain; charset=iso-8859-1", "text/plain", "iso-8859-1"),
    ("text/markdown", "text/markdown", ""),
    ("application/json", "application/json", ""),
    ("application/xml", "application/xml", ""),
    ("text/xml", "text/xml", ""),
    ("application/pdf", "application/pdf", ""),
]


@pytest.mark.parametrize(("said", "media_type", "charset"), TYPES)
async def test_text_of_these_types_is_read(said: str, media_type: str, charset: str) -> None:
    with Site({"/": Page("text", media_type=said)}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            page = await fetch(site.url())
    assert (page.media_type, page.charset) == (media_type, charset)
    assert (page.final_url, page.encoding, page.body) == (site.url(), "", b"text")


@pytest.mark.parametrize(
    "said",
    [
        "image/png",
        "video/mp4",
        "application/zip",
        "text/css",
        "text/javascript",
        "multipart/mixed",
        "text",
        "\u00e9",
        "*/*",
    ],
)
async def test_other_types_are_refused_before_they_are_read(said: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: 9999\r\n\r\n<html>" % said.encode()
    with Hostile(falling_silent(head)) as server:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await refusal(fetch(server.url))).kind == "type"


@pytest.mark.parametrize("said", ["", "application/octet-stream", "binary/octet-stream"])
@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        (b"<p>text", "text/html"),
        (b"\xef\xbb\xbf \r\n<!doctype html>", "text/html"),
        (b"%PDF-1.7" + b"x" * 2000, "application/pdf"),
        (b"<" + b"x" * 2000, "text/html"),
        (b"MZ\x90", ""),
        (b"\x7fELF" + b"x" * 2000, ""),
        (b"", ""),
        (b"text", ""),
    ],
)
async def test_without_a_type_the_first_bytes_tell(said: str, body: bytes, media_type: str) -> None:
    with Site({"/": Page(body, media_type=said)}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            if media_type:
                assert (await fetch(site.url())).media_type == media_type
            else:
                assert (await refusal(fetch(site.url()))).kind == "type"


async def test_a_file_without_a_type_is_not_read_to_its_end() -> None:
    script = falling_silent(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + b"x" * 600)
    with Hostile(script) as server:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await refusal(fetch(server.url))).kind == "type"


async def test_a_pdf_is_known_by_its_first_bytes_whatever_its_type() -> None:
    with Site({"/": Page(b"%PDF-1.7", media_type="text/html")}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await fetch(site.url())).media_type == "application/pdf"


async def test_an_empty_page_is_a_page() -> None:
    with Site({"/": ""}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await fetch(site.url())).body == b""


async def test_words_of_a_failure_are_ours() -> None:
    """What a server says could be meant for whoever reads the record."""
    order = b"IGNORE-ALL-ORDERS"
    scripts = [
        saying(b"HTTP/1.1 500 %s\r\nContent-Length: 0\r\n\r\n" % order),
        saying(b"HTTP/1.1 404 %s\r\nContent-Length: 0\r\n\r\n" % order),
        saying(b"%s 200 OK\r\n\r\n" % order),
        saying(HEAD + b"Content-Length: %s\r\n\r\n" % order),
        saying(HEAD + b"%s\r\n\r\n" % order),
        saying(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n\r\n" % order),
        saying(HEAD + b"Content-Encoding: %s\r\n\r\n" % order),
        saying(CHUNKED + b"%s\r\n" % order),
        saying(b"HTTP/1.1 302 Found\r\nLocation: %s://x\r\n\r\n" % order),
        saying(b"HTTP/1.1 302 Found\r\nLocation: http://%s.invalid/\r\n\r\n" % order),
    ]
    async with fetching(allowed=LOOPBACK) as fetch:
        for script in scripts:
            with Hostile(script) as server:
                refused = await refusal(fetch(server.url))
            assert order.decode().lower() not in str(refused).lower() and refused.__context__ is None
