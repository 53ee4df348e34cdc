"""Confined processes read pages, with real readers, and bytes that are not pages."""

from __future__ import annotations

import asyncio
import gzip
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.sweep import examples
from support.web.page_reading import MAX_BYTES, PAGE, fetched, pids
from support.web.pdf_files import pdf_file

from treadle.web.pages.passages import clean
from treadle.web.pages.reader import PageReader
from treadle.web.types import PageText, Unfetchable


class Reading:
    """One process on a loop of its own, so that many tests can share it."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.reader = PageReader(1)
        runner.run(self.reader.open())

    def read(self, body: bytes, media_type: str = "text/html", **fields: str) -> PageText:
        return self.runner.run(self.reader.read(fetched(body, media_type, **fields), max_bytes=MAX_BYTES))

    def failure(self, body: bytes, media_type: str = "text/html", **fields: str) -> tuple[str, str]:
        with pytest.raises(Unfetchable) as caught:
            self.read(body, media_type, **fields)
        return caught.value.kind, caught.value.detail


@pytest.fixture(scope="module")
def reading() -> Iterator[Reading]:
    with asyncio.Runner() as runner:
        reading = Reading(runner)
        yield reading
        runner.run(reading.reader.close())


def test_page_becomes_its_title_and_visible_text(reading: Reading) -> None:
    page = reading.read(
        b"<!doctype html><html><head><title> Of\n towers </title><style>p{}</style><script>let x = 1</script></head>"
        b"<body><nav>Home</nav><h1>The tower</h1><p>It is <b>330</b>\n metres tall.</p><ul><li>one<li>two</ul>"
        b"<table><tr><td>a</td><td>b</td></tr></table><img alt=picture><noscript>none</noscript><!-- remark -->"
        b"<p hidden>secret</p><p style='color: red; display:none'>secret</p><a href=https://example.org/>link</a></body>"
    )
    assert page.title == "Of towers"
    assert page.text == "Home\n\nThe tower\n\nIt is 330 metres tall.\n\n• one\n• two\na b\nlink"
    assert (page.media_type, page.reader.split(" ")[0]) == ("text/html", "resiliparse")


def test_page_with_a_body_hidden_until_scripts_run_is_read(reading: Reading) -> None:
    assert reading.read(b"<html style='display:none'><body style='visibility:hidden'><p>text").text == "text"


def test_pdf_becomes_its_title_and_page_text(reading: Reading) -> None:
    body = pdf_file([["The tower is", "330 metres tall."], ["Second (page)."]], title="Of towers")
    for media_type in ("application/pdf", "text/html", ""):
        page = reading.read(body, media_type)
        assert (page.title, page.media_type) == ("Of towers", "application/pdf")
        assert page.text == "The tower is 330 metres tall.\n\nSecond (page)."
        assert page.reader.startswith("pypdfium2 ")


@pytest.mark.parametrize("media_type", ["text/plain", "text/markdown", "application/json", "text/xml"])
def test_plain_text_is_unchanged(reading: Reading, media_type: str) -> None:
    page = reading.read('{"a": "<b>塔</b>"}\r\n\r\n\r\n\r\nend'.encode(), media_type)
    assert (page.text, page.title, page.media_type) == ('{"a": "<b>塔</b>"}\n\nend', "", media_type)


@pytest.mark.parametrize(
    ("body", "charset"),
    [
        ("<p>高塔 é".encode("utf-8-sig"), "gbk"),
        (b"\xff\xfe" + "<p>高塔 é".encode("utf-16-le"), ""),
        ("<p>高塔 é".encode("gb18030"), "GB18030"),
        ("<meta charset=utf-8><p>高塔 é".encode("gb18030"), "gb18030"),
        (b"<meta charset=gb18030>" + "<p>高塔 é".encode("gb18030"), ""),
        ("<p>高塔 é".encode(), "no-such-charset"),
        ("<p>高塔 é".encode(), "rot13"),
    ],
)
def test_encoding_is_detected_by_bom_then_server_then_page(reading: Reading, body: bytes, charset: str) -> None:
    assert reading.read(body, charset=charset).text == "高塔 é"


def test_every_declared_encoding_is_available_without_file_access(reading: Reading) -> None:
    names = (
        "ibm866 iso-8859-2 iso-8859-3 iso-8859-4 iso-8859-5 iso-8859-6 iso-8859-7 iso-8859-8 iso-8859-8-i iso-8859-10 "
        "iso-8859-13 iso-8859-14 iso-8859-15 iso-8859-16 koi8-r koi8-u macintosh windows-874 windows-1250 windows-1251 "
        "windows-1252 windows-1253 windows-1254 windows-1255 windows-1256 windows-1257 windows-1258 gbk gb18030 big5 "
        "euc-jp iso-2022-jp shift_jis euc-kr utf-8"
    )
    for name in names.split():
        assert reading.read(b"<p>text", charset=name).text == "text"
    assert reading.read("<p>Привет мир, как дела".encode("koi8-r"), charset="koi8-r").text == "Привет мир, как дела"
    assert reading.read("<p>日本語".encode("iso-2022-jp"), charset="iso-2022-jp").text == "日本語"


def test_compressed_page_is_decompressed(reading: Reading) -> None:
    assert reading.read(gzip.compress(PAGE), encoding="gzip").title == "Towers"


def test_long_pages_are_truncated(reading: Reading) -> None:
    page = reading.read(b"<title>" + b"t" * 999 + b"</title>" + b"<p>many words" * 100_000)
    assert (len(page.title), len(page.text)) == (300, 50_000)
    assert len(reading.read(b"\n \n" * 50_000 + b"words " * 100_000, "text/plain").text) > 49_990
    assert len(reading.read(pdf_file([["many words " * 7] * 45] * 20)).text) > 49_990


def test_invisible_text_does_not_leave_the_process(reading: Reading) -> None:
    page = reading.read("<title>a\u202eb</title><p>or\u200bder\x1b[2J\U000e0041 &#8238;&#27;&#xd800;x".encode())
    assert (page.title, page.text) == ("ab", "order[2J x")


@pytest.mark.parametrize(
    ("body", "media_type", "kind"),
    [
        (b"\x89PNG\r\n", "image/png", "type"),
        (b"binary", "", "type"),
        (b"", "text/html", "unreadable"),
        (b"<script>draw()</script>", "text/html", "unreadable"),
        (b"%PDF-1.7 and nothing of one", "application/pdf", "unreadable"),
        (b"no PDF", "application/pdf", "unreadable"),
    ],
)
def test_non_page_is_refused_and_the_process_survives(
    reading: Reading, body: bytes, media_type: str, kind: str
) -> None:
    before = pids(reading.reader)
    assert reading.failure(body, media_type)[0] == kind
    assert reading.read(PAGE).title == "Towers"
    assert pids(reading.reader) == before


_BOMBS = """
import asyncio, gzip, resource
from treadle.web.pages.reader import PageReader
from treadle.web.types import Fetched, Unfetchable
async def main():
    reader = PageReader(1)
    await reader.open()
    for size in (1 + (10 << 20), 400 << 20):
        bomb = gzip.compress(bytes(size), 1)
        try:
            await reader.read(Fetched("https://a.org/", "text/html", "", "gzip", bomb), max_bytes=10 << 20)
        except Unfetchable as refused:
            print(refused.kind)
    await reader.close()
asyncio.run(main())
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


def test_bomb_is_refused_at_its_limit_without_further_decompression() -> None:
    done = subprocess.run([sys.executable, "-c", _BOMBS], capture_output=True, text=True, check=True)
    *kinds, most_memory_mib = done.stdout.split()
    assert kinds == ["too_large"] * 2
    assert 20 < int(most_memory_mib) < 250


@pytest.mark.parametrize(
    "body",
    [
        b"<div>" * 500_000 + b"deep",
        b"<table><tr><td>" * 50_000 + b"deep",
        b"&" * 1_000_000,
        b"<p>\xcc\x81\xcc\x96" * 99,
    ],
    ids=["nested", "tables", "entities", "marks"],
)
def test_odd_page_is_read_or_refused_and_the_next_one_is_read(reading: Reading, body: bytes) -> None:
    try:
        assert reading.read(body).text
    except Unfetchable as error:
        assert error.kind == "unreadable"
    assert reading.read(PAGE).title == "Towers"


@settings(max_examples=examples(200))
@given(
    body=st.binary(max_size=200)
    | st.lists(st.sampled_from([b"<p>", b"<svg>", b"</p", b"&#x", b"\xff", b"%PDF-1.4\n1 0 obj", b"<<"])).map(b"".join),
    media_type=st.sampled_from(["text/html", "application/pdf", "text/plain", "", "image/png"]),
    charset=st.sampled_from(["", "gbk", "iso-2022-jp", "utf-16", "x"]),
)
@example(body=pdf_file([["text"]])[:-30], media_type="application/pdf", charset="")
def test_any_bytes_give_clean_text_or_an_outcome(reading: Reading, body: bytes, media_type: str, charset: str) -> None:
    try:
        page = reading.read(body, media_type, charset=charset)
    except Unfetchable as error:
        assert error.kind in ("type", "unreadable")
    else:
        assert clean(page.text) == page.text
        assert clean(page.title) == page.title
