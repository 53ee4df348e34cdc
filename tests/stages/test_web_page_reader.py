"""The confined processes that make text of pages, with real readers, and what hostile pages do to them."""

from __future__ import annotations

import asyncio
import contextlib
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
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.pdf_files import pdf_bomb, pdf_file

from treadle.agent.sandbox import landlock
from treadle.agent.web import once, page_reader
from treadle.agent.web.page_reader import PageReader
from treadle.agent.web.passages import clean
from treadle.agent.web.types import Fetched, PageText, Unfetchable
from treadle.core.errors import SandboxError, ToolError
from treadle.retriever.client import SearchUnavailable
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
    return Fetched("https://example.org/", media_type, charset, encoding, body)


@pytest.fixture(scope="module")
def reading() -> Iterator[Reading]:
    with asyncio.Runner() as runner:
        reading = Reading(runner)
        yield reading
        runner.run(reading.reader.close())


def pids(reader: PageReader) -> list[int]:
    return [worker._process.pid for worker in reader._workers if worker._process is not None]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def child_of(worker: Any) -> int:
    """The process that reads the page under way."""
    while not (found := children(worker._process.pid)):
        await asyncio.sleep(0)
    return found[0]


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


_BOMBS = """
import asyncio, gzip, resource
from treadle.agent.web.page_reader import PageReader
from treadle.agent.web.types import Fetched, Unfetchable
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


def test_a_bomb_is_refused_at_its_limit_without_being_unpacked_further() -> None:
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
    assert worker._child_code == -signal.SIGXCPU and not worker.is_gone
    assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).title == "Towers"
    await reader.close()


async def test_a_process_that_eats_memory_is_ended_by_its_limit() -> None:
    reader = PageReader(1)
    await reader.open()
    (worker,) = reader._workers
    with pytest.raises(Unfetchable, match=UNREADABLE):
        await reader.read(fetched(pdf_bomb(2_500_000), "application/pdf"), max_bytes=MAX_BYTES)
    assert worker._child_code not in (0, -signal.SIGXCPU, -signal.SIGKILL) and not worker.is_gone
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


async def test_a_child_killed_again_and_again_leaves_the_page_unread_and_the_next_one_is_read() -> None:
    reader = PageReader(1)
    await reader.open()
    (worker,) = reader._workers
    before = pids(reader)
    asked = asyncio.create_task(reader.read(fetched(HANGS), max_bytes=MAX_BYTES))
    killed = set()
    while not asked.done():
        for child in children(before[0]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            killed.add(child)
        await asyncio.sleep(0)
    with pytest.raises(Unfetchable, match=UNREADABLE):
        asked.result()
    assert len(killed) == 3 and worker._child_code == -signal.SIGKILL
    assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).title == "Towers"
    assert pids(reader) == before
    await reader.close()


async def test_a_page_that_is_given_up_takes_its_process_with_it_and_no_other_page() -> None:
    reader = PageReader(1)
    await reader.open()
    (worker,) = reader._workers
    asked = asyncio.create_task(reader.read(fetched(HANGS), max_bytes=MAX_BYTES))
    child = os.pidfd_open(await child_of(worker))
    asked.cancel()
    assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).title == "Towers"
    assert asked.cancelled()
    assert worker._exit_code == -signal.SIGKILL
    assert select.select([child], [], [], 60)[0], "its child lives on"
    os.close(child)
    await reader.close()


async def test_pages_are_read_side_by_side_and_each_gets_its_own_text() -> None:
    reader = PageReader(2)
    await reader.open()
    pages = [fetched(f"<p>number {number}".encode()) for number in range(50)]
    texts = await asyncio.gather(*(reader.read(page, max_bytes=MAX_BYTES) for page in pages))
    assert [page.text for page in texts] == [f"number {number}" for number in range(50)]
    assert len(pids(reader)) == 2
    await reader.close()


async def test_many_pages_of_one_site_hold_up_others_only_for_those_that_were_begun() -> None:
    reader = PageReader(1)
    await reader.open()
    (pid,) = pids(reader)
    os.kill(pid, signal.SIGSTOP)
    order: list[str] = []

    async def read(url: str) -> None:
        await reader.read(Fetched(url, "text/html", "", "", PAGE), max_bytes=MAX_BYTES)
        order.append(url)

    urls = [f"https://a{number}.example.org/" for number in range(5)] + ["https://example.com/"]
    asked = [asyncio.create_task(read(url)) for url in urls]
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGCONT)
    await asyncio.gather(*asked)
    assert order == [urls[0], urls[5], *urls[1:5]]
    await reader.close()


async def test_a_page_for_which_no_process_is_free_in_time_is_owed_and_what_is_begun_is_done() -> None:
    reader = PageReader(1)
    await reader.open()
    (pid,) = pids(reader)
    os.kill(pid, signal.SIGSTOP)
    now = asyncio.get_running_loop().time()
    begun = asyncio.create_task(reader.read(fetched(PAGE), max_bytes=MAX_BYTES, deadline=now))
    await asyncio.sleep(0)
    with pytest.raises(SearchUnavailable, match="waited for a process") as caught:
        await reader.read(fetched(PAGE), max_bytes=MAX_BYTES, deadline=now)
    assert caught.value.retryable
    os.kill(pid, signal.SIGCONT)
    assert (await begun).title == "Towers"
    await reader.close()


async def test_closing_ends_every_process_also_in_the_middle_of_a_page() -> None:
    reader = PageReader(1)
    await reader.open()
    (worker,) = reader._workers
    asked = asyncio.create_task(reader.read(fetched(HANGS), max_bytes=MAX_BYTES))
    child = os.pidfd_open(await child_of(worker))
    await reader.close()
    assert worker._exit_code is not None
    assert select.select([child], [], [], 60)[0], "its child lives on"
    os.close(child)
    with pytest.raises(ToolError):
        await asked
    assert not reader._workers


async def test_a_process_that_lies_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "liar.py"
    program.write_text(
        "import json, os, struct, sys\n"
        "def say(value):\n"
        "    data = json.dumps(value).encode()\n"
        "    sys.stdout.buffer.write(struct.pack('>Ii', len(data), 0) + data)\n"
        "    sys.stdout.buffer.flush()\n"
        "say({'ready': True})\n"
        "while size := sys.stdin.buffer.read(4):\n"
        "    head = json.loads(sys.stdin.buffer.read(struct.unpack('>I', size)[0]))\n"
        "    body = sys.stdin.buffer.read(head['num_bytes'])\n"
        "    page = {'title': '', 'text': '', 'media_type': '', 'reader': ''}\n"
        "    lies = {b'long': {**page, 'text': 'x' * 50_001}, b'number': {**page, 'title': 1}, b'none': {},\n"
        "            b'kind': {'failure': 'no such kind', 'detail': ''}, b'list': []}\n"
        "    if body == b'end': os.close(1)\n"
        "    else: say(lies[body])\n"
    )
    see_first(tmp_path, monkeypatch)
    monkeypatch.setattr(page_reader, "_MODULE", "liar")
    reader = PageReader(1)
    await reader.open()
    for body in (b"long", b"number", b"none", b"kind", b"list", b"end"):
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
async def test_what_the_kernel_does_not_take_away_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once, "_told", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            reader = PageReader(1)
            await reader.open()
            await reader.close()
    assert "riscv64" in reader.problem
    assert [record.getMessage() for record in caplog.records] == [
        "pages are read with limits of time and memory alone, and kept from files where the kernel has Landlock: "
        "the filter of system calls is made for x86_64, and this machine is riscv64; read pages on Linux on x86-64, "
        "with a kernel that has seccomp"
    ]
    reader = PageReader(1)
    await reader.open()
    assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).title == "Towers"
    await reader.close()


_PROBES = """
import ctypes, os, resource, signal, socket, sys
from treadle.agent.web import page_confinement, page_worker
mode, folder = sys.argv[1:]
parent, libc = os.getppid(), ctypes.CDLL(None, use_errno=True)
page_worker._load()
if mode in ("files", "confined"):
    page_confinement.give_up_files()
if mode in ("filter", "confined"):
    assert page_confinement.confine() == ""
def call(*what):
    if libc.syscall(*what) < 0:
        raise OSError(ctypes.get_errno(), "refused")
def tried(what, do):
    try:
        do()
    except Exception as error:
        print(what, type(error).__name__)
    else:
        print(what, "done")
os.umask(0) if mode == "free" else None
at = lambda name: f"{folder}/{name}"
here = lambda name: at(name).encode()
tried("read", lambda: open(at("file")))
tried("write", lambda: open(at("file"), "a"))
tried("create", lambda: open(at("made"), "x"))
tried("list", lambda: os.listdir(folder))
tried("unlink", lambda: os.unlink(at("unlink")))
tried("unlinkat", lambda: call(263, -100, here("unlinkat"), 0))
tried("rename", lambda: os.rename(at("rename"), at("renamed")))
tried("renameat", lambda: call(264, -100, here("renameat"), -100, here("renamed at")))
tried("renameat2", lambda: call(316, -100, here("renameat2"), -100, here("renamed at 2"), 0))
tried("rmdir", lambda: os.rmdir(at("rmdir")))
tried("mkdir", lambda: os.mkdir(at("mkdir")))
tried("mkdirat", lambda: call(258, -100, here("mkdirat"), 0o700))
tried("symlink", lambda: os.symlink("/etc/passwd", at("symlink")))
tried("symlinkat", lambda: call(266, b"/etc/passwd", -100, here("symlinkat")))
tried("link", lambda: os.link(at("file"), at("link")))
tried("mkfifo", lambda: os.mkfifo(at("fifo")))
tried("mknod", lambda: os.mknod(at("mknod")))
tried("creat", lambda: call(85, here("creat"), 0o600))
tried("chmod", lambda: os.chmod(at("file"), 0o600))
tried("truncate", lambda: os.truncate(at("file"), 0))
tried("utime", lambda: os.utime(at("file")))
tried("xattr", lambda: os.listxattr(at("file")))
tried("chdir", lambda: os.chdir(folder))
tried("stat", lambda: os.stat(at("file")))
tried("stat4", lambda: call(4, here("file"), ctypes.create_string_buffer(256)))
tried("access", lambda: call(21, here("file"), 0))
tried("readlink", lambda: os.readlink("/proc/self/exe"))
tried("statvfs", lambda: os.statvfs(folder))
tried("watch", lambda: call(253))
tried("limit", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
tried("timer", lambda: signal.setitimer(signal.ITIMER_PROF, 0))
tried("socket", lambda: socket.socket())
tried("pair", lambda: socket.socketpair())
tried("pipe", lambda: os.pipe())
tried("memory", lambda: os.memfd_create("x"))
tried("signal", lambda: os.kill(parent, 0))
tried("itself", lambda: os.kill(os.getpid(), 0))
tried("group", lambda: os.setsid() if mode in ("filter", "confined") else None)
tried("fork", lambda: os.fork() or os._exit(0))
tried("exec", lambda: os.execv("/bin/true", ["true"]) if mode in ("filter", "confined") else None)
"""


def probed(mode: str, folder: Path) -> dict[str, str]:
    """What a process can do after it has given up so much; `folder` is what it may try to change."""
    folder.mkdir()
    for name in ("file", "unlink", "unlinkat", "rename", "renameat", "renameat2"):
        (folder / name).write_text(name)
    (folder / "rmdir").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _PROBES, mode, str(folder)], capture_output=True, text=True, check=True
    )
    return dict(line.split() for line in done.stdout.splitlines())


def below(folder: Path) -> dict[str, bytes | None]:
    return {path.name: path.read_bytes() if path.is_file() else None for path in folder.iterdir()}


@pytest.mark.parametrize("mode", ["confined", "filter"])
def test_a_reader_that_was_taken_over_can_reach_nothing(tmp_path: Path, mode: str) -> None:
    """The filter alone suffices, without Landlock."""
    free = probed("free", tmp_path / "free")
    assert len(free) == 40 and set(free.values()) == {"done"}, "the control"
    confined = probed(mode, tmp_path / "confined")
    assert confined.keys() == free.keys()
    assert set(confined.values()) <= {"OSError", "PermissionError", "ValueError", "itimer_error"}
    assert below(tmp_path / "confined").keys() == {
        "file", "unlink", "unlinkat", "rename", "renameat", "renameat2", "rmdir"
    }  # fmt: skip
    assert (tmp_path / "confined" / "file").read_text() == "file"


def has_landlock() -> bool:
    try:
        return landlock.version() > 0
    except SandboxError:
        return False


@pytest.mark.skipif(not has_landlock(), reason="the kernel has no Landlock")
def test_where_there_is_no_filter_files_are_out_of_reach_by_their_paths(tmp_path: Path) -> None:
    """The process that children come from is held by this alone."""
    lines = probed("files", tmp_path / "files")
    changing = "read write create list unlink unlinkat rename renameat renameat2 rmdir mkdir mkdirat symlink symlinkat"
    assert {lines[what] for what in [*changing.split(), "mkfifo", "mknod", "creat"]} <= {"PermissionError", "OSError"}
    assert lines["fork"] == "done"
    assert below(tmp_path / "files").keys() == {
        "file",
        "unlink",
        "unlinkat",
        "rename",
        "renameat",
        "renameat2",
        "rmdir",
    }


_TAKEN_OVER = """
import os, struct, sys
import orjson
from treadle.agent.web import page_worker
true = page_worker.read_page
LIE = {"title": "", "text": "what another page wants", "media_type": "text/html", "reader": "x"}
def read_page(body, *rest):
    # What code of a page's author could do that runs in the place of the reader.
    if b"take over" in body:
        page_worker.read_page = page_worker.unpacked = lambda *_: LIE
        said = orjson.dumps(LIE)
        frame = struct.pack(">Ii", len(said), 0) + said
        if b"all descriptors" in body:
            for number in range(64):
                try:
                    os.write(number, frame)
                except OSError:
                    pass
        if b"and close" in body:
            os.close(3)
            while True: pass
        if b"much" in body:
            while True: os.write(3, bytes(1 << 16))
    return true(body, *rest)
page_worker.read_page = read_page
sys.exit(page_worker.main())
"""


async def test_a_page_that_takes_its_reader_over_says_nothing_in_the_place_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken_over.py").write_text(_TAKEN_OVER)
    see_first(tmp_path, monkeypatch)
    monkeypatch.setattr(page_reader, "_MODULE", "taken_over")
    reader = PageReader(1)
    await reader.open()
    before = pids(reader)
    for how in (b"", b"all descriptors", b"and close", b"much"):
        with contextlib.suppress(Unfetchable):
            await reader.read(fetched(b"take over " + how), max_bytes=MAX_BYTES)
        assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).text == "The tower\n\nIt is 330 metres tall."
    assert pids(reader) == before
    await reader.close()


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
