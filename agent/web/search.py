"""Search of the web: a query becomes a search entry, its hits page entries, and those the text that an agent meets.

Whatever comes from outside passes through the recorder. All that is made of its entries is a function of them and the
settings alone, so a replay gives the same text. See docs/behaviour/web.md.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from datetime import datetime
from typing import Any, Protocol, TypeVar

from treadle.agent.web.config import WebSettings
from treadle.agent.web.keys import page_key, search_key
from treadle.agent.web.passages import clean_line, language_of
from treadle.agent.web.record_folder import open_record
from treadle.agent.web.recorder import Recorder, utc_time
from treadle.agent.web.rendering import documents_of, render_pages, render_recorded, snippet_documents
from treadle.agent.web.types import (
    Fetched,
    Language,
    PageEntry,
    PageText,
    Provider,
    QueryRefused,
    SearchEntry,
    Unfetchable,
    WebFound,
    WebHit,
)
from treadle.agent.web.urls import checked_url
from treadle.core.errors import TreadleError
from treadle.core.harmless import one_line
from treadle.core.keyed_store import KeyedStore
from treadle.core.waiting import all_of
from treadle.retriever.client import SearchUnavailable

NUM_THREADS = 4
"""Threads that read and decode entries. Texts are made of them in one more: several would only take turns, and let the
event loop wait for all of them."""
LEFT_WAITING = "the search's time was over before all of its pages were had; what is fetched then comes on record"

SWITCH_S = 0.001
"""How long a thread that makes texts may keep the event loop waiting for the interpreter, in place of Python's 5 ms: in
one round of the loop that adds up over all its system calls."""

_OF_THIS_MACHINE = (TreadleError, OSError, MemoryError, RuntimeError)
"""What says nothing of a page: a lack of memory, files or threads, and what has been decided already."""

T_Result = TypeVar("T_Result")
_log = logging.getLogger(__name__)


class PageFetcher(Protocol):
    """What is needed to fetch pages; `treadle.agent.web.fetch.Fetcher` fits."""

    async def open(self) -> None:
        """Get ready."""
        ...

    async def fetch(self, url: str, *, deadline: float, places: ExitStack) -> Fetched:
        """The page at a URL, as sent, which counts as one under way until `places` are closed.

        Raises Unfetchable, and SearchUnavailable where it waited for others until the deadline.
        """
        ...

    async def close(self) -> None:
        """Break off what is under way."""
        ...


class TextReader(Protocol):
    """What is needed to read pages; `treadle.agent.web.page_reader.PageReader` fits."""

    async def open(self) -> None:
        """Get ready; raises ToolError."""
        ...

    async def read(self, page: Fetched, *, max_bytes: int, deadline: float) -> PageText:
        """What is legible of a page.

        Raises Unfetchable, SearchUnavailable where it waited for others until the deadline, and ToolError where nothing
        can be read here.
        """
        ...

    async def close(self) -> None:
        """End what reads."""
        ...


class WebSearch:
    """Searches of one run; used by many rollouts at once on one event loop."""

    def __init__(
        self,
        settings: WebSettings,
        *,
        store: KeyedStore | None,
        summarized: bool,
        provider: Provider | None = None,
        fetcher: PageFetcher | None = None,
        reader: TextReader | None = None,
        clock: Callable[[], datetime] = utc_time,
    ) -> None:
        """`store`: of the run, which only a replay does without. `summarized`: documents are wanted beside the text.

        The last four stand in for what the settings name, in tests.
        """
        self._settings = settings
        self._store = store
        self._summarized = summarized
        self._given = provider, fetcher, reader
        self._clock = clock
        self._stack = AsyncExitStack()
        self._renderer: ThreadPoolExecutor | None = None
        self._recorder: Recorder | None = None
        self._provider: Provider | None = None
        self._fetcher: PageFetcher | None = None
        self._reader: TextReader | None = None

    async def open(self) -> None:
        """Get ready; a replay needs neither provider nor page reader. Raises TreadleError where that is impossible."""
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    async def landed(self) -> None:
        """Wait until what searches that were left have asked for is on record; each of them has its deadline."""
        if self._recorder is not None:
            await self._recorder.landed()

    async def close(self) -> None:
        """Break off what is under way and give everything back."""
        await self._stack.aclose()
        self._recorder = None

    async def _open(self) -> None:
        settings = self._settings
        base = None
        if settings.record_used is not None:
            base = await asyncio.to_thread(open_record, settings.record_used)
            self._stack.callback(base.close)
        threads, self._renderer = ThreadPoolExecutor(NUM_THREADS, "web"), ThreadPoolExecutor(1, "web-text")
        for pool in (threads, self._renderer):
            self._stack.push_async_callback(asyncio.to_thread, pool.shutdown, cancel_futures=True)
        self._stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_S)
        if settings.mode != "replay":
            await self._open_outside()
        self._recorder = Recorder(settings, store=self._store, base=base, clock=self._clock, threads=threads)
        self._stack.push_async_callback(self._recorder.close)

    async def _open_outside(self) -> None:
        """What is asked where nothing is on record; imported late, since a replay needs none of it."""
        settings = self._settings
        provider, fetcher, reader = self._given
        if provider is None and settings.provider is not None:
            from treadle.agent.web.providers import make_provider

            provider = make_provider(settings.provider)
        if provider is not None:
            self._stack.push_async_callback(provider.close)
        self._provider = provider
        if not settings.pages:
            return
        if fetcher is None:
            from treadle.agent.web.fetch import Fetcher

            fetcher = Fetcher(settings)
        if reader is None:
            from treadle.agent.web.page_reader import PageReader

            reader = PageReader(settings.fetch.reader_processes)
        self._stack.push_async_callback(reader.close)
        await reader.open()
        self._stack.push_async_callback(fetcher.close)
        await fetcher.open()
        self._fetcher, self._reader = fetcher, reader

    async def search(self, query: str, *, deadline: float) -> WebFound:
        """What the web says to a query; an empty text where there is no hit.

        `deadline` is in the event loop's clock. Whatever ends it, it leaves to the record what is under way; what waits
        at the deadline is dropped, and nothing of it recorded. Raises SearchUnavailable where the provider is out of
        order or too slow, or pages were not had by the deadline; RecordMiss in a replay; and ToolError.
        """
        assert self._recorder is not None, "open() comes first"
        query = clean_line(query)
        if not query:
            return WebFound("", (), (), recorded=True)
        language = language_of(query)
        key = search_key(query, language)
        entry, recorded = await self._recorder.search(
            key, query, language, self._asking(key, query, language, deadline)
        )
        if entry.text:
            text = await self._render(lambda: render_recorded(entry.text, self._settings))
            return WebFound(text, (text,), (key,), recorded)
        if entry.failure is not None:
            return WebFound("", (), (key,), recorded, refused=True)
        chosen = _usable(entry.hits, self._settings.top_n)
        hits = [hit for _, hit in chosen]
        if not self._settings.pages:
            lines = await self._render(lambda: snippet_documents(hits, self._settings))
            return WebFound("\n".join(lines), lines, (key,), recorded)
        slots = asyncio.Semaphore(self._settings.fetch.max_per_query)
        found = await all_of([self._page(url, slots, deadline) for url, _ in chosen])
        pages = [page for page, _ in found]
        text, documents = await self._render(lambda: self._rendered(hits, pages))
        sources = (key, *(page.key for page in pages))
        return WebFound(text, documents, sources, recorded and all(was for _, was in found))

    def _rendered(self, hits: Sequence[WebHit], pages: Sequence[PageEntry]) -> tuple[str, tuple[str, ...]]:
        text = render_pages(hits, pages, self._settings)
        return text, documents_of(hits, pages, self._settings) if self._summarized else ()

    def _asking(
        self, key: str, query: str, language: Language, deadline: float
    ) -> Callable[[], Coroutine[Any, Any, SearchEntry]] | None:
        provider = self._provider
        if provider is None:
            return None

        async def ask() -> SearchEntry:
            try:
                hits = await provider.search(query, language, deadline=deadline)
            except QueryRefused as refusal:
                return SearchEntry(
                    key, query, language, provider.name, (), self._now(), failure="refused", detail=str(refusal)
                )
            return SearchEntry(key, query, language, provider.name, hits, self._now())

        return ask

    async def _page(self, url: str, slots: asyncio.Semaphore, deadline: float) -> tuple[PageEntry, bool]:
        assert self._recorder is not None
        key = page_key(url)
        if self._fetcher is None:
            return await self._recorder.page(key, url, None)
        try:
            async with asyncio.timeout_at(deadline), slots:
                return await self._recorder.page(key, url, lambda: self._fetched(key, url, deadline))
        except TimeoutError:
            # It says nothing of the page: others may have been in its way, or the provider was slow.
            raise SearchUnavailable(LEFT_WAITING) from None

    async def _fetched(self, key: str, url: str, deadline: float) -> PageEntry:
        assert self._fetcher is not None and self._reader is not None
        final_url = ""
        try:
            with ExitStack() as places:
                fetched = await self._fetcher.fetch(url, deadline=deadline, places=places)
                final_url = fetched.final_url
                page = await self._reader.read(fetched, max_bytes=self._settings.max_page_bytes, deadline=deadline)
        except Unfetchable as failure:
            return PageEntry(key, url, self._now(), final_url, failure=failure.kind, detail=failure.detail)
        except _OF_THIS_MACHINE:
            raise
        except Exception as error:  # noqa: BLE001 - no page may leave its rollout owed for ever
            _log.exception(
                "unexpected %s at the page %s: this is a bug of Treadle", type(error).__name__, one_line(url)
            )
            detail = f"Treadle stumbled over it ({type(error).__name__})"
            return PageEntry(key, url, self._now(), final_url, failure="unreadable", detail=detail)
        return PageEntry(key, url, self._now(), final_url, page.title, page.text, page.media_type, reader=page.reader)

    def _now(self) -> str:
        return self._clock().isoformat(timespec="seconds")

    async def _render(self, work: Callable[[], T_Result]) -> T_Result:
        return await asyncio.get_running_loop().run_in_executor(self._renderer, work)


def _usable(hits: Sequence[WebHit], top_n: int) -> list[tuple[str, WebHit]]:
    """The first hits with their URLs in normal form, without those that lead nowhere or where another one leads."""
    kept: dict[str, WebHit] = {}
    for hit in hits:
        try:
            kept.setdefault(str(checked_url(hit.url)), hit)
        except Unfetchable:
            continue
    return list(kept.items())[:top_n]
