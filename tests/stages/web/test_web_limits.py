"""Limits of page fetches, against real servers that break every one of them."""

from __future__ import annotations

import asyncio
import gzip
import socket
import zlib
from importlib.metadata import version
from pathlib import Path

import aiohttp.connector
import pytest
from support.servers.certificates import server_context
from support.servers.own_clock import ForwardClock
from support.servers.web_servers import Hostile, Page, Site
from support.web.fetching import LOOPBACK, fetching, refusal
from support.web.hostile_scripts import CHUNKED, FAR, HEAD, KIB, Script, chunk, drip, falling_silent, saying

from treadle.retriever.client import SearchUnavailable
from treadle.web.pages.reader import PageReader
from treadle.web.types import Unfetchable

# Size.


async def test_huge_content_length_is_refused_before_reading() -> None:
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
async def test_endless_body_is_abandoned_at_the_limit(script: Script) -> None:
    with Hostile(script) as server:
        async with fetching(allowed=LOOPBACK, max_page_bytes=256 * KIB) as fetch:
            refused = await refusal(fetch(server.url))
        assert (refused.kind, refused.detail) == ("too_large", "it is larger than 262144 bytes")
        # The rest is in buffers of the kernel and the event loop.
        assert server.requests == 1 and server.num_sent < 64 << 20


async def test_user_agent_is_the_product_and_its_version() -> None:
    with Site({"/": "text"}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            await fetch(site.url("/"))
        assert site.requests[0].headers["user-agent"] == f"treadle/{version('treadle')}"


async def test_byte_limit_is_inclusive() -> None:
    with Site({"/in": "x" * 4096, "/beyond": "x" * 4097}) as site:
        async with fetching(allowed=LOOPBACK, max_page_bytes=4096) as fetch:
            assert len((await fetch(site.url("/in"))).body) == 4096
            assert (await refusal(fetch(site.url("/beyond")))).kind == "too_large"


@pytest.mark.parametrize(("encoding", "named"), [("gzip", "gzip"), ("X-GZIP", "gzip"), ("deflate", "deflate")])
async def test_compressed_body_is_returned_as_sent(encoding: str, named: str) -> None:
    """A bomb is unpacked, and stopped, in the process that reads pages; here it costs what was sent."""
    bomb = gzip.compress(bytes(16 << 20)) if named == "gzip" else zlib.compress(bytes(16 << 20))
    with Site({"/": Page(bomb, headers={"Content-Encoding": encoding})}) as site:
        async with fetching(allowed=LOOPBACK, max_page_bytes=32 * KIB) as fetch:
            page = await fetch(site.url())
    assert (page.body, page.encoding) == (bomb, named) and len(bomb) < 32 * KIB


async def test_server_bomb_is_stopped_on_decompression_and_the_next_page_is_read() -> None:
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
async def test_unsupported_and_stacked_encodings_are_refused(encoding: str) -> None:
    with Site({"/": Page(b"x", headers={"Content-Encoding": encoding})}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await refusal(fetch(site.url()))).kind == "encoding"


async def test_encodings_in_two_headers_are_stacked() -> None:
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
async def test_endless_or_malformed_header_is_refused(script: Script) -> None:
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
async def test_response_without_a_page_is_abandoned_early(script: Script) -> None:
    with Hostile(script) as server:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await refusal(fetch(server.url))).kind == "http"
        assert server.requests == 1 and server.num_sent < 64 << 20


@pytest.mark.parametrize("size", [16, 1000, 70_000])
async def test_page_in_small_pieces_is_read_whole(size: int) -> None:
    pieces = chunk(b"x" * size) * ((1 << 20) // size)
    with Hostile(saying(CHUNKED + pieces + b"0\r\n\r\n")) as server:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert len((await fetch(server.url)).body) == (1 << 20) // size * size


async def test_large_page_is_read_whole_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, trusting = server_context(tmp_path, "127.0.0.1")
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", trusting)
    with Site({"/": bytes(9 << 20)}, tls=server) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert len((await fetch(site.url())).body) == 9 << 20


# Time.


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
async def test_slow_server_is_abandoned_at_the_page_timeout(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    with Hostile(script) as server:
        async with fetching(allowed=LOOPBACK, page_timeout_s=60.0) as fetch:
            page = asyncio.create_task(refusal(fetch(server.url)))
            await asyncio.to_thread(server.silent.wait)
            ForwardClock(monkeypatch).pass_(61.0)
            assert (await page).kind == "timeout"
        assert server.requests == 1, "no second try: more than half of the time was spent"


@pytest.mark.parametrize("within_s", [0.0, -1.0])
async def test_no_request_starts_after_the_deadline(within_s: float) -> None:
    with Site({"/": "x"}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            with pytest.raises(SearchUnavailable):
                await fetch(site.url(), within_s)
        assert site.connections() == 0


async def test_started_request_has_its_full_time_regardless_of_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ForwardClock(monkeypatch)
    with Site({"/": "x"}) as site, Hostile(falling_silent()) as slow:
        asked = site.hold("/")
        async with fetching(allowed=LOOPBACK, page_timeout_s=120.0) as fetch:
            pages = [asyncio.create_task(fetch(url, 60.0)) for url in (site.url(), slow.url)]
            await asyncio.to_thread(asked.wait)
            await asyncio.to_thread(slow.silent.wait)
            clock.pass_(61.0)
            await asyncio.sleep(0)
            site.release("/")
            assert (await pages[0]).body == b"x"
            clock.pass_(60.0)
            assert (await refusal(pages[1])).kind == "timeout"


async def test_slow_server_after_a_redirect_is_abandoned() -> None:
    with Hostile(drip) as slow, Site({"/": Page(status=302, headers={"Location": slow.url})}) as site:
        async with fetching(allowed=LOOPBACK, page_timeout_s=0.2) as fetch:
            assert (await refusal(fetch(site.url()))).kind == "timeout"


async def test_unestablished_connection_is_abandoned() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        # These are never accepted: once the queue is full, the kernel answers no more connections.
        waiting = [socket.socket() for _ in range(8)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        async with fetching(allowed=LOOPBACK, fetch={"connect_timeout_s": 0.1, "attempts": 1}) as fetch:
            refused = await refusal(fetch(f"http://127.0.0.1:{port}/"))
        assert (refused.kind, refused.detail) == ("connect", "no connection in time")
        for one in waiting:
            one.close()


async def test_malformed_body_fails_at_the_latest_at_the_page_timeout() -> None:
    with Hostile(saying(CHUNKED + chunk(b"x" * FAR) + b"not a number\r\n")) as server:
        async with fetching(allowed=LOOPBACK, page_timeout_s=0.2) as fetch:
            assert (await refusal(fetch(server.url))).kind in ("timeout", "http", "connect")
