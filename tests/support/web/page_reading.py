"""Pages as received, and the processes that read them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from treadle.web.pages.reader import PageReader
from treadle.web.types import Fetched

MAX_BYTES = 10 * 1024 * 1024
PAGE = b"<title>Towers</title><h1>The tower</h1><p>It is <b>330</b>\n metres tall.</p>"
HANGS = b"<a " + b" ".join(b"k%d=v" % number for number in range(400_000)) + b">word</a>"
"""Takes the reader minutes: it looks at each attribute for each."""
UNREADABLE = "the page could not be read within its limits of time and memory"


def fetched(body: bytes, media_type: str = "text/html", *, charset: str = "", encoding: str = "") -> Fetched:
    return Fetched("https://example.org/", media_type, charset, encoding, body)


def pids(reader: PageReader) -> list[int]:
    return [worker.process.pid for worker in reader._workers]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def child_of(worker: Any) -> int:
    """Return the process that reads the page under way."""
    while not (found := children(worker.process.pid)):
        await asyncio.sleep(0)
    return found[0]


def see_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that are started from now on import from a folder before anything else."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
