"""Extract the text of pages in confined processes.

A page may make its reader hang, crash, or execute code of the page. So each page is read in a process of its own,
limited in CPU time and memory. A process that ends because of a page marks the page as unreadable, which is an outcome.
Failing to start a process, or having none free in time, is an infrastructure error, never an outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, get_args

import orjson

from treadle.core.errors import ToolError
from treadle.core.untrusted.worker_process import (
    ForkEnded,
    PackageMissing,
    WorkerEnded,
    WorkerNotStarted,
    WorkerProcess,
)
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

_WALL_LIMIT_S = 30.0
"""Wall time limit of a page, in seconds. CPU time is the real limit; this one catches a machine that hangs."""
_MAX_TRIES = 3
_FAILURES: dict[str, FailureKind] = {kind: kind for kind in get_args(FailureKind)}
_MODULE = "treadle.web.pages.worker"
_NO_WORKER_FREE = (
    "pages of the search waited for a process that reads them until its time was over; set more "
    "fetch.reader_processes, or let fewer rollouts run at once"
)
_NOT_STARTED = "the process that reads pages did not start"
_INSTALL = "the processes that read pages need packages: pip install 'treadle[web]'"

WEAK_CONFINEMENT_WARNING = "limits of time and memory alone, and kept from files where the kernel has Landlock"
"""Words of a warning: how the processes are confined on a machine without a filter of system calls."""
CONFINEMENT_HINT = "read pages on Linux on x86-64, with a kernel that has seccomp"

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class PageReader:
    """Pool of processes that read one page each at a time. Used on one event loop, between `open` and `close`.

    Waiting pages are served by site: first the site with the fewest pages being read, then the one with the least
    reading time so far. So slow pages delay those of their own site; others wait only for pages that have been started.

    After `open`, `problem` describes what could not be restricted; it is empty if everything was.
    """

    def __init__(self, num_processes: int) -> None:
        self._num_processes = num_processes
        self._leases: LeasePool[WorkerProcess] = LeasePool()
        self._workers: set[WorkerProcess] = set()
        # Threads of its own: the shared ones could all be waiting for a page. They end with this object.
        self._threads = ThreadPoolExecutor(num_processes, "page-reader")
        self._is_open = False
        self.problem = ""

    async def open(self) -> None:
        """Start all processes. Raises ToolError if that is impossible."""
        self._is_open = True
        try:
            starts = [self._start() for _ in range(self._num_processes)]
            for failure in await asyncio.gather(*starts, return_exceptions=True):
                if isinstance(failure, BaseException):
                    raise failure
        except BaseException:
            await self.close()
            raise
        for worker in self._workers:
            self._leases.add(worker)
        if self.problem:
            warn_once(_logger, f"pages are read with {WEAK_CONFINEMENT_WARNING}: {self.problem}; {CONFINEMENT_HINT}")

    async def close(self) -> None:
        """End all processes, even while they read a page."""
        self._is_open = False
        await asyncio.gather(*map(self._stop, set(self._workers)))

    async def read(self, page: Fetched, *, max_bytes: int, deadline: float | None = None) -> PageText:
        """Return title and text of a page whose decompressed body has at most `max_bytes` bytes.

        Raises Unfetchable if the page is unsupported, or cannot be read within the limits of time and memory;
        SearchUnavailable if no process is free by `deadline` (in the event loop's clock), which is not the page's
        fault; ToolError if no process starts. A page that has been started is finished even past the deadline.

        If a process is killed from outside, the page is read again, in three attempts at most.
        """
        site = site_of_url(page.final_url)
        cause: Exception | None = None
        for _ in range(_MAX_TRIES):
            try:
                async with asyncio.timeout_at(deadline):
                    lease = await self._leases.take(site)
            except TimeoutError:
                raise SearchUnavailable(_NO_WORKER_FREE) from None
            try:
                if not lease.resource.is_usable:
                    await self._stop(lease.resource)
                    lease.resource = await self._start()
                return _page_text(await self._ask(lease.resource, page, max_bytes))
            except (TimeoutError, WorkerEnded) as error:
                cause = error
                if isinstance(error, TimeoutError) or (isinstance(error, ForkEnded) and not error.is_kill):
                    break
            finally:
                self._leases.release(lease)
        raise Unfetchable("unreadable", "the page could not be read within its limits of time and memory") from cause

    async def _start(self) -> WorkerProcess:
        """Start a process and wait until it has loaded its readers and confined itself. Raises ToolError."""
        if not self._is_open:
            raise ToolError("a page was read after the page reader was closed")
        worker = None
        try:
            worker = WorkerProcess(_MODULE)
            self._workers.add(worker)
            reply = await self._in_thread(worker.wait_ready)
        except BaseException as error:
            if worker is not None:
                await self._stop(worker)
            if not isinstance(error, WorkerNotStarted):
                raise
            message = f"{_INSTALL} ({error})" if isinstance(error, PackageMissing) else f"{_NOT_STARTED}: {error}"
            raise ToolError(message) from error
        self.problem = self.problem or str(reply.get("problem", ""))
        return worker

    async def _stop(self, worker: WorkerProcess) -> None:
        worker.kill()  # now, since all threads may be waiting for this process
        self._workers.discard(worker)
        await asyncio.shield(self._in_thread(worker.close))

    async def _ask(self, worker: WorkerProcess, page: Fetched, max_bytes: int) -> dict[str, Any]:
        head = {name: getattr(page, name) for name in ("media_type", "charset", "encoding")} | {"max_bytes": max_bytes}
        try:
            return await self._in_thread(partial(worker.ask, orjson.dumps(head), page.body, limit_s=_WALL_LIMIT_S))
        except asyncio.CancelledError:
            worker.kill()
            raise

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


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
