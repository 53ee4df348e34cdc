"""The confined processes that make text of pages, with real readers, and what hostile pages do to them."""

from __future__ import annotations

import asyncio
import gzip
import importlib.metadata
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.pdf_files import pdf_bomb, pdf_file

from treadle.agent.web import page_reader
from treadle.agent.web.page_reader import PageReader
from treadle.agent.web.passages import clean
from treadle.agent.web.types import Fetched, PageText, Unfetchable
from treadle.core.errors import ToolError
from treadle.tasks.doctor import _web_pages

MAX_BYTES = 10 * 1024 * 1024
PAGE = b"<title>Towers</title><h1>The tower</h1><p>It is <b>330</b>\n metres tall.</p>"
HANGS = b"<a " + b" ".join(b"k%d=v" % number for number in range(400_000)) + b">word</a>"
"""Takes the reader minutes: it looks at each attribute for each."""
UNREADABLE = "the page could not be read in the time and memory given"


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


def fetched(body: bytes, media_type: str = "text/html", *, charset: str = "", encoding: str = "") -> Fetched:
    return Fetched("https://example.org/", 200, media_type, charset, encoding, body)


@pytest.fixture(scope="module")
def reading() -> Iterator[Reading]:
    with asyncio.Runner() as runner:
        reading = Reading(runner)
        yield reading
        runner.run(reading.reader.close())


def pids(reader: PageReader) -> list[int]:
    return [worker._process.pid for worker in reader._workers if worker._process is not None]


def most_memory_mib(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


def see_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that are started from now on import from a folder before anything else."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))


def test_a_page_becomes_its_title_and_its_visible_text(reading: Reading) -> None:
    page = reading.read(
        b"<!doctype html><html><head><title> Of\n towers </title><style>p{}</style><script>let x = 1</script></head>"
        b"<body><nav>Home</nav><h1>The tower</h1><p>It is <b>330</b>\n metres tall.</p><ul><li>one<li>two</ul>"
        b"<table><tr><td>a</td><td>b</td></tr></table><img alt=picture><noscript>none</noscript><!-- remark -->"
        b"<p hidden>secret</p><p style='color: red; display:none'>secret</p><a href=https://example.org/>link</a></body>"
    )
    assert page.title == "Of towers"
    assert page.text == "Home\n\nThe tower\n\nIt is 330 metres tall.\n\n• one\n• two\na b\nlink"
    assert (page.media_type, page.reader.split(" ")[0]) == ("text/html", "resiliparse")


def test_a_page_that_hides_its_body_until_a_script_runs_is_read(reading: Reading) -> None:
    assert reading.read(b"<html style='display:none'><body style='visibility:hidden'><p>text").text == "text"


def test_a_pdf_becomes_its_title_and_the_running_text_of_its_pages(reading: Reading) -> None:
    body = pdf_file([["The tower is", "330 metres tall."], ["Second (page)."]], title="Of towers")
    for media_type in ("application/pdf", "text/html", ""):
        page = reading.read(body, media_type)
        assert (page.title, page.media_type) == ("Of towers", "application/pdf")
        assert page.text == "The tower is 330 metres tall.\n\nSecond (page)."
        assert page.reader.startswith("pypdfium2 ")


@pytest.mark.parametrize("media_type", ["text/plain", "text/markdown", "application/json", "text/xml"])
def test_plain_text_stays_as_it_is(reading: Reading, media_type: str) -> None:
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
def test_the_encoding_is_told_by_mark_server_or_page_in_this_order(reading: Reading, body: bytes, charset: str) -> None:
    assert reading.read(body, charset=charset).text == "高塔 é"


def test_every_encoding_that_a_page_may_name_is_there_although_no_file_can_be_opened(reading: Reading) -> None:
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


def test_a_page_is_unpacked_here(reading: Reading) -> None:
    assert reading.read(gzip.compress(PAGE), encoding="gzip").title == "Towers"


def test_long_pages_are_cut(reading: Reading) -> None:
    page = reading.read(b"<title>" + b"t" * 999 + b"</title>" + b"<p>many words" * 100_000)
    assert (len(page.title), len(page.text)) == (300, 50_000)
    assert len(reading.read(b"\n \n" * 50_000 + b"words " * 100_000, "text/plain").text) > 49_990
    assert len(reading.read(pdf_file([["many words " * 7] * 45] * 20)).text) > 49_990


def test_text_that_is_not_seen_does_not_leave_the_process(reading: Reading) -> None:
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
def test_what_is_no_page_is_refused_and_the_process_lives(
    reading: Reading, body: bytes, media_type: str, kind: str
) -> None:
    before = pids(reading.reader)
    assert reading.failure(body, media_type)[0] == kind
    assert reading.read(PAGE).title == "Towers"
    assert pids(reading.reader) == before


async def test_a_bomb_is_refused_at_its_limit_without_being_unpacked_further() -> None:
    reader = PageReader(1)
    await reader.open()
    (pid,) = pids(reader)
    for size in (MAX_BYTES + 1, 400 * 1024 * 1024):
        page = fetched(gzip.compress(bytes(size), 1), encoding="gzip")
        with pytest.raises(Unfetchable) as caught:
            await reader.read(page, max_bytes=MAX_BYTES)
        assert caught.value.kind == "too_large"
    assert pids(reader) == [pid]
    assert most_memory_mib(pid) < 250
    assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).title == "Towers"
    await reader.close()


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
def test_an_odd_page_is_read_or_refused_and_the_next_one_is_read(reading: Reading, body: bytes) -> None:
    try:
        assert reading.read(body).text
    except Unfetchable as error:
        assert error.kind == "unreadable"
    assert reading.read(PAGE).title == "Towers"


@settings(max_examples=200)
@given(
    body=st.binary(max_size=200)
    | st.lists(st.sampled_from([b"<p>", b"<svg>", b"</p", b"&#x", b"\xff", b"%PDF-1.4\n1 0 obj", b"<<"])).map(b"".join),
    media_type=st.sampled_from(["text/html", "application/pdf", "text/plain", "", "image/png"]),
    charset=st.sampled_from(["", "gbk", "iso-2022-jp", "utf-16", "x"]),
)
@example(body=pdf_file([["text"]])[:-30], media_type="application/pdf", charset="")
def test_whatever_bytes_come_there_is_clean_text_or_an_outcome(
    reading: Reading, body: bytes, media_type: str, charset: str
) -> None:
    try:
        page = reading.read(body, media_type, charset=charset)
    except Unfetchable as error:
        assert error.kind in ("type", "unreadable")
    else:
        assert clean(page.text) == page.text
        assert clean(page.title) == page.title


async def test_a_process_that_hangs_is_ended_by_the_clock_of_its_own_work() -> None:
    reader = PageReader(1)
    await reader.open()
    (worker,) = reader._workers
    with pytest.raises(Unfetchable, match=UNREADABLE):
        await reader.read(fetched(HANGS), max_bytes=MAX_BYTES)
    assert worker._exit_code == -signal.SIGPROF
    assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).title == "Towers"
    await reader.close()


async def test_a_process_that_eats_memory_is_ended_by_its_limit() -> None:
    reader = PageReader(1)
    await reader.open()
    (worker,) = reader._workers
    with pytest.raises(Unfetchable, match=UNREADABLE):
        await reader.read(fetched(pdf_bomb(2_500_000), "application/pdf"), max_bytes=MAX_BYTES)
    assert worker._exit_code not in (None, -signal.SIGPROF, -signal.SIGKILL)
    assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).title == "Towers"
    await reader.close()


async def test_a_process_that_is_silent_is_ended_by_the_clock_on_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_reader, "_WALL_LIMIT_S", 0.2)
    reader = PageReader(1)
    await reader.open()
    os.kill(pids(reader)[0], signal.SIGSTOP)
    with pytest.raises(Unfetchable, match=UNREADABLE):
        await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)
    await reader.close()


async def test_a_process_killed_from_outside_is_replaced_and_the_page_is_read() -> None:
    reader = PageReader(1)
    await reader.open()
    (pid,) = pids(reader)
    os.kill(pid, signal.SIGSTOP)
    asked = asyncio.create_task(reader.read(fetched(PAGE), max_bytes=MAX_BYTES))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    assert (await asked).title == "Towers"
    assert pids(reader) != [pid]
    await reader.close()


async def test_a_process_killed_again_and_again_leaves_the_page_unread() -> None:
    reader = PageReader(1)
    await reader.open()
    asked = asyncio.create_task(reader.read(fetched(HANGS), max_bytes=MAX_BYTES))
    killed = set()
    while not asked.done():
        for worker in list(reader._workers):
            if worker._num_pages and worker._process is not None and worker._process.returncode is None:
                killed.add(worker._process.pid)
                os.kill(worker._process.pid, signal.SIGKILL)
        await asyncio.wait([asked], timeout=0.02)
    with pytest.raises(Unfetchable, match=UNREADABLE):
        asked.result()
    assert len(killed) == 3
    await reader.close()


async def test_a_page_that_is_given_up_takes_its_process_with_it_and_no_other_page() -> None:
    reader = PageReader(1)
    await reader.open()
    (worker,) = reader._workers
    asked = asyncio.create_task(reader.read(fetched(HANGS), max_bytes=MAX_BYTES))
    while worker._num_pages == 0:
        await asyncio.sleep(0)
    asked.cancel()
    assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).title == "Towers"
    assert asked.cancelled()
    assert worker._exit_code == -signal.SIGKILL
    await reader.close()


async def test_pages_are_read_side_by_side_and_each_gets_its_own_text() -> None:
    reader = PageReader(2)
    await reader.open()
    pages = [fetched(f"<p>number {number}".encode()) for number in range(50)]
    texts = await asyncio.gather(*(reader.read(page, max_bytes=MAX_BYTES) for page in pages))
    assert [page.text for page in texts] == [f"number {number}" for number in range(50)]
    assert len(pids(reader)) == 2
    await reader.close()


async def test_a_process_is_replaced_after_its_share_of_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_reader, "MAX_PAGES", 2)
    reader = PageReader(1)
    await reader.open()
    seen = []
    for _ in range(4):
        await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)
        seen += pids(reader)
    assert seen[0] == seen[1] != seen[2] == seen[3]
    await reader.close()


async def test_closing_ends_every_process_also_in_the_middle_of_a_page() -> None:
    reader = PageReader(2)
    await reader.open()
    workers = list(reader._workers)
    asked = asyncio.create_task(reader.read(fetched(HANGS), max_bytes=MAX_BYTES))
    while not any(worker._num_pages for worker in workers):
        await asyncio.sleep(0)
    await reader.close()
    assert all(worker._exit_code is not None for worker in workers)
    with pytest.raises(ToolError):
        await asked
    assert not reader._workers


async def test_a_process_that_lies_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "liar.py"
    program.write_text(
        "import json, os, struct, sys\n"
        "def say(value):\n"
        "    data = json.dumps(value).encode()\n"
        "    sys.stdout.buffer.write(struct.pack('>I', len(data)) + data)\n"
        "    sys.stdout.buffer.flush()\n"
        "say({'ready': True})\n"
        "while size := sys.stdin.buffer.read(4):\n"
        "    head = json.loads(sys.stdin.buffer.read(struct.unpack('>I', size)[0]))\n"
        "    body = sys.stdin.buffer.read(head['num_bytes'])\n"
        "    page = {'title': '', 'text': '', 'media_type': '', 'reader': ''}\n"
        "    lies = {b'long': {**page, 'text': 'x' * 50_001}, b'number': {**page, 'title': 1}, b'none': {},\n"
        "            b'kind': {'failure': 'no such kind', 'detail': ''}, b'list': [],\n"
        "            b'huge': {'a': 'x' * 2_000_000}}\n"
        "    if body == b'end': os.close(1)\n"
        "    else: say(lies[body])\n"
    )
    see_first(tmp_path, monkeypatch)
    monkeypatch.setattr(page_reader, "_MODULE", "liar")
    reader = PageReader(1)
    await reader.open()
    for body in (b"long", b"number", b"none", b"kind", b"list", b"huge", b"end"):
        with pytest.raises(Unfetchable) as caught:
            await reader.read(fetched(body), max_bytes=MAX_BYTES)
        assert caught.value.kind == "unreadable"
    await reader.close()


async def test_missing_packages_are_named_with_the_command_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pypdfium2.py").write_text("raise ImportError('no module pypdfium2')")
    see_first(tmp_path, monkeypatch)
    reader = PageReader(2)
    with pytest.raises(ToolError, match=r"pip install 'treadle\[web\]'.*no module pypdfium2"):
        await reader.open()
    assert not reader._workers


async def test_a_process_that_does_not_start_is_an_error_and_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_reader, "_MODULE", "no_such_module")
    reader = PageReader(1)
    with pytest.raises(ToolError, match="did not start: exit code 1"):
        await reader.open()


@pytest.fixture
def machine_without_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import platform\nplatform.machine = lambda: 'riscv64'\n")
    see_first(tmp_path, monkeypatch)


@pytest.mark.usefixtures("machine_without_filter")
async def test_what_the_kernel_does_not_take_away_is_said(caplog: pytest.LogCaptureFixture) -> None:
    reader = PageReader(1)
    with caplog.at_level(logging.WARNING):
        await reader.open()
    assert "riscv64" in reader.problem
    assert "limits of time and memory alone" in caplog.text
    assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).title == "Towers"
    await reader.close()


_PROBES = """
import os, resource, signal, socket, sys
from treadle.agent.web import page_worker as worker
worker._load()
if sys.argv[1] == "confined":
    assert worker._confine() == ""
def tried(what, do):
    try:
        do()
    except Exception as error:
        print(what, type(error).__name__)
    else:
        print(what, "done")
tried("read", lambda: open("/etc/hostname"))
tried("write", lambda: open("/tmp/treadle-page-worker-probe", "w"))
tried("limit", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
tried("socket", lambda: socket.socket())
tried("pair", lambda: socket.socketpair(type=socket.SOCK_DGRAM))
tried("signal", lambda: os.kill(os.getppid(), 0))
tried("fork", lambda: os.fork() or os._exit(0))
tried("exec", lambda: os.execv("/bin/true", ["true"]) if sys.argv[1] == "confined" else None)
"""


def test_a_reader_that_was_taken_over_can_reach_nothing() -> None:
    def lines(mode: str) -> dict[str, str]:
        done = subprocess.run([sys.executable, "-c", _PROBES, mode], capture_output=True, text=True, check=True)
        return dict(line.split() for line in done.stdout.splitlines())

    assert set(lines("free").values()) == {"done"}
    confined = lines("confined")
    assert len(confined) == 8
    assert set(confined.values()) <= {"OSError", "PermissionError", "ValueError"}


def test_the_processes_end_with_their_parent() -> None:
    program = (
        "import asyncio, os, signal\n"
        "from treadle.agent.web.page_reader import PageReader\n"
        "async def main():\n"
        "    reader = PageReader(1)\n"
        "    await reader.open()\n"
        "    (worker,) = reader._workers\n"
        "    print(worker._process.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    # Its worker holds no end of this pipe; what it writes is read when it is gone.
    parent = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert parent.returncode == -signal.SIGKILL
    try:
        process = os.pidfd_open(int(parent.stdout))
    except ProcessLookupError:
        return
    assert select.select([process], [], [], 60)[0], "it lives on"
    os.close(process)


def test_the_doctor_says_that_pages_are_read_in_confinement() -> None:
    check = _web_pages()
    assert check.status == "ok"
    assert "confined by a filter of system calls" in check.detail


@pytest.mark.usefixtures("machine_without_filter")
def test_the_doctor_warns_of_pages_that_are_read_without_a_filter() -> None:
    check = _web_pages()
    assert check.status == "warn"
    assert "riscv64" in check.detail
    assert check.fix


def test_the_doctor_names_the_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    check = _web_pages()
    assert (check.status, check.fix) == ("warn", "pip install 'treadle[web]'")
    assert check.detail.startswith("resiliparse is not installed")
