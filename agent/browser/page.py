"""Draw one page in a running browser: in a browser context of its own, without a network, on a virtual clock.

The page's scripts run. Each resource that it requests is replaced by a stand-in or refused. Its clock and its random
numbers are the same each time, so that equal pages give equal pictures.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from treadle.agent.browser.devtools import BrowserLost, CommandFailed, DevTools, Event
from treadle.agent.browser.settings import BrowserSettings

_URL = "http://page.invalid/"
"""URL of every page. It is no `file:` URL, so a page cannot read files."""
_TIME_MS = 2_000
"""Virtual milliseconds after loading during which timers of a page may run."""
_CLOSE_S = 30.0
_CHANGED = "Tue, 14 Nov 2023 22:13:20 GMT"
"""`Last-Modified` header of every answer: the time at which the page's clock starts."""
_SAME_EACH_TIME = """
(() => {
  const start = 1700000000000;
  let state = 1, time = start;
  const now = () => time++;
  performance.now = () => now() - start;
  Object.defineProperty(performance, "timeOrigin", {value: start});
  // The browser's own frames come at any time.
  window.requestAnimationFrame = (call) => setTimeout(() => call(performance.now()), 16);
  window.cancelAnimationFrame = (number) => clearTimeout(number);
  Math.random = () => { state = (state * 48271) % 2147483647; return state / 2147483647; };
  crypto.getRandomValues = (array) => array.fill(7);
  crypto.randomUUID = () => "00000000-0000-4000-8000-000000000000";
  const Clock = Date;
  globalThis.Date = new Proxy(Clock, {
    apply: () => new Clock(now()).toString(),
    construct: (target, given, made) => Reflect.construct(target, given.length ? given : [now()], made),
    get: (target, name) => name === "now" ? now : target[name],
  });
})();
"""
_STILL = """
(() => {
  const sheet = new CSSStyleSheet();
  const still = "animation: none !important; transition: none !important; caret-color: transparent !important";
  sheet.replaceSync(`*, ::before, ::after { ${still} }`);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  window.scrollTo(0, 0);
})();
"""


@dataclass(frozen=True, slots=True)
class StandIn:
    """Answer to a page's request for a resource: bytes and their media type."""

    data: bytes
    media_type: str


StandIns = Callable[[str], StandIn | None]
"""Function that returns the answer for a URL; None to refuse it."""


@dataclass(frozen=True, slots=True)
class _Tab:
    """Open page: `target` is the id of its target and of its main frame, `session` that of its DevTools session."""

    target: str
    session: str


class _Load:
    """State of drawing one page: it answers the page's requests and sets the events that `draw_page` waits for."""

    def __init__(self, devtools: DevTools, tab: _Tab, html: str, stand_ins: StandIns) -> None:
        self._devtools, self._tab, self._stand_ins = devtools, tab, stand_ins
        self._page: StandIn | None = StandIn(html.encode("utf-8", "replace"), "text/html; charset=utf-8")
        self._answers: set[asyncio.Task[None]] = set()
        self.is_loaded, self.is_settled, self.is_crashed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def take(self, name: str, event: Event) -> None:
        """Take an event of the page's session."""
        if name == "Fetch.requestPaused":
            self._answer_soon(self._answer(event))
        elif name == "Page.javascriptDialogOpening":
            self._answer_soon(self._call("Page.handleJavaScriptDialog", accept=False))
        elif name == "Page.loadEventFired" or self._has_stopped(name, event):
            self.is_loaded.set()
        elif name == "Emulation.virtualTimeBudgetExpired":
            self.is_settled.set()
        elif name in ("Inspector.targetCrashed", "Inspector.detached"):
            self.is_crashed.set()

    def _has_stopped(self, name: str, event: Event) -> bool:
        """Return whether loading stopped without a load event, because the page tried to open another URL."""
        return name == "Page.frameStoppedLoading" and event.get("frameId") == self._tab.target and self._page is None

    async def wait(self, event: asyncio.Event) -> None:
        """Wait for an event of the page; raise BrowserLost if the page crashes first."""
        waits = [asyncio.ensure_future(one.wait()) for one in (event, self.is_crashed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        if self.is_crashed.is_set():
            raise BrowserLost("the page crashed")

    async def answered(self) -> None:
        """Wait until all requests and dialogs of the page so far are answered."""
        while self._answers:
            await asyncio.wait(set(self._answers))

    def close(self) -> None:
        """Cancel the answers in progress."""
        for one in self._answers:
            one.cancel()

    def _answer_soon(self, answer: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(answer)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, event: Event) -> None:
        number, url = event["requestId"], str(event["request"]["url"])
        if event.get("resourceType") == "Document" and url == _URL and self._page is not None:
            stand_in, self._page = self._page, None
        elif event.get("resourceType") == "Document":
            # The page may not open another document.
            await self._call("Fetch.failRequest", requestId=number, errorReason="Aborted")
            return
        else:
            found = self._stand_ins(url)
            if found is None:
                await self._call("Fetch.failRequest", requestId=number, errorReason="BlockedByClient")
                return
            stand_in = found
        await self._call(
            "Fetch.fulfillRequest",
            requestId=number,
            responseCode=200,
            responseHeaders=[
                {"name": "Content-Type", "value": stand_in.media_type},
                {"name": "Last-Modified", "value": _CHANGED},
            ],
            body=base64.b64encode(stand_in.data).decode(),
        )

    async def _call(self, command: str, **parameters: object) -> None:
        # The page may have been closed in the meantime, and its request with it.
        with contextlib.suppress(CommandFailed, BrowserLost):
            await self._devtools.call(command, self._tab.session, **parameters)


async def draw_page(devtools: DevTools, html: str, stand_ins: StandIns, settings: BrowserSettings) -> bytes:
    """Return the PNG picture of a whole page. Raises BrowserLost, also if the page crashes, and CommandFailed."""
    async with _opened(devtools) as tab:
        session = tab.session
        load = _Load(devtools, tab, html, stand_ins)
        with devtools.listening(session, load.take):
            try:
                await _prepare(devtools, session, settings)
                await devtools.call("Page.navigate", session, url=_URL)
                await load.wait(load.is_loaded)
                await load.answered()
                await devtools.call(
                    "Emulation.setVirtualTimePolicy",
                    session,
                    policy="advance",
                    budget=_TIME_MS,
                    maxVirtualTimeTaskStarvationCount=1_000,
                )
                await load.wait(load.is_settled)
                await devtools.call("Runtime.evaluate", session, expression=_STILL)
                return await _picture(devtools, session, settings)
            finally:
                load.close()


@contextlib.asynccontextmanager
async def _opened(devtools: DevTools) -> AsyncIterator[_Tab]:
    """Open an empty page in a browser context of its own, which shares nothing with other pages."""
    context = (await devtools.call("Target.createBrowserContext", disposeOnDetach=True))["browserContextId"]
    try:
        made = await devtools.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await devtools.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        yield _Tab(made["targetId"], attached["sessionId"])
    finally:
        # A browser that hangs must not hang its caller.
        with contextlib.suppress(BrowserLost, CommandFailed, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await devtools.call("Target.disposeBrowserContext", browserContextId=context)


async def _prepare(devtools: DevTools, session: str, settings: BrowserSettings) -> None:
    await devtools.call("Page.enable", session)
    await devtools.call("Inspector.enable", session)
    await devtools.call("Fetch.enable", session, patterns=[{"urlPattern": "*"}])
    await devtools.call(
        "Emulation.setDeviceMetricsOverride",
        session,
        width=settings.width,
        height=settings.height,
        deviceScaleFactor=1,
        mobile=False,
    )
    await devtools.call("Emulation.setTimezoneOverride", session, timezoneId="UTC")
    await devtools.call("Page.addScriptToEvaluateOnNewDocument", session, source=_SAME_EACH_TIME)


async def _picture(devtools: DevTools, session: str, settings: BrowserSettings) -> bytes:
    size = (await devtools.call("Page.getLayoutMetrics", session))["cssContentSize"]
    height = min(max(int(size["height"]), settings.height), settings.max_height)
    area = {"x": 0, "y": 0, "width": settings.width, "height": height, "scale": 1}
    taken = await devtools.call("Page.captureScreenshot", session, format="png", clip=area, captureBeyondViewport=True)
    return base64.b64decode(taken["data"])
