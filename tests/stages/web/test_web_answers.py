"""Which responses of real servers count as pages, and which ones are retried."""

from __future__ import annotations

import socket

import pytest
from support.servers.web_servers import Hostile, Page, Site
from support.web.fetching import LOOPBACK, fetching, refusal
from support.web.hostile_scripts import CHUNKED, HEAD, Script, falling_silent, saying

from treadle.web.slots import PageTime


@pytest.mark.parametrize("status", [204, 206, 304, 400, 401, 403, 404, 410, 451, 501])
async def test_status_other_than_200_is_not_a_page(status: int) -> None:
    with Site({"/": Page("" if status in (204, 304) else "x", status)}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            refused = await refusal(fetch(site.url()))
        assert (refused.kind, refused.detail) == ("http", f"status {status}")
        assert len(site.requests) == 1


async def test_redirect_without_target_is_not_a_page() -> None:
    with Site({"/": Page("", 302), "/300": Page("", 300)}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await refusal(fetch(site.url()))).detail == "status 302"
            assert (await refusal(fetch(site.url("/300")))).detail == "status 300"


class Pauses:
    """Replaces sleeping; records the durations."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_busy_server_is_retried_after_a_pause(status: int, attempts: int) -> None:
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
async def test_server_that_drops_the_connection_is_retried(script: Script, attempts: int) -> None:
    with Hostile(script) as server:
        async with fetching(allowed=LOOPBACK, fetch={"attempts": attempts}) as fetch:
            assert (await refusal(fetch(server.url))).kind == "connect"
        assert server.requests == attempts


async def test_server_is_not_retried_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageTime, "can_retry", property(lambda _: False))
    with Site({"/": Page("x", 503)}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            await refusal(fetch(site.url()))
        assert len(site.requests) == 1


async def test_failed_page_may_succeed_on_the_second_attempt() -> None:
    answers = [Page("", 503), Page("there")]
    with Site({"/": lambda _: answers.pop(0)}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await fetch(site.url())).body == b"there"


async def test_closed_port_is_a_connection_failure() -> None:
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
async def test_supported_text_types_are_read(said: str, media_type: str, charset: str) -> None:
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
async def test_other_types_are_refused_before_reading(said: str) -> None:
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
async def test_missing_type_is_detected_from_the_first_bytes(said: str, body: bytes, media_type: str) -> None:
    with Site({"/": Page(body, media_type=said)}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            if media_type:
                assert (await fetch(site.url())).media_type == media_type
            else:
                assert (await refusal(fetch(site.url()))).kind == "type"


async def test_unsupported_file_without_a_type_is_not_read_to_its_end() -> None:
    script = falling_silent(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + b"x" * 600)
    with Hostile(script) as server:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await refusal(fetch(server.url))).kind == "type"


async def test_pdf_is_detected_by_its_first_bytes_regardless_of_its_type() -> None:
    with Site({"/": Page(b"%PDF-1.7", media_type="text/html")}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await fetch(site.url())).media_type == "application/pdf"


async def test_empty_page_is_a_page() -> None:
    with Site({"/": ""}) as site:
        async with fetching(allowed=LOOPBACK) as fetch:
            assert (await fetch(site.url())).body == b""


async def test_failure_messages_contain_no_server_text() -> None:
    """Server text could be an instruction to a reader of the record."""
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
