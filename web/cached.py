"""Search the web and read its pages for a service: through a cache that its processes share, without a run.

A replay sends no request: it serves the cache, whatever the age of an entry, and the record at `recorded_in`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import orjson
from pydantic import Field, model_validator

from treadle.core.config import Section, digest_json
from treadle.core.engines.cache import cache_root
from treadle.core.errors import ToolError, TreadleError
from treadle.web.config import WebSettings
from treadle.web.keys import loose_key, page_key, search_key
from treadle.web.pages.page_entry import page_entry
from treadle.web.pages.passages import clean_line, language_of
from treadle.web.record.folder import RecordFolder, open_record
from treadle.web.record.recorder import utc_time
from treadle.web.record.stored_entries import bounded
from treadle.web.shared_cache import SharedCache
from treadle.web.types import Language, PageEntry, RecordMiss, SearchEntry, WebHit, entry_from_json

if TYPE_CHECKING:
    from treadle.web.pages.fetch import Fetcher
    from treadle.web.pages.reader import PageReader
    from treadle.web.providers import WebProvider

NUM_BUCKETS = (10, 100)
"""Numbers of results that providers are asked for; a search uses the smallest that is enough."""
MAX_RESULTS = NUM_BUCKETS[-1]

T_Result = TypeVar("T_Result")
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class WebCacheSettings(Section):
    """Cache of searches and pages that all processes of the service share."""

    path: Path | None = None
    """SQLite file on a local disk; none means `web/service.sqlite` in `$TREADLE_CACHE`."""
    search_max_age_s: Positive = 3_600.0
    """Age in seconds after which a search is sent again."""
    page_max_age_s: Positive = 10_800.0
    """Age in seconds after which a page is fetched again. Failures are not kept."""
    max_searches: Count = 1_000_000
    """Most searches that are kept; the oldest go first."""
    max_pages: Count = 10_000
    """Most pages that are kept."""


class ServedWebSettings(WebSettings):
    """Web search and pages of a service. A provider is needed only for searches of the web."""

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        """Accept a replay without a record, since the cache serves it, and pages without a provider."""
        return self


class CachedWeb:
    """Searches and pages of a service; many requests use it concurrently on one event loop."""

    def __init__(
        self,
        settings: ServedWebSettings,
        cache: WebCacheSettings,
        *,
        provider: WebProvider | None = None,
        fetcher: Fetcher | None = None,
        reader: PageReader | None = None,
        clock: Callable[[], datetime] = utc_time,
    ) -> None:
        """Prepare the web; `provider`, `fetcher`, `reader` and `clock` replace the configured ones in tests."""
        self._settings, self._cache_settings = settings, cache
        self._provider, self._fetcher, self._reader = provider, fetcher, reader
        self._clock = clock
        self._cache = SharedCache(
            cache.path or cache_root() / "web" / "service.sqlite",
            max_entries={"search": cache.max_searches, "page": cache.max_pages},
            clock=lambda: clock().timestamp(),
        )
        self._replays = settings.mode == "replay"
        self._record: RecordFolder | None = None
        self._requests: dict[str, asyncio.Task[Any]] = {}
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._has_cache = False
        self._pages: tuple[Fetcher, PageReader] | None = None

    @property
    def searches(self) -> bool:
        """Whether searches can be answered: by a provider, or in a replay by cache and record."""
        return self._replays or self._settings.provider is not None or self._provider is not None

    async def open(self) -> None:
        """Open record and provider; cache and page reader follow when they are used. Raises TreadleError."""
        try:
            self._stack.push_async_callback(self._cancel_requests)
            if self._settings.active_record is not None:
                self._record = await asyncio.to_thread(open_record, self._settings.active_record)
                self._stack.callback(self._record.close)
            if self._provider is None and self._settings.provider is not None and not self._replays:
                from treadle.web.providers import WebProvider

                self._provider = WebProvider(self._settings.provider)
            if self._provider is not None:
                self._stack.push_async_callback(self._provider.close)
        except BaseException:
            await self._stack.aclose()
            raise

    async def close(self) -> None:
        """Cancel requests in progress and release all resources."""
        await self._stack.aclose()

    async def _opened_cache(self) -> SharedCache:
        async with self._opening:
            if not self._has_cache:
                await self._cache.open()
                self._stack.push_async_callback(self._cache.close)
                self._has_cache = True
        return self._cache

    async def _opened_pages(self) -> tuple[Fetcher, PageReader]:
        """Return fetcher and reader; they are opened, and the reader's processes started, for the first page."""
        async with self._opening:
            if self._pages is None:
                from treadle.web.pages.fetch import Fetcher
                from treadle.web.pages.reader import PageReader

                fetcher = self._fetcher or Fetcher(self._settings)
                reader = self._reader or PageReader(self._settings.fetch.reader_processes)
                await reader.open()
                self._stack.push_async_callback(reader.close)
                await fetcher.open()
                self._stack.push_async_callback(fetcher.close)
                # Called before these two are closed.
                self._stack.push_async_callback(self._cancel_requests)
                self._pages = fetcher, reader
        return self._pages

    async def _cancel_requests(self) -> None:
        requests = list(self._requests.values())
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    async def search(self, query: str, num_results: int, *, deadline: float) -> list[WebHit]:
        """Return at most `num_results` hits, best first; `deadline` is in the event loop's clock.

        Raises RecordMiss in a replay, StorageError, and the errors of `WebProvider.search`.
        """
        query = clean_line(query)
        language = language_of(query)
        bucket = next((num for num in NUM_BUCKETS if num >= num_results), MAX_RESULTS)
        name = self._provider.name if self._provider is not None else self._provider_name
        key = digest_json(["search", name, language, search_key(query, language)])
        max_age_s = None if self._replays else self._cache_settings.search_max_age_s
        # A replay takes what there is, even if it is less than what would be requested.
        least = 0 if self._replays else bucket
        found = await (await self._opened_cache()).get("search", key, num_results=least, max_age_s=max_age_s)
        if found is not None:
            hits = [WebHit(**hit) for hit in orjson.loads(found)]
        elif (entry := await self._recorded_search(query, language)) is not None:
            hits = list(entry.hits)
        elif self._replays:
            raise RecordMiss(
                f"neither the cache nor the record has a search for {query[:200]!r}; in replay mode, none is sent"
            )
        else:
            hits = await self._once(f"{key} {bucket}", lambda: self._ask(key, query, language, bucket, deadline))
        return hits[:num_results]

    @property
    def _provider_name(self) -> str:
        return self._settings.provider.name if self._settings.provider is not None else ""

    async def _ask(self, key: str, query: str, language: Language, bucket: int, deadline: float) -> list[WebHit]:
        if self._provider is None:
            raise ToolError("the service has no search provider; name one in web.provider")
        hits = await self._provider.search(query, language, deadline=deadline, num_results=bucket)
        value = orjson.dumps([asdict(hit) for hit in hits])
        max_age_s = self._cache_settings.search_max_age_s
        await (await self._opened_cache()).put("search", key, value, num_results=bucket, max_age_s=max_age_s)
        return list(hits)

    async def _recorded_search(self, query: str, language: Language) -> SearchEntry | None:
        """Return the record's entry of a search; only in a replay, since a record holds at most 20 hits of a search."""
        record = self._record
        if record is None or not self._replays:
            return None
        key, loose = search_key(query, language), loose_key(query)
        found = await asyncio.to_thread(lambda: record.get(key) or record.loose(loose))
        return found if isinstance(found, SearchEntry) and found.hits else None

    async def page(self, url: str, *, deadline: float) -> tuple[PageEntry, bool]:
        """Return the entry, with text or failure, of the page at a URL in the normal form of `urls.checked_url`.

        The second value says whether it was cached or recorded already.

        Raises RecordMiss in a replay, StorageError, and SearchUnavailable if other pages took all slots until the
        deadline (in the event loop's clock).
        """
        key = page_key(url)
        max_age_s = None if self._replays else self._cache_settings.page_max_age_s
        found = await (await self._opened_cache()).get("page", key, max_age_s=max_age_s)
        if found is not None:
            return _page(found), True
        record = self._record
        if record is not None and self._replays:
            entry = await asyncio.to_thread(record.get, key)
            if isinstance(entry, PageEntry):
                return entry, True
        if self._replays:
            raise RecordMiss(f"neither the cache nor the record has the page {url[:200]}; replay fetches none")
        return await self._once(key, lambda: self._fetch(key, url, deadline)), False

    async def _fetch(self, key: str, url: str, deadline: float) -> PageEntry:
        fetcher, reader = await self._opened_pages()
        fetched = await page_entry(
            key,
            url,
            fetcher,
            reader,
            now=lambda: self._clock().isoformat(timespec="seconds"),
            max_bytes=self._settings.max_page_bytes,
            deadline=deadline,
        )
        entry = bounded(fetched)
        assert isinstance(entry, PageEntry)
        if entry.failure is None:
            await (await self._opened_cache()).put("page", key, entry.to_json())
        return entry

    async def _once(self, key: str, request: Callable[[], Coroutine[Any, Any, T_Result]]) -> T_Result:
        """Return the result of a request that callers with the same key share while it is in progress."""
        result: T_Result
        while (shared := self._requests.get(key)) is not None:
            try:
                result = await asyncio.shield(shared)
                return result
            except TreadleError as error:
                # The deadline of that request may have been earlier than this caller's.
                if not error.retryable:
                    raise
                if self._requests.get(key) is shared:
                    del self._requests[key]
        task = self._requests[key] = asyncio.create_task(request())
        task.add_done_callback(lambda done: self._request_done(key, done))
        result = await asyncio.shield(task)
        return result

    def _request_done(self, key: str, request: asyncio.Task[Any]) -> None:
        if self._requests.get(key) is request:
            del self._requests[key]
        if not request.cancelled():
            request.exception()  # Retrieved, so that asyncio does not log it as never retrieved.


def _page(value: bytes) -> PageEntry:
    entry = entry_from_json(value)
    assert isinstance(entry, PageEntry)
    return entry
