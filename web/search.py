"""Search the web: turn a query into a search entry, its hits into page entries, and those into text for the agent.

All web content passes through the recorder. The text depends only on entries and settings, so a replay gives the same
text. See docs/behaviour/web.md.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.core.gather import gather_or_cancel
from treadle.core.store.keyed_store import KeyedStore
from treadle.retriever.client import SearchUnavailable
from treadle.web.config import WebSettings
from treadle.web.keys import page_key, search_key
from treadle.web.pages.page_entry import page_entry
from treadle.web.pages.passages import clean_line, language_of
from treadle.web.pages.rendering import documents_of, render_pages, render_recorded, snippet_documents
from treadle.web.record.folder import open_record
from treadle.web.record.recorder import WebRecorder, utc_time
from treadle.web.types import Language, PageEntry, QueryRefused, SearchEntry, Unfetchable, WebHit, WebSearchResult
from treadle.web.urls import checked_url

if TYPE_CHECKING:
    from treadle.web.pages.fetch import Fetcher
    from treadle.web.pages.reader import PageReader
    from treadle.web.providers import WebProvider

NUM_THREADS = 4
"""Threads that read and decode entries. Texts are rendered in one further thread: several would compete for the
interpreter lock, and the event loop would wait for all of them."""
PAGES_NOT_READY = (
    "the search reached its time limit before all of its pages were read; pages fetched later are still recorded"
)

SWITCH_S = 0.001
"""Switch interval of the interpreter in seconds while web search is open, instead of Python's 5 ms. It bounds how long
the rendering thread keeps the event loop waiting, which adds up over all system calls of one loop iteration."""

T_Result = TypeVar("T_Result")


class WebSearch:
    """Web search of one run; many rollouts use it concurrently on one event loop."""

    def __init__(
        self,
        settings: WebSettings,
        *,
        store: KeyedStore | None,
        summarized: bool,
        reads_pages: bool = False,
        provider: WebProvider | None = None,
        fetcher: Fetcher | None = None,
        reader: PageReader | None = None,
        clock: Callable[[], datetime] = utc_time,
    ) -> None:
        """Prepare a search with the run's `store`, which may be None in a replay only.

        With `summarized`, documents are returned in addition to the text. With `reads_pages`, `page` may be called even
        if searches show snippets alone. `provider`, `fetcher`, `reader` and `clock` replace the configured ones in
        tests.
        """
        self._settings = settings
        self._store = store
        self._summarized = summarized
        self._fetches = settings.pages or reads_pages
        self._num_users = 0
        self._provider, self._fetcher, self._reader = provider, fetcher, reader
        self._clock = clock
        self._stack = AsyncExitStack()
        self._renderer: ThreadPoolExecutor | None = None
        self._recorder: WebRecorder | None = None

    async def open(self) -> None:
        """Open record, provider and page reader; a replay needs only the record.

        Several tools may share one search: the first opens it, and the last closes it. Raises TreadleError if that is
        impossible.
        """
        self._num_users += 1
        if self._num_users > 1:
            return
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    async def wait_recorded(self) -> None:
        """Wait until the requests of abandoned searches are recorded; each has its own deadline."""
        if self._recorder is not None:
            await self._recorder.wait_recorded()

    async def close(self) -> None:
        """Cancel requests in progress and release all resources, if no other tool uses them."""
        self._num_users = max(0, self._num_users - 1)
        if self._num_users:
            return
        await self._stack.aclose()
        self._recorder = None

    async def _open(self) -> None:
        settings = self._settings
        base = None
        if settings.active_record is not None:
            base = await asyncio.to_thread(open_record, settings.active_record)
            self._stack.callback(base.close)
        threads, self._renderer = ThreadPoolExecutor(NUM_THREADS, "web"), ThreadPoolExecutor(1, "web-text")
        for pool in (threads, self._renderer):
            self._stack.push_async_callback(asyncio.to_thread, pool.shutdown, cancel_futures=True)
        self._stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_S)
        if settings.mode != "replay":
            await self._open_network()
        self._recorder = WebRecorder(settings, store=self._store, base=base, clock=self._clock, threads=threads)
        self._stack.push_async_callback(self._recorder.close)

    async def _open_network(self) -> None:
        """Open provider, fetcher and reader; imported here, since a replay does not need them."""
        settings = self._settings
        if self._provider is None and settings.provider is not None:
            from treadle.web.providers import WebProvider

            self._provider = WebProvider(settings.provider)
        if self._provider is not None:
            self._stack.push_async_callback(self._provider.close)
        if not self._fetches:
            return
        if self._fetcher is None:
            from treadle.web.pages.fetch import Fetcher

            self._fetcher = Fetcher(settings)
        if self._reader is None:
            from treadle.web.pages.reader import PageReader

            self._reader = PageReader(settings.fetch.reader_processes)
        self._stack.push_async_callback(self._reader.close)
        await self._reader.open()
        self._stack.push_async_callback(self._fetcher.close)
        await self._fetcher.open()

    async def search(self, query: str, *, deadline: float) -> WebSearchResult:
        """Return the web's result for a query; its text is empty if there is no hit.

        `deadline` is in the event loop's clock. If the search ends early, requests in progress continue and are
        recorded; those still waiting at the deadline are dropped and not recorded. Raises SearchUnavailable if the
        provider is out of order or too slow, or if pages were not fetched by the deadline; RecordMiss in a replay; and
        ToolError.
        """
        assert self._recorder is not None, "open() comes first"
        query = clean_line(query)
        if not query:
            return WebSearchResult("", (), (), recorded=True)
        language = language_of(query)
        key = search_key(query, language)
        entry, recorded = await self._recorder.search(
            key, query, language, self._make_request(key, query, language, deadline)
        )
        if entry.text:
            text = await self._render(lambda: render_recorded(entry.text, self._settings))
            return WebSearchResult(text, (text,), (key,), recorded)
        if entry.failure is not None:
            return WebSearchResult("", (), (key,), recorded, refused=True)
        chosen = _usable_hits(entry.hits, self._settings.top_n)
        hits = [hit for _, hit in chosen]
        if not self._settings.pages:
            lines = await self._render(lambda: snippet_documents(hits, self._settings))
            return WebSearchResult("\n".join(lines), lines, (key,), recorded)
        slots = asyncio.Semaphore(self._settings.fetch.max_per_query)
        found = await gather_or_cancel([self._page(url, slots, deadline) for url, _ in chosen])
        pages = [page for page, _ in found]
        text, documents = await self._render(lambda: self._render_result(hits, pages))
        sources = (key, *(page.key for page in pages))
        return WebSearchResult(text, documents, sources, recorded and all(was for _, was in found))

    async def page(self, url: str, *, deadline: float) -> tuple[PageEntry, bool]:
        """Return the page at a URL in the normal form of `urls.checked_url`, and whether it was recorded already.

        `deadline` is in the event loop's clock. Raises SearchUnavailable if the page was not fetched by then, and
        RecordMiss in a replay.
        """
        return await self._page(url, asyncio.Semaphore(1), deadline)

    def _render_result(self, hits: Sequence[WebHit], pages: Sequence[PageEntry]) -> tuple[str, tuple[str, ...]]:
        text = render_pages(hits, pages, self._settings)
        return text, documents_of(hits, pages, self._settings) if self._summarized else ()

    def _make_request(
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
                return await self._recorder.page(key, url, lambda: self._fetch_page(key, url, deadline))
        except TimeoutError:
            # Not the page's fault: other pages may have delayed it, or the provider was slow.
            raise SearchUnavailable(PAGES_NOT_READY) from None

    async def _fetch_page(self, key: str, url: str, deadline: float) -> PageEntry:
        assert self._fetcher is not None and self._reader is not None
        max_bytes = self._settings.max_page_bytes
        return await page_entry(
            key, url, self._fetcher, self._reader, now=self._now, max_bytes=max_bytes, deadline=deadline
        )

    def _now(self) -> str:
        return self._clock().isoformat(timespec="seconds")

    async def _render(self, work: Callable[[], T_Result]) -> T_Result:
        return await asyncio.get_running_loop().run_in_executor(self._renderer, work)


def _usable_hits(hits: Sequence[WebHit], top_n: int) -> list[tuple[str, WebHit]]:
    """Return the first hits with their normalised URLs, without invalid and duplicate URLs."""
    kept: dict[str, WebHit] = {}
    for hit in hits:
        try:
            kept.setdefault(str(checked_url(hit.url)), hit)
        except Unfetchable:
            continue
    return list(kept.items())[:top_n]
