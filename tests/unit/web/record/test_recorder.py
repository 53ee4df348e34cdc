"""Which requests go to the live web, and which are answered from a record: the table of modes, cell by cell."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.web.web_entries import page_of, record_in, search_of

from treadle.core.errors import ArtifactError, StorageError, ToolError
from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.storage import LocalStorage
from treadle.retriever.client import SearchUnavailable
from treadle.web.config import WebSettings
from treadle.web.keys import loose_key, search_key
from treadle.web.record.folder import RecordFolder, open_record
from treadle.web.record.recorder import WebRecorder
from treadle.web.record.stored_entries import entries_of, packed
from treadle.web.types import Entry, PageEntry, RecordMiss, SearchEntry

NOW = datetime(2026, 5, 11, 12, tzinfo=UTC)
"""Ten days after the entries of `web_entries` were recorded."""
URL = "http://site.test/"
LIVE = search_of("sky", recorded_at="2026-05-11T12:00:00+00:00")
LIVE_PAGE = page_of(URL, "live", recorded_at="2026-05-11T12:00:00+00:00")
RECORDED = search_of("sky")
RECORDED_PAGE = page_of(URL, "recorded")
FAILED_PAGE = page_of(URL, failure="timeout")
T_Entry = TypeVar("T_Entry", SearchEntry, PageEntry)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))


class Web:
    """The live answers, and the number of requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def gives(self, entry: T_Entry) -> Callable[[], Awaitable[T_Entry]]:
        async def ask() -> T_Entry:
            self.asked.append(entry.key)
            return entry

        return ask


def settings_of(mode: str = "record", **keys: Any) -> WebSettings:
    provider = None if mode == "replay" else {"type": "searxng", "url": "http://localhost:1"}
    return WebSettings.model_validate({"mode": mode, "provider": provider, "recorded_in": "record", **keys})


def store_in(tmp_path: Path, *entries: Entry) -> KeyedStore:
    store = KeyedStore(LocalStorage(tmp_path / "root"), "runs/r/store/web")
    for entry in entries:
        store.add(entry.key, packed(entry))
    return store


def base_in(tmp_path: Path, *entries: Entry, loose: dict[str, str] | None = None) -> RecordFolder:
    return open_record(record_in(tmp_path / "records", *entries, loose=loose))


@asynccontextmanager
async def recorder(
    settings: WebSettings, *, store: KeyedStore | None = None, base: RecordFolder | None = None
) -> AsyncIterator[WebRecorder]:
    with ThreadPoolExecutor(4) as threads:
        made = WebRecorder(settings, store=store, base=base, clock=lambda: NOW, threads=threads)
        try:
            yield made
        finally:
            await made.close()


async def searched(recorder: WebRecorder, web: Web, live: SearchEntry = LIVE) -> tuple[SearchEntry, bool]:
    return await recorder.search(live.key, live.query, live.language, web.gives(live))


async def paged(recorder: WebRecorder, web: Web, live: PageEntry = LIVE_PAGE) -> tuple[PageEntry, bool]:
    return await recorder.page(live.key, live.url, web.gives(live))


def kept(store: KeyedStore) -> list[Entry]:
    return list(entries_of(store))


@pytest.mark.parametrize("mode", ["record", "refresh"])
async def test_unrecorded_entry_is_fetched_live_and_recorded(tmp_path: Path, mode: str) -> None:
    web, store = Web(), store_in(tmp_path)
    async with recorder(settings_of(mode), store=store, base=base_in(tmp_path)) as it:
        assert await searched(it, web) == (LIVE, False)
        assert await paged(it, web) == (LIVE_PAGE, False)
        assert await searched(it, web) == (LIVE, True)
    assert sorted(web.asked) == sorted([LIVE.key, LIVE_PAGE.key])
    assert {entry.key: entry for entry in kept(store)} == {LIVE.key: LIVE, LIVE_PAGE.key: LIVE_PAGE}


@pytest.mark.parametrize("mode", ["record", "refresh"])
async def test_entries_recorded_by_the_run_take_precedence(tmp_path: Path, mode: str) -> None:
    web, mine = Web(), replace(RECORDED, hits=(), recorded_at="2001-01-01T00:00:00+00:00", provider="brave")
    store, base = store_in(tmp_path, mine, FAILED_PAGE), base_in(tmp_path, RECORDED, RECORDED_PAGE)
    async with recorder(settings_of(mode, max_age_days=1), store=store, base=base) as it:
        assert await searched(it, web) == (mine, True)
        assert await paged(it, web) == (FAILED_PAGE, True)
    assert web.asked == []


async def test_mode_record_reuses_a_record_and_copies_used_entries_into_the_run(tmp_path: Path) -> None:
    web, store = Web(), store_in(tmp_path)
    async with recorder(settings_of(), store=store, base=base_in(tmp_path, RECORDED, RECORDED_PAGE)) as it:
        assert await searched(it, web) == (RECORDED, True)
        assert await paged(it, web) == (RECORDED_PAGE, True)
    assert web.asked == []
    async with recorder(settings_of(), store=store, base=base_in(tmp_path)) as resumed:
        assert await searched(resumed, web) == (RECORDED, True)
        assert await paged(resumed, web) == (RECORDED_PAGE, True)
    assert web.asked == []


@pytest.mark.parametrize(
    ("keys", "days_old", "used"),
    [
        ({}, 10_000, True),
        ({"max_age_days": 10}, 10, True),
        ({"max_age_days": 9.9}, 10, False),
        ({"max_age_days": 1}, -3, True),
    ],
)
async def test_mode_record_refetches_outdated_entries(
    tmp_path: Path, keys: dict[str, Any], days_old: int, used: bool
) -> None:
    web, at = Web(), (NOW - timedelta(days=days_old)).isoformat()
    base = base_in(tmp_path, replace(RECORDED, recorded_at=at), replace(RECORDED_PAGE, recorded_at=at))
    async with recorder(settings_of(**keys), store=store_in(tmp_path), base=base) as it:
        assert (await searched(it, web))[1] is used
        assert (await paged(it, web))[1] is used
    assert len(web.asked) == (0 if used else 2)


@pytest.mark.parametrize(
    ("keys", "hours", "used"),
    [
        ({}, 24, True),
        ({}, 24.1, False),
        ({"max_age_days": 0.5}, 13, False),
        ({"max_age_days": 2}, 25, False),
    ],
)
async def test_mode_record_retries_a_page_that_failed_long_ago(
    tmp_path: Path, keys: dict[str, Any], hours: float, used: bool
) -> None:
    web, failed = Web(), replace(FAILED_PAGE, recorded_at=(NOW - timedelta(hours=hours)).isoformat())
    async with recorder(settings_of(**keys), store=store_in(tmp_path), base=base_in(tmp_path, failed)) as it:
        assert await paged(it, web) == ((failed, True) if used else (LIVE_PAGE, False))


@pytest.mark.parametrize("recorded_at", ["", "long ago"])
async def test_unparsable_time_is_outdated_if_age_counts(tmp_path: Path, recorded_at: str) -> None:
    web, undated = Web(), replace(RECORDED, recorded_at=recorded_at)
    async with recorder(settings_of(max_age_days=1), store=store_in(tmp_path), base=base_in(tmp_path, undated)) as it:
        assert await searched(it, web) == (LIVE, False)
    async with recorder(settings_of(), store=store_in(tmp_path / "2"), base=base_in(tmp_path, undated)) as it:
        assert await searched(it, web) == (undated, True)


@pytest.mark.parametrize(
    ("provider", "used"), [("searxng", True), ("brave", False), ("bright_data/google", False), ("import", True)]
)
async def test_mode_record_reuses_no_search_of_another_provider(tmp_path: Path, provider: str, used: bool) -> None:
    web, other = Web(), replace(RECORDED, provider=provider)
    async with recorder(settings_of(), store=store_in(tmp_path), base=base_in(tmp_path, other)) as it:
        assert await searched(it, web) == ((other, True) if used else (LIVE, False))


async def test_mode_refresh_reuses_nothing_from_a_record(tmp_path: Path) -> None:
    web, base = Web(), base_in(tmp_path, RECORDED, RECORDED_PAGE)
    async with recorder(settings_of("refresh"), store=store_in(tmp_path), base=base) as it:
        assert await searched(it, web) == (LIVE, False)
        assert await paged(it, web) == (LIVE_PAGE, False)


async def test_replay_uses_the_record_regardless_of_age_and_provider(tmp_path: Path) -> None:
    web, old = Web(), replace(RECORDED, provider="brave", recorded_at="2001-01-01T00:00:00+00:00")
    store, base = store_in(tmp_path, LIVE, LIVE_PAGE), base_in(tmp_path, old, FAILED_PAGE)
    async with recorder(settings_of("replay", max_age_days=1), store=store, base=base) as it:
        assert await searched(it, web) == (old, True)
        assert await paged(it, web) == (FAILED_PAGE, True)
    assert web.asked == []
    assert sorted(entry.key for entry in kept(store)) == sorted([LIVE.key, LIVE_PAGE.key])


async def test_replay_without_an_entry_stops_with_its_name_and_a_remedy(tmp_path: Path) -> None:
    web, base = Web(), base_in(tmp_path)
    query = "capital of \x1b[31mX\u202e\n" + "y" * 300
    async with recorder(settings_of("replay"), store=None, base=base) as it:
        with pytest.raises(RecordMiss) as missing:
            await it.search(search_key(query, "en"), query, "en", web.gives(LIVE))
        with pytest.raises(RecordMiss) as no_page:
            await paged(it, web)
    told = str(missing.value)
    assert told.startswith(f"the web record {base.location} has no search for 'capital of \\x1b[31mX\\u202e yyy")
    assert told.endswith(
        'yyy...\' (en): replay sends no request; record a run with mode = "record" and '
        f"recorded_in = {base.location}, then `treadle export web_record --run <that run>`"
    )
    assert "\n" not in told
    assert len(told) < 700
    assert f"has no page {URL}: replay sends no request" in str(no_page.value)
    assert str(no_page.value).endswith("`treadle export web_record --run <that run>`, or set pages = false")
    assert not missing.value.retryable
    assert web.asked == []


@pytest.mark.parametrize("mode", ["record", "replay"])
async def test_imported_search_found_by_words_is_recorded_for_the_query(tmp_path: Path, mode: str) -> None:
    web = Web()
    imported = search_of("who won the cup", provider="import", text="The Reds.")
    base = base_in(tmp_path, imported, loose={imported.key: loose_key("who won the cup")})
    store, asked = store_in(tmp_path), search_of("Who won the Cup?")
    async with recorder(settings_of(mode), store=store, base=base) as it:
        found = await it.search(asked.key, asked.query, "en", web.gives(asked))
        again = await it.search(asked.key, asked.query, "en", web.gives(asked))
    assert found == again == (replace(imported, key=asked.key, query=asked.query), True)
    assert kept(store) == ([found[0]] if mode == "record" else [])
    assert web.asked == []


async def test_only_one_of_concurrent_callers_fetches_live(tmp_path: Path) -> None:
    web, answer = Web(), asyncio.Event()

    async def ask() -> SearchEntry:
        web.asked.append("")
        await answer.wait()
        return LIVE

    async with recorder(settings_of(), store=store_in(tmp_path)) as it:
        askers = [asyncio.create_task(it.search(LIVE.key, LIVE.query, "en", ask)) for _ in range(5)]
        while not web.asked:
            await asyncio.sleep(0)
        # Whichever caller is cancelled, the first one or a waiting one: the others are answered.
        for gone in askers[:2]:
            gone.cancel()
        await asyncio.wait(askers[:2])
        answer.set()
        assert await asyncio.gather(*askers[2:]) == [(LIVE, False)] * 3
    assert len(web.asked) == 1


async def test_waiter_on_a_failed_fetch_fetches_again(tmp_path: Path) -> None:
    web, fail = Web(), asyncio.Event()

    async def fail_to_search() -> SearchEntry:
        web.asked.append("in vain")
        await fail.wait()
        raise SearchUnavailable("no time left")

    async with recorder(settings_of(), store=store_in(tmp_path)) as it:
        first = asyncio.create_task(it.search(LIVE.key, LIVE.query, "en", fail_to_search))
        while not web.asked:
            await asyncio.sleep(0)
        others = [asyncio.create_task(searched(it, web)) for _ in range(3)]
        await asyncio.sleep(0)
        fail.set()
        assert await asyncio.gather(*others) == [(LIVE, False)] * 3
        with pytest.raises(SearchUnavailable, match="no time left"):
            await first
    assert web.asked == ["in vain", LIVE.key]


async def test_permanent_failure_is_raised_to_all_waiters(tmp_path: Path) -> None:
    web, fail = Web(), asyncio.Event()

    async def ask() -> SearchEntry:
        web.asked.append("")
        await fail.wait()
        raise ToolError("all keys are refused")

    store = store_in(tmp_path)
    async with recorder(settings_of(), store=store) as it:
        askers = [asyncio.create_task(it.search(LIVE.key, LIVE.query, "en", ask)) for _ in range(3)]
        while not web.asked:
            await asyncio.sleep(0)
        fail.set()
        told = await asyncio.gather(*askers, return_exceptions=True)
    assert [str(error) for error in told] == ["all keys are refused"] * 3
    assert len(web.asked) == 1
    assert kept(store) == []


async def test_entry_recorded_meanwhile_by_another_process_is_used(tmp_path: Path) -> None:
    store, other = store_in(tmp_path), page_of(URL, "of the other process")

    async def fetch() -> PageEntry:
        store.add(other.key, packed(other))
        return LIVE_PAGE

    async with recorder(settings_of(), store=store) as it:
        assert await it.page(LIVE_PAGE.key, URL, fetch) == (other, False)
        assert await it.page(LIVE_PAGE.key, URL, None) == (other, True)
    assert kept(store) == [other]


async def test_unfinished_fetch_ends_with_the_recorder_and_is_not_recorded(tmp_path: Path) -> None:
    store, started, ended = store_in(tmp_path), asyncio.Event(), list[str]()

    async def fetch() -> PageEntry:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")
        return LIVE_PAGE

    before = asyncio.all_tasks()
    async with recorder(settings_of(), store=store) as it:
        asker = asyncio.create_task(it.page(LIVE_PAGE.key, URL, fetch))
        await started.wait()
        asker.cancel()
        await asyncio.wait([asker])
        assert ended == []
    assert ended == ["ended"]
    assert asyncio.all_tasks() == before
    assert kept(store) == []


async def test_fetched_entries_are_truncated_before_use(tmp_path: Path) -> None:
    web, store, large = Web(), store_in(tmp_path), page_of(URL, "x" * 60_000)
    async with recorder(settings_of(), store=store) as it:
        entry, _ = await paged(it, web, large)
    assert len(entry.text) == 50_000
    assert kept(store) == [entry]


async def test_entries_in_memory_are_bounded_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web, store = Web(), store_in(tmp_path)
    pages = [page_of(f"http://site.test/{number}", "x" * 40_000) for number in range(60)]
    looked_up: list[str] = []
    get = KeyedStore.get

    def counted(self: KeyedStore, key: str) -> bytes | None:
        looked_up.append(key)
        return get(self, key)

    monkeypatch.setattr(KeyedStore, "get", counted)
    async with recorder(settings_of(cache_mb=1), store=store) as it:
        for page in pages:
            await paged(it, web, page)
            await paged(it, web, pages[0])
        assert looked_up.count(pages[0].key) == 1  # Used again and again, it stays.
        looked_up.clear()
        for page in reversed(pages):
            assert await paged(it, web, page) == (page, True)
    in_memory = [page.key for page in reversed(pages[1:]) if page.key not in looked_up]
    assert in_memory == [page.key for page in reversed(pages)][: len(in_memory)]
    assert 20 <= len(in_memory) <= 2**20 // sys.getsizeof("x" * 40_000)


def test_missing_requirements_of_a_mode_fail_immediately(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(ToolError, match='use mode = "replay"'):
            WebRecorder(settings_of(), store=None, base=None, threads=threads)
        with pytest.raises(ToolError, match="recorded_in"):
            WebRecorder(settings_of("replay"), store=store_in(tmp_path), base=None, threads=threads)
        base = base_in(tmp_path, LIVE)
        with pytest.raises(ArtifactError, match=f"is now {base.digest}; when the run was started it was {'0' * 16}"):
            WebRecorder(settings_of("replay", record_digest="0" * 16), store=None, base=base, threads=threads)
        WebRecorder(settings_of("replay", record_digest=base.digest), store=None, base=base, threads=threads)


async def test_damaged_value_or_full_disk_stops_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web, store = Web(), store_in(tmp_path)
    store.add(LIVE.key, b"1no zlib")

    def full(self: KeyedStore, key: str, value: bytes) -> bytes:
        raise StorageError("cannot write it: the disk is full")

    async with recorder(settings_of(), store=store) as it:
        with pytest.raises(ArtifactError, match=f"{LIVE.key} is damaged"):
            await searched(it, web)
        monkeypatch.setattr(KeyedStore, "add", full)
        with pytest.raises(StorageError, match="the disk is full"):
            await paged(it, web)
    assert web.asked == [LIVE_PAGE.key]


async def test_abandoned_fetch_is_still_recorded(tmp_path: Path) -> None:
    store, may_answer = store_in(tmp_path), asyncio.Event()

    async def ask() -> SearchEntry:
        await may_answer.wait()
        return LIVE

    async with recorder(settings_of(), store=store) as it:
        await it.wait_recorded()
        asking = asyncio.create_task(it.search(LIVE.key, LIVE.query, LIVE.language, ask))
        await asyncio.sleep(0)
        asking.cancel()
        wait_recorded = asyncio.create_task(it.wait_recorded())
        await asyncio.sleep(0)
        assert not wait_recorded.done()
        may_answer.set()
        await wait_recorded
    assert kept(store) == [LIVE]


async def test_fetched_entries_are_written_even_if_closed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One entry is being written when all is broken off, others wait for that, and one is still asked for."""
    store, may_write, web = store_in(tmp_path), threading.Event(), Web()
    monkeypatch.setattr(store, "num_writers", 1)
    add = store.add

    def slow_add(key: str, value: bytes) -> bytes:
        assert may_write.wait(60)
        return add(key, value)

    monkeypatch.setattr(store, "add", slow_add)
    pages = [replace(LIVE_PAGE, key=f"{number:032x}") for number in range(4)]

    async def never() -> PageEntry:
        await asyncio.Event().wait()
        raise AssertionError

    async with recorder(settings_of(), store=store) as it:
        flights = [asyncio.create_task(paged(it, web, page)) for page in pages[:3]]
        flights.append(asyncio.create_task(it.page(pages[3].key, pages[3].url, never)))
        while len(it._writes) < 3:
            await asyncio.sleep(0)
        closing = asyncio.create_task(it.close())
        await asyncio.sleep(0)
        may_write.set()
        await closing
        ends = await asyncio.gather(*flights, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    assert kept(store) == pages[:3]
