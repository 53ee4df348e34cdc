"""The processes that read pages: when they are ended or replaced, whose turn it is, and what becomes of liars."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.web.page_reading import HANGS, MAX_BYTES, PAGE, UNREADABLE, child_of, children, fetched, pids, see_first
from support.web.pdf_files import pdf_bomb

from treadle.core.errors import ToolError
from treadle.core.untrusted.worker_process import ForkEnded
from treadle.retriever.client import SearchUnavailable
from treadle.web.pages import reader as page_reader
from treadle.web.pages.reader import PageReader
from treadle.web.types import Fetched, Unfetchable


def _exit_code(failure: Unfetchable) -> int:
    assert isinstance(failure.__cause__, ForkEnded)
    return failure.__cause__.code


async def test_hanging_process_is_killed_at_its_cpu_limit() -> None:
    reader = PageReader(1)
    await reader.open()
    (worker,) = reader._workers
    with pytest.raises(Unfetchable, match=UNREADABLE) as caught:
        await reader.read(fetched(HANGS), max_bytes=MAX_BYTES)
    assert _exit_code(caught.value) == -signal.SIGXCPU and worker.is_usable
    assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).title == "Towers"
    await reader.close()


async def test_process_that_exhausts_memory_is_killed_at_its_limit() -> None:
    reader = PageReader(1)
    await reader.open()
    (worker,) = reader._workers
    with pytest.raises(Unfetchable, match=UNREADABLE) as caught:
        await reader.read(fetched(pdf_bomb(2_500_000), "application/pdf"), max_bytes=MAX_BYTES)
    assert _exit_code(caught.value) not in (0, -signal.SIGXCPU, -signal.SIGKILL) and worker.is_usable
    assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).title == "Towers"
    await reader.close()


async def test_silent_process_is_killed_by_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_reader, "_WALL_LIMIT_S", 0.2)
    reader = PageReader(1)
    await reader.open()
    os.kill(pids(reader)[0], signal.SIGSTOP)
    with pytest.raises(Unfetchable, match=UNREADABLE):
        await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)
    await reader.close()


async def test_externally_killed_process_is_replaced_and_the_page_is_read() -> None:
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


async def test_repeatedly_killed_child_leaves_the_page_unread_and_the_next_one_is_read() -> None:
    reader = PageReader(1)
    await reader.open()
    before = pids(reader)
    asked = asyncio.create_task(reader.read(fetched(HANGS), max_bytes=MAX_BYTES))
    killed = set()
    while not asked.done():
        for child in children(before[0]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            killed.add(child)
        await asyncio.sleep(0)
    with pytest.raises(Unfetchable, match=UNREADABLE) as caught:
        asked.result()
    assert len(killed) == 3 and _exit_code(caught.value) == -signal.SIGKILL
    assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).title == "Towers"
    assert pids(reader) == before
    await reader.close()


async def test_abandoned_page_ends_its_process_and_no_other_page() -> None:
    reader = PageReader(1)
    await reader.open()
    (worker,) = reader._workers
    asked = asyncio.create_task(reader.read(fetched(HANGS), max_bytes=MAX_BYTES))
    child = os.pidfd_open(await child_of(worker))
    asked.cancel()
    assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).title == "Towers"
    assert asked.cancelled()
    assert worker.process.returncode == -signal.SIGKILL
    assert select.select([child], [], [], 60)[0], "its child lives on"
    os.close(child)
    await reader.close()


async def test_pages_are_read_concurrently_and_each_gets_its_own_text() -> None:
    reader = PageReader(2)
    await reader.open()
    pages = [fetched(f"<p>number {number}".encode()) for number in range(50)]
    texts = await asyncio.gather(*(reader.read(page, max_bytes=MAX_BYTES) for page in pages))
    assert [page.text for page in texts] == [f"number {number}" for number in range(50)]
    assert len(pids(reader)) == 2
    await reader.close()


async def test_pages_of_one_site_delay_others_only_while_already_started() -> None:
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


async def test_page_without_a_free_process_in_time_stays_pending() -> None:
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


async def test_closing_ends_every_process_even_during_a_page() -> None:
    reader = PageReader(1)
    await reader.open()
    (worker,) = reader._workers
    asked = asyncio.create_task(reader.read(fetched(HANGS), max_bytes=MAX_BYTES))
    child = os.pidfd_open(await child_of(worker))
    await reader.close()
    assert worker.process.returncode is not None
    assert select.select([child], [], [], 60)[0], "its child lives on"
    os.close(child)
    with pytest.raises(ToolError):
        await asked
    assert not reader._workers


async def test_inconsistent_replies_of_a_process_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "liar.py"
    program.write_text(
        "import json, os, sys\n"
        "from treadle.core.untrusted.worker_frames import REPLY, next_request, open_frames, send_frame\n"
        "frames = open_frames()\n"
        "def say(value):\n"
        "    send_frame(frames, REPLY, json.dumps(value).encode())\n"
        "say({'ready': True})\n"
        "while next_request():\n"
        "    body = bytes(next_request())\n"
        "    page = {'title': '', 'text': '', 'media_type': '', 'reader': ''}\n"
        "    lies = {b'long': {**page, 'text': 'x' * 50_001}, b'number': {**page, 'title': 1}, b'none': {},\n"
        "            b'kind': {'failure': 'no such kind', 'detail': ''}, b'list': []}\n"
        "    if body == b'end': frames.close()\n"
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


async def test_missing_packages_are_named_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pypdfium2.py").write_text("raise ImportError('no module pypdfium2')")
    see_first(tmp_path, monkeypatch)
    reader = PageReader(2)
    with pytest.raises(ToolError, match=r"pip install 'treadle\[web\]'.*no module pypdfium2"):
        await reader.open()
    assert not reader._workers


async def test_process_that_does_not_start_is_an_error_not_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_reader, "_MODULE", "no_such_module")
    reader = PageReader(1)
    with pytest.raises(ToolError, match="did not start: exit code 1"):
        await reader.open()


def test_processes_end_with_their_parent() -> None:
    program = (
        "import asyncio, os, signal\n"
        "from treadle.web.pages.reader import PageReader\n"
        "async def main():\n"
        "    reader = PageReader(1)\n"
        "    await reader.open()\n"
        "    (worker,) = reader._workers\n"
        "    print(worker.process.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    # Its worker has no end of this pipe; the output is read after the worker has ended.
    parent = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert parent.returncode == -signal.SIGKILL
    try:
        process = os.pidfd_open(int(parent.stdout))
    except ProcessLookupError:
        return
    assert select.select([process], [], [], 60)[0], "it lives on"
    os.close(process)
