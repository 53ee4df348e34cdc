"""Draw pages, several at once, with one browser per process; a page that fails is retried once in its own browser."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator
from types import TracebackType

from treadle.agent.browser.chromium import Chromium, ChromiumLauncher
from treadle.agent.browser.devtools import BrowserLost, CommandFailed
from treadle.agent.browser.page import StandIns, draw_page
from treadle.agent.browser.settings import BrowserSettings
from treadle.agent.sandbox.guardian import Guardian
from treadle.agent.sandbox.usage import UsageWatch
from treadle.core.errors import ToolError
from treadle.core.gather import SharedResults

_log = logging.getLogger(__name__)

_MAX_KEPT = 64
"""Largest number of pictures kept in memory, so that a target page is not drawn again for each rollout of its task."""


class PageNotDrawn(ToolError):
    """Error for a page that failed in two browsers, the second of which drew no other page."""


class _Failed(Exception):
    """Error for one failed attempt to draw a page; the message is the reason."""


class PageRenderer:
    """Browser of one process. Use it as a context manager, in one event loop.

    Attributes:
        num_started: Number of browsers started so far.
        product: Name and version of the browser; empty before the first one starts.
    """

    def __init__(self, settings: BrowserSettings, stand_ins: StandIns) -> None:
        """Prepare to draw; `stand_ins` returns the answers to the requests of pages. No browser is started yet."""
        self._settings, self._stand_ins = settings, stand_ins
        self._places = asyncio.Semaphore(settings.pages_at_once)
        self._changing, self._repeating = asyncio.Lock(), asyncio.Lock()
        self._browsers: set[_Running] = set()
        self._current: _Running | None = None
        self._launcher: ChromiumLauncher | None = None
        self._guardian, self._usage = Guardian(), UsageWatch()
        self._kept = SharedResults[bytes](_MAX_KEPT)
        self.num_started = 0
        self.product = ""

    async def __aenter__(self) -> PageRenderer:
        """Start a browser, so that a missing Chromium is noticed before any work. Raises SandboxError."""
        try:
            await self._browser()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def draw(self, html: str) -> bytes:
        """Return the PNG picture of a page. Pictures of recent pages are kept and not drawn again.

        Raises PageNotDrawn if the page fails or takes too long in two browsers, and SandboxError if no browser starts.
        """
        key = hashlib.sha256(html.encode("utf-8", "replace")).hexdigest()
        return await self._kept.get(key, lambda: self._draw(html))

    async def close(self) -> None:
        """End all browsers."""
        await self._kept.close()
        for running in list(self._browsers):
            await running.close()
        self._browsers.clear()
        self._usage.close()
        await asyncio.to_thread(self._guardian.close)

    async def _draw(self, html: str) -> bytes:
        try:
            async with self._places, self._borrowed() as running:
                return await self._attempt(running, html)
        except _Failed as error:
            _log.info("a page was not drawn: %s", error)
        # Another page may have ended the browser, so the second browser draws this page alone.
        async with self._repeating:
            running = await self._start()
            running.is_worn, running.num_open = True, 1
            try:
                return await self._attempt(running, html)
            except _Failed as error:
                raise PageNotDrawn(f"a page was not drawn in 2 browsers: {error}") from None
            finally:
                await self._give_back(running)

    async def _attempt(self, running: _Running, html: str) -> bytes:
        """Draw a page. If that fails, mark the browser as worn and raise _Failed."""
        try:
            async with asyncio.timeout(self._settings.page_time_s):
                return await draw_page(running.browser.devtools, html, self._stand_ins, self._settings)
        except TimeoutError:
            problem = f"it did not finish within {self._settings.page_time_s:g} s"
        except (BrowserLost, CommandFailed) as error:
            problem = str(error) or type(error).__name__
        running.is_worn = True
        raise _Failed(problem)

    @contextlib.asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[_Running]:
        """Lend a browser for one page; a worn one is closed after its last page."""
        running = await self._browser()
        running.num_pages += 1
        running.num_open += 1
        try:
            yield running
        finally:
            await self._give_back(running)

    async def _give_back(self, running: _Running) -> None:
        running.num_open -= 1
        if running.is_worn and not running.num_open:
            self._browsers.discard(running)
            await running.close()

    async def _browser(self) -> _Running:
        """Return a browser for one more page: the current one, or a new one if that is worn."""
        async with self._changing:
            current = self._current
            if current is not None and current.num_pages >= self._settings.pages_per_browser:
                current.is_worn = True
            if current is not None and not current.is_worn:
                return current
            if current is not None and not current.num_open and current in self._browsers:
                self._browsers.discard(current)
                await current.close()
            self._current = None
            self._current = await self._start()
            return self._current

    async def _start(self) -> _Running:
        """Start a browser. Raises SandboxError."""
        if self._launcher is None:
            self._launcher = await asyncio.to_thread(ChromiumLauncher, self._settings)
        stack = contextlib.AsyncExitStack()
        browser = await stack.enter_async_context(self._launcher.running(self._guardian, self._usage))
        self.num_started += 1
        self.product = browser.product
        running = _Running(browser, stack)
        self._browsers.add(running)
        return running


class _Running:
    """Browser with the number of its pages; it gets no further pages once `is_worn` is set."""

    def __init__(self, browser: Chromium, stack: contextlib.AsyncExitStack) -> None:
        self.browser, self._stack = browser, stack
        self.num_pages = self.num_open = 0
        self.is_worn = False

    async def close(self) -> None:
        await self._stack.aclose()
