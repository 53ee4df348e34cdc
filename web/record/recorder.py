"""Provide all web content to a run: from the run's store, from a record, or live, and then recorded.

Everything that an agent is shown is in the store of its run, and nothing in the store is requested again.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from treadle.core.errors import ArtifactError, ToolError, TreadleError
from treadle.core.store.keyed_store import KeyedStore
from treadle.core.untrusted.sanitize import one_line
from treadle.web.config import WebSettings
from treadle.web.keys import loose_key
from treadle.web.record.folder import RecordFolder
from treadle.web.record.stored_entries import bounded, packed, unpacked
from treadle.web.types import IMPORTED, Entry, Language, PageEntry, RecordMiss, SearchEntry

_SHOWN_CHARS = 200
_MIB = 1024 * 1024
T_Result = TypeVar("T_Result")
T_Entry = TypeVar("T_Entry", SearchEntry, PageEntry)


def utc_time() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class WebRecorder:
    """Source of entries according to the mode of the settings; see `docs/behaviour/web.md`. For one event loop.

    Of concurrent requests for one key, one is sent; the others share its result. If the caller is cancelled, the
    request continues for the others and for the record: to its end if `wait_recorded` is awaited, otherwise until
    `close`.
    """

    def __init__(
        self,
        settings: WebSettings,
        *,
        store: KeyedStore | None,
        base: RecordFolder | None,
        clock: Callable[[], datetime] = utc_time,
        threads: Executor,
    ) -> None:
        """Prepare a recorder with the run's `store` and `base`, the record at `recorded_in`.

        Reads use `threads`; writes use threads of their own. Raises ArtifactError if the base is not the record in the
        settings, and ToolError if a required base or store is missing.
        """
        self._replays = settings.mode == "replay"
        if self._replays and base is None:
            raise ToolError('mode = "replay" needs a web record; name its folder in recorded_in')
        if not self._replays and store is None:
            raise ToolError(
                f'mode = "{settings.mode}" records into a run, and this command has none; use mode = "replay"'
            )
        if base is not None and settings.record_digest not in (None, base.digest):
            raise ArtifactError(
                f"the web record {base.location} is now {base.digest}; when the run was started it was "
                f"{settings.record_digest}: restore that one, or start a new run"
            )
        self._settings = settings
        self._store = None if self._replays else store
        self._base = None if settings.mode == "refresh" else base
        self._provider = settings.provider.name if settings.provider else ""
        self._clock = clock
        self._threads = threads
        self._writer = ThreadPoolExecutor(store.num_writers if store is not None else 1, "web-record")
        self._entries_in_memory = _EntryCache(settings.cache_mb * _MIB)
        self._requests: dict[str, asyncio.Task[tuple[Entry, bool]]] = {}
        self._writes: set[asyncio.Task[Entry]] = set()

    async def search(
        self, key: str, query: str, language: Language, ask: Callable[[], Awaitable[SearchEntry]] | None
    ) -> tuple[SearchEntry, bool]:
        """Return the entry of a search, and whether it was recorded already.

        Raises RecordMiss in a replay, and the errors of `ask`.
        """

        def base() -> SearchEntry | None:
            found = self._in_base(key) or (self._base.loose(loose_key(query)) if self._base else None)
            # An entry found by a loose key becomes the entry of exactly this query.
            return None if found is None else replace(_as(SearchEntry, found), key=key, query=query, language=language)

        miss = self._miss(f"search for '{_for_message(query)}' ({language})", "")
        entry, recorded = await self._get_or_request(key, base, ask, miss)
        return _as(SearchEntry, entry), recorded

    async def page(
        self, key: str, url: str, fetch: Callable[[], Awaitable[PageEntry]] | None
    ) -> tuple[PageEntry, bool]:
        """Return the entry of a page, and whether it was recorded already.

        Raises RecordMiss in a replay, and the errors of `fetch`.
        """
        miss = self._miss(f"page {_for_message(url)}", ", or set pages = false")
        entry, recorded = await self._get_or_request(key, lambda: self._in_base(key), fetch, miss)
        return _as(PageEntry, entry), recorded

    async def wait_recorded(self) -> None:
        """Wait until everything requested is recorded; each request has its own deadline."""
        while pending := [*self._requests.values(), *self._writes]:
            await asyncio.wait(pending)

    async def close(self) -> None:
        """Cancel pending requests and finish pending writes."""
        requests = list(self._requests.values())
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        await asyncio.gather(*self._writes, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._writer.shutdown)

    async def _get_or_request(
        self,
        key: str,
        base: Callable[[], Entry | None],
        ask: Callable[[], Awaitable[Entry]] | None,
        miss: RecordMiss,
    ) -> tuple[Entry, bool]:
        if (entry := self._entries_in_memory.get(key)) is not None:
            return entry, True
        while (request := self._requests.get(key)) is not None:
            try:
                return await asyncio.shield(request)
            except (TreadleError, TimeoutError) as error:
                # The deadline of that request may have been earlier than this caller's.
                if ask is None or (isinstance(error, TreadleError) and not error.retryable):
                    raise
                if self._requests.get(key) is request:
                    del self._requests[key]
        request = asyncio.create_task(self._request(key, base, ask, miss))
        self._requests[key] = request
        request.add_done_callback(lambda done: self._request_done(key, done))
        return await asyncio.shield(request)

    def _request_done(self, key: str, request: asyncio.Task[tuple[Entry, bool]]) -> None:
        if self._requests.get(key) is request:
            del self._requests[key]
        if not request.cancelled():
            request.exception()  # Retrieved, so that asyncio does not log it as never retrieved.

    async def _request(
        self,
        key: str,
        base: Callable[[], Entry | None],
        ask: Callable[[], Awaitable[Entry]] | None,
        miss: RecordMiss,
    ) -> tuple[Entry, bool]:
        entry = await self._in_thread(self._threads, lambda: self._in_store(key))
        if entry is not None:
            return self._remember(entry), True
        entry = await self._in_thread(self._threads, base)
        if entry is not None and (self._replays or self._is_fresh(entry)):
            return (self._remember(entry) if self._replays else await self._add(entry)), True
        if self._replays or ask is None:
            raise miss
        entry = await ask()
        if entry.key != key:
            raise ValueError(f"asked for {key}, got {entry.key}")
        return await self._add(entry), False

    def _in_store(self, key: str) -> Entry | None:
        value = self._store.get(key) if self._store is not None else None
        return None if value is None or self._store is None else unpacked(value, self._store.location(key))

    def _in_base(self, key: str) -> Entry | None:
        return None if self._base is None else self._base.get(key)

    async def _add(self, entry: Entry) -> Entry:
        """Store an entry unless there is one already, and return the stored one; completes even if cancelled."""
        write = asyncio.create_task(self._write(entry))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        return await asyncio.shield(write)

    async def _write(self, entry: Entry) -> Entry:
        store, bounded_entry = self._store, bounded(entry)
        assert store is not None
        value = await self._in_thread(self._threads, lambda: packed(bounded_entry))
        stored = await self._in_thread(self._writer, lambda: store.add(bounded_entry.key, value))
        if stored != value:
            bounded_entry = await self._in_thread(
                self._threads, lambda: unpacked(stored, store.location(bounded_entry.key))
            )
        return self._remember(bounded_entry)

    def _remember(self, entry: Entry) -> Entry:
        self._entries_in_memory.put(entry)
        return entry

    def _is_fresh(self, entry: Entry) -> bool:
        """Return whether an entry of the base record is reused in mode `record` rather than requested again."""
        settings = self._settings
        # Imported entries are reused with any provider, since their own is unknown.
        if isinstance(entry, SearchEntry) and entry.provider not in (self._provider, IMPORTED):
            return False
        limits = [timedelta(days=settings.max_age_days)] if settings.max_age_days is not None else []
        if entry.failure is not None:
            limits.append(timedelta(hours=settings.failure_max_age_hours))
        return not limits or self._age(entry) <= min(limits)

    def _age(self, entry: Entry) -> timedelta:
        try:
            recorded = datetime.fromisoformat(entry.recorded_at)
        except ValueError:
            return timedelta.max
        return self._clock() - (recorded if recorded.tzinfo is not None else recorded.replace(tzinfo=UTC))

    def _miss(self, what: str, otherwise: str) -> RecordMiss:
        place = self._base.location if self._base is not None else ""
        return RecordMiss(
            f'the web record {place} has no {what}: replay sends no request; record a run with mode = "record" and '
            f"recorded_in = {place}, then `treadle export web_record --run <that run>`{otherwise}"
        )

    async def _in_thread(self, threads: Executor, work: Callable[[], T_Result]) -> T_Result:
        return await asyncio.get_running_loop().run_in_executor(threads, work)


class _EntryCache:
    """LRU cache of entries, limited by their size in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[str, tuple[Entry, int]] = OrderedDict()

    def get(self, key: str) -> Entry | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, entry: Entry) -> None:
        if entry.key in self._entries:
            self._num_bytes -= self._entries.pop(entry.key)[1]
        size = _num_bytes(entry)
        self._entries[entry.key] = entry, size
        self._num_bytes += size
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= self._entries.popitem(last=False)[1][1]


def _num_bytes(entry: Entry) -> int:
    hits = entry.hits if isinstance(entry, SearchEntry) else ()
    return sum(sys.getsizeof(getattr(part, field.name)) for part in (entry, *hits) for field in fields(part))


def _as(kind: type[T_Entry], entry: Entry) -> T_Entry:
    if not isinstance(entry, kind):
        expected = "search" if kind is SearchEntry else "page"
        raise ArtifactError(f"entry {entry.key} of the web record is of another kind, expected a {expected}")
    return entry


def _for_message(text: str) -> str:
    """Return text written by a model for use in a message: on one line and truncated."""
    shown = one_line(text)
    return shown if len(shown) <= _SHOWN_CHARS else shown[: _SHOWN_CHARS - 3] + "..."
