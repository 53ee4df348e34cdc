"""Extract the text of pages in confined processes.

A page may make its reader hang, crash, or execute code of the page. So each page is read in a process of its own,
limited in CPU time and memory. A process that dies because of a page marks the page as unreadable, which is an outcome.
Failing to start a process, or having none free in time, is an infrastructure error, never an outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import struct
import sys
from typing import Any, get_args

import orjson

from treadle.core.errors import ToolError
from treadle.core.parent_watch import FROM_OUTSIDE
from treadle.retriever.client import SearchUnavailable
from treadle.web.lease_pool import LeasePool, site_of_url
from treadle.web.log_once import warn_once
from treadle.web.types import (
    MAX_NAME_CHARS,
    MAX_PAGE_TITLE_CHARS,
    MAX_TEXT_CHARS,
    FailureKind,
    Fetched,
    PageText,
    Unfetchable,
)

_START_TIMEOUT_S = 120.0
"""Timeout of a start in seconds. Loading the readers takes less than a second, but many on a machine under heavy
load."""
_WALL_LIMIT_S = 30.0
"""Wall time limit of a page, in seconds. CPU time is the real limit; this one catches a machine that hangs."""
_MAX_TRIES = 3
_FAILURES: dict[str, FailureKind] = {kind: kind for kind in get_args(FailureKind)}
_MODULE = "treadle.web.pages.worker"
_NO_WORKER_FREE = (
    "pages of the search waited for a process that reads them until its time was over; set more "
    "fetch.reader_processes, or let fewer rollouts run at once"
)
_INSTALL = "the processes that read pages need packages: pip install 'treadle[web]'"

WEAK_CONFINEMENT_WARNING = "limits of time and memory alone, and kept from files where the kernel has Landlock"
"""Confinement of the processes without a filter of system calls."""
CONFINEMENT_HINT = "read pages on Linux on x86-64, with a kernel that has seccomp"

_logger = logging.getLogger(__name__)


class PageReader:
    """Pool of processes that read one page each at a time. Used on one event loop, between `open` and `close`.

    Waiting pages are served by site: first the site with the fewest pages being read, then the one with the least
    reading time so far. So slow pages delay those of their own site; others wait only for pages that have been started.

    After `open`, `problem` says what could not be restricted; it is empty if all was.
    """

    def __init__(self, num_processes: int) -> None:
        self._num_processes = num_processes
        self._leases: LeasePool[_Worker] = LeasePool()
        self._workers: set[_Worker] = set()
        self._is_open = False
        self.problem = ""

    async def open(self) -> None:
        """Start all processes. Raises ToolError if that is impossible."""
        self._is_open = True
        self._workers = {_Worker() for _ in range(self._num_processes)}
        try:
            results = await asyncio.gather(*(worker.start() for worker in self._workers), return_exceptions=True)
            for failure in filter(None, results):
                raise failure
        except BaseException:
            await self.close()
            raise
        for worker in self._workers:
            self._leases.add(worker)
            self.problem = self.problem or worker.problem
        if self.problem:
            warn_once(_logger, f"pages are read with {WEAK_CONFINEMENT_WARNING}: {self.problem}; {CONFINEMENT_HINT}")

    async def close(self) -> None:
        """End all processes, even while they read a page."""
        self._is_open = False
        workers, self._workers = self._workers, set()
        await asyncio.gather(*(worker.stop() for worker in workers))

    async def read(self, page: Fetched, *, max_bytes: int, deadline: float | None = None) -> PageText:
        """Return title and text of a page whose decompressed body has at most `max_bytes` bytes.

        Raises Unfetchable if the page is unsupported, or cannot be read within the limits of time and memory;
        SearchUnavailable if no process is free by `deadline` (in the event loop's clock), which is not the page's
        fault; ToolError if no process starts. A page that has been started is finished even past the deadline.

        If a process is killed from outside, the page is read again, in three attempts at most.
        """
        site = site_of_url(page.final_url)
        for _ in range(_MAX_TRIES):
            try:
                async with asyncio.timeout_at(deadline):
                    lease = await self._leases.take(site)
            except TimeoutError:
                raise SearchUnavailable(_NO_WORKER_FREE) from None
            try:
                if lease.resource.has_exited:
                    lease.resource = await self._replace(lease.resource)
                reply = await lease.resource.ask(page, max_bytes)
                crashed_on_page = lease.resource.crashed_on_page
            finally:
                self._leases.release(lease)
            if reply is not None:
                return _page_text(reply)
            if crashed_on_page:
                break
        raise Unfetchable("unreadable", "the page could not be read within its limits of time and memory")

    async def _replace(self, old: _Worker) -> _Worker:
        self._workers.discard(old)
        await old.stop()
        worker = _Worker()
        self._workers.add(worker)
        try:
            if self._is_open:
                await worker.start()
            if not self._is_open:
                raise ToolError("a page was read after the page reader was closed")
        except BaseException:
            self._workers.discard(worker)
            await worker.stop()
            raise
        return worker


class _Worker:
    """Process that forks a child for each page."""

    def __init__(self) -> None:
        self.problem = ""
        self._is_usable = False
        self._timed_out = False
        self._child_code = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def has_exited(self) -> bool:
        """Whether the process must be replaced before the next page."""
        return not self._is_usable or self._exit_code is not None

    @property
    def crashed_on_page(self) -> bool:
        """Whether the last page is the reason that there was no reply."""
        return self._timed_out or (self._child_code != 0 and -self._child_code not in FROM_OUTSIDE)

    @property
    def _exit_code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Start the process and wait until it has loaded its readers and confined itself. Raises ToolError."""
        # A minimal environment: page content must not get near our API keys.
        environment = {key: os.environ[key] for key in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if key in os.environ}
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", _MODULE,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd="/",
                env=environment,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ToolError(f"the process that reads pages did not start: {error}") from error
        reply = await self._exchange(b"", _START_TIMEOUT_S)
        if reply is not None and reply.get("is_missing"):
            raise ToolError(f"{_INSTALL} ({reply.get('failed')})")
        if reply is None or not reply.get("ready"):
            cause = "it stays silent" if self._timed_out else f"exit code {self._exit_code or self._child_code}"
            raise ToolError(f"the process that reads pages did not start: {cause}")
        self.problem = str(reply.get("problem", ""))

    async def ask(self, page: Fetched, max_bytes: int) -> dict[str, Any] | None:
        """Return the child's reply; None if a process died or timed out, an empty dict if the reply is malformed."""
        head = orjson.dumps(
            {
                "media_type": page.media_type,
                "charset": page.charset,
                "encoding": page.encoding,
                "max_bytes": max_bytes,
                "num_bytes": len(page.body),
            }
        )
        self._is_usable, self._child_code = False, 0  # stays so if this is cancelled
        try:
            reply = await self._exchange(struct.pack(">I", len(head)) + head + page.body, _WALL_LIMIT_S)
        finally:
            if not self._is_usable:
                self._kill()
        return reply

    async def stop(self) -> None:
        """Kill the process and wait for it."""
        self._kill()
        if self._process is not None:
            await self._process.wait()

    def _kill(self) -> None:
        # Not `Process.kill`, which may reap a process that is ending right now; its exit code would be lost.
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    async def _exchange(self, request: bytes, timeout_s: float) -> dict[str, Any] | None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                # If the process is dead already, the read below ends with its output.
                with contextlib.suppress(OSError):
                    self._process.stdin.write(request)
                    await self._process.stdin.drain()
                size, self._child_code = struct.unpack(">Ii", await self._process.stdout.readexactly(8))
                reply_bytes = await self._process.stdout.readexactly(size)
        except TimeoutError:
            self._timed_out = True
            return None
        except (asyncio.IncompleteReadError, OSError):
            await self.stop()  # does not change the exit code of a process that has ended
            return None
        self._is_usable = True
        if self._child_code:
            return None
        try:
            reply = orjson.loads(reply_bytes)
        except orjson.JSONDecodeError:
            reply = None
        return reply if isinstance(reply, dict) else {}


def _page_text(reply: dict[str, Any]) -> PageText:
    """Return the page text in a reply. Raises Unfetchable if the reply is a failure or malformed."""
    failure = _FAILURES.get(str(reply.get("failure")))
    if failure is not None:
        raise Unfetchable(failure, str(reply.get("detail"))[:MAX_NAME_CHARS])
    values = {name: reply.get(name) for name in ("title", "text", "media_type", "reader")}
    limits = {"title": MAX_PAGE_TITLE_CHARS, "text": MAX_TEXT_CHARS}
    for name, value in values.items():
        if not isinstance(value, str) or len(value) > limits.get(name, MAX_NAME_CHARS):
            raise Unfetchable("unreadable", "the process that read the page failed")
    return PageText(**values)  # type: ignore[arg-type]  # all are text, as was seen above
