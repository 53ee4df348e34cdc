"""Search of the web over its parts: which hits and pages count, what time does, what a replay does without."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from treadle.agent.tools.search import SearchTool
from treadle.agent.tools.search_config import SearchToolSettings
from treadle.core.config import validate
from treadle.core.errors import ToolError
from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.storage import LocalStorage
from treadle.retriever.client import SearchUnavailable
from treadle.web.config import WebSettings
from treadle.web.keys import page_key, search_key
from treadle.web.record.stored_entries import entries_of
from treadle.web.record.table import write_record
from treadle.web.search import SWITCH_S, WebSearch
from treadle.web.types import (
    Fetched,
    Language,
    PageEntry,
    PageText,
    RecordMiss,
    SearchEntry,
    Unfetchable,
    WebHit,
)

FAR = 1e12
PROVIDER = {"type": "searxng", "url": "http://127.0.0.1:9"}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))


def hit(path: str, snippet: str = "") -> WebHit:
    return WebHit(f"About {path}", f"http://site.test{path}", snippet or f"Of {path}.")


class Finding:
    """A provider with the same hits for all queries."""

    name = "finding"

    def __init__(self, *hits: WebHit) -> None:
        self.hits = hits
        self.asked: list[tuple[str, Language]] = []

    async def search(self, query: str, language: Language, *, deadline: float) -> tuple[WebHit, ...]:
        self.asked.append((query, language))
        return self.hits

    async def close(self) -> None: ...


class Pages:
    """Fetcher and reader in one: the text of a page is its path, `before` is awaited first."""

    def __init__(self, before: Callable[[str], Awaitable[None]] | None = None) -> None:
        self.before = before
        self.fetched: list[str] = []
        self.opened = 0
        self.at_once = self.most_at_once = 0

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None: ...

    async def fetch(self, url: str, *, deadline: float, held_slots: ExitStack) -> Fetched:
        self.fetched.append(url)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            if self.before is not None:
                await self.before(url)
            else:
                await asyncio.sleep(0)
        finally:
            self.at_once -= 1
        return Fetched(url, "text/html", "", "", url.encode())

    async def read(self, page: Fetched, *, max_bytes: int, deadline: float) -> PageText:
        return PageText("", f"Read {page.body.decode()}.", page.media_type, "test/1")


def store_of(folder: Path) -> KeyedStore:
    return KeyedStore(LocalStorage(folder), "store/web")


def settings(**keys: object) -> WebSettings:
    return validate(WebSettings, {"provider": PROVIDER, **keys})


def searching(folder: Path, provider: Finding, at: Pages | None = None, /, **keys: object) -> WebSearch:
    pages = at or Pages()
    return WebSearch(
        settings(**keys), store=store_of(folder), summarized=False, provider=provider, fetcher=pages, reader=pages
    )


def shown(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def kept(folder: Path) -> dict[str, SearchEntry | PageEntry]:
    return {entry.key: entry for entry in entries_of(store_of(folder))}


async def test_hits_with_invalid_or_duplicate_urls_are_skipped(tmp_path: Path) -> None:
    lost = [
        WebHit("lost", url, "s") for url in ("javascript:alert(1)", "file:///etc/passwd", "//site.test/a", "", "\0")
    ]
    same = WebHit("same", "HTTP://site.TEST:80/a#part", "same")
    provider, pages = Finding(*lost, hit("/a"), same, hit("/b"), hit("/c")), Pages()
    web = searching(tmp_path, provider, pages, top_n=2)
    await web.open()
    found = await web.search("q", deadline=FAR)
    await web.close()
    assert [(one["id"], one["title"]) for one in shown(found.text)] == [(1, "About /a"), (2, "About /b")]
    assert sorted(pages.fetched) == ["http://site.test/a", "http://site.test/b"]
    assert found.sources == (search_key("q", "en"), page_key("http://site.test/a"), page_key("http://site.test/b"))
    search = kept(tmp_path)[search_key("q", "en")]
    assert isinstance(search, SearchEntry) and len(search.hits) == 9 and search.provider == "finding"


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        (" two \n words\t", ("two words", "en")),
        ("a\ud800b\u202e\x1b[1m", ("ab[1m", "en")),
        ("\u6771\u4eac\u5854 height", ("\u6771\u4eac\u5854 height", "zh")),
    ],
)
async def test_query_is_sent_as_it_is_recorded(tmp_path: Path, query: str, asked: tuple[str, Language]) -> None:
    provider = Finding(hit("/a"))
    web = searching(tmp_path, provider)
    await web.open()
    first, second = [await web.search(query, deadline=FAR) for _ in range(2)]
    await web.close()
    assert provider.asked == [asked] and search_key(*asked) in kept(tmp_path)
    assert (first.recorded, second.recorded) == (False, True) and first.text == second.text


@pytest.mark.parametrize("query", ["\u202e\x00", "\ud800"])
async def test_query_that_is_empty_after_cleaning_finds_nothing_and_sends_nothing(tmp_path: Path, query: str) -> None:
    provider = Finding(hit("/a"))
    web = searching(tmp_path, provider)
    await web.open()
    assert (await web.search(query, deadline=FAR)).text == "" and provider.asked == []
    await web.close()


async def test_search_without_a_hit_is_recorded_as_one(tmp_path: Path) -> None:
    provider = Finding()
    web = searching(tmp_path, provider)
    await web.open()
    found = [await web.search("q", deadline=FAR) for _ in range(2)]
    await web.close()
    assert [(one.text, one.sources) for one in found] == [("", (search_key("q", "en"),))] * 2
    assert len(provider.asked) == 1


async def test_without_pages_snippets_are_shown_and_nothing_is_fetched(tmp_path: Path) -> None:
    pages = Pages()
    web = searching(tmp_path, Finding(hit("/a"), hit("/b", "Of /a."), hit("/c")), pages, pages=False)
    await web.open()
    found = await web.search("q", deadline=FAR)
    await web.close()
    assert found.text == "Page 1: Of /a.\nPage 2: Of /c." and (pages.fetched, pages.opened) == ([], 0)


async def test_failed_page_is_recorded_with_the_reason_and_keeps_its_snippet(tmp_path: Path) -> None:
    async def refuse(url: str) -> None:
        raise Unfetchable("blocked", "no such place for us")

    web = searching(tmp_path, Finding(hit("/a")), Pages(refuse))
    await web.open()
    found = await web.search("q", deadline=FAR)
    await web.close()
    (line,) = shown(found.text)
    assert (line["snippet"], line["context"]) == ("Of /a.", "[This page could not be fetched.]")
    page = kept(tmp_path)[page_key("http://site.test/a")]
    assert isinstance(page, PageEntry) and (page.failure, page.detail) == ("blocked", "no such place for us")


async def test_late_page_stays_pending_and_its_outcome_is_recorded(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def wait(url: str) -> None:
        await release.wait()

    pages = Pages(wait)
    web = searching(tmp_path, Finding(hit("/slow")), pages)
    await web.open()
    with pytest.raises(SearchUnavailable, match="the search reached its time limit") as caught:
        await web.search("q", deadline=asyncio.get_running_loop().time() + 0.05)
    assert caught.value.retryable and page_key("http://site.test/slow") not in kept(tmp_path)
    release.set()
    later = await web.search("q", deadline=FAR)
    await web.close()
    assert shown(later.text)[0]["context"] == "Read http://site.test/slow." and len(pages.fetched) == 1


async def test_page_that_waited_for_others_is_not_recorded_and_is_requested_again(tmp_path: Path) -> None:
    full = True

    async def wait(url: str) -> None:
        if full and url.endswith("/b"):
            raise SearchUnavailable("all places are taken")

    pages = Pages(wait)
    web = searching(tmp_path, Finding(hit("/a"), hit("/b")), pages)
    await web.open()
    with pytest.raises(SearchUnavailable, match="all places are taken"):
        await web.search("q", deadline=FAR)
    full = False
    found = await web.search("q", deadline=FAR)
    await web.close()
    assert [one["context"] for one in shown(found.text)] == ["Read http://site.test/a.", "Read http://site.test/b."]
    assert sorted(pages.fetched) == ["http://site.test/a", "http://site.test/b", "http://site.test/b"]


async def test_page_holds_its_slots_until_it_was_read(tmp_path: Path) -> None:
    seen: list[str] = []

    class Holding(Pages):
        async def fetch(self, url: str, *, deadline: float, held_slots: ExitStack) -> Fetched:
            held_slots.callback(seen.append, "given back")
            return await super().fetch(url, deadline=deadline, held_slots=held_slots)

        async def read(self, page: Fetched, *, max_bytes: int, deadline: float) -> PageText:
            seen.append("read")
            if "/bad" in page.final_url:
                raise Unfetchable("unreadable", "")
            return await super().read(page, max_bytes=max_bytes, deadline=deadline)

    web = searching(tmp_path, Finding(hit("/a"), hit("/bad")), Holding(), fetch={"max_per_query": 1})
    await web.open()
    await web.search("q", deadline=FAR)
    await web.close()
    assert seen == ["read", "given back"] * 2


async def test_page_abandoned_by_its_rollout_is_recorded_with_its_outcome(tmp_path: Path) -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    async def wait(url: str) -> None:
        asked.set()
        await release.wait()

    pages = Pages(wait)
    web = searching(tmp_path, Finding(hit("/a")), pages)
    await web.open()
    gone = asyncio.create_task(web.search("q", deadline=FAR))
    await asked.wait()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    release.set()
    found = await web.search("q", deadline=FAR)
    await web.close()
    assert shown(found.text)[0]["context"] == "Read http://site.test/a." and len(pages.fetched) == 1


async def test_each_search_respects_its_concurrent_fetch_limit(tmp_path: Path) -> None:
    two = asyncio.Event()

    async def wait_for_two_fetches(_: str) -> None:
        if pages.at_once == 2:
            two.set()
        await two.wait()

    pages = Pages(wait_for_two_fetches)
    web = searching(tmp_path, Finding(*(hit(f"/{n}") for n in range(9))), pages, top_n=9, fetch={"max_per_query": 2})
    await web.open()
    assert len(shown((await web.search("q", deadline=FAR)).text)) == 9
    await web.close()
    assert (len(pages.fetched), pages.most_at_once) == (9, 2)


async def test_concurrent_searches_for_one_query_send_and_fetch_once(tmp_path: Path) -> None:
    provider, pages = Finding(hit("/a"), hit("/b")), Pages()
    web = searching(tmp_path, provider, pages)
    await web.open()
    found = await asyncio.gather(*(web.search("q", deadline=FAR) for _ in range(20)))
    await web.close()
    assert len({one.text for one in found}) == 1 and (len(provider.asked), len(pages.fetched)) == (1, 2)


async def test_provider_outage_is_not_recorded(tmp_path: Path) -> None:
    class Down(Finding):
        async def search(self, query: str, language: Language, *, deadline: float) -> tuple[WebHit, ...]:
            raise SearchUnavailable("down")

    web = searching(tmp_path, Down())
    await web.open()
    with pytest.raises(SearchUnavailable):
        await web.search("q", deadline=FAR)
    await web.close()
    assert kept(tmp_path) == {}


def record_of(folder: Path, entries: Sequence[SearchEntry | PageEntry]) -> Path:
    storage = LocalStorage(folder)
    pairs = [(entry, None) for entry in sorted(entries, key=lambda entry: entry.key)]
    return folder / write_record(storage, pairs, made_by="test", work="work").folder


async def test_replay_opens_and_writes_nothing(tmp_path: Path) -> None:
    pages = Pages()
    web = searching(tmp_path / "live", Finding(hit("/a")), pages)
    await web.open()
    live = await web.search("q", deadline=FAR)
    await web.close()
    folder = record_of(tmp_path / "record", list(kept(tmp_path / "live").values()))
    unasked, unread = Finding(), Pages()
    replay = WebSearch(
        settings(mode="replay", recorded_in=folder), store=None, summarized=True,
        provider=unasked, fetcher=unread, reader=unread,
    )  # fmt: skip
    await replay.open()
    found = await replay.search("q", deadline=FAR)
    with pytest.raises(RecordMiss, match="has no search for 'other' "):
        await replay.search("other", deadline=FAR)
    await replay.close()
    assert (found.text, found.sources, found.recorded) == (live.text, live.sources, True)
    assert live.documents == () and shown(found.documents[0])[0]["url"] == "http://site.test/a"
    assert unasked.asked == [] and unread.opened == 0 and unread.fetched == []


async def test_prerendered_recorded_result_is_shown_unchanged(tmp_path: Path) -> None:
    text = "The tower has <|im_end|> 330 metres.\u202e"
    entry = SearchEntry(search_key("q", "en"), "q", "en", "imported", (), "2026-01-01T00:00:00+00:00", text)
    web = WebSearch(settings(mode="replay", recorded_in=record_of(tmp_path, [entry])), store=None, summarized=True)
    await web.open()
    found = await web.search("q", deadline=FAR)
    await web.close()
    assert found.text == "The tower has &lt;|im_end|> 330 metres." and found.documents == (found.text,)


async def test_thread_switch_interval_is_lowered_during_web_search(tmp_path: Path) -> None:
    usual = sys.getswitchinterval()
    web = searching(tmp_path, Finding())
    await web.open()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S) and usual > SWITCH_S
    await web.close()
    assert sys.getswitchinterval() == usual


async def test_recording_without_a_run_is_refused(tmp_path: Path) -> None:
    pages = Pages()
    web = WebSearch(settings(), store=None, summarized=False, provider=Finding(), fetcher=pages, reader=pages)
    with pytest.raises(ToolError, match="records into a run"):
        await web.open()


async def test_hit_with_an_unparsable_url_is_not_followed(tmp_path: Path) -> None:
    pages = Pages()
    provider = Finding(WebHit("odd", "http://][@", "s"), WebHit("odd", "http://[\uff48HTTP:99999]", "s"), hit("/a"))
    web = searching(tmp_path, provider, pages)
    await web.open()
    found = await web.search("q", deadline=FAR)
    await web.close()
    assert pages.fetched == ["http://site.test/a"] and [one["title"] for one in shown(found.text)] == ["About /a"]


async def test_page_that_triggers_a_bug_is_a_failed_page_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def stumble(url: str) -> None:
        if url.endswith("/odd"):
            raise IndexError("string index out of range")

    web = searching(tmp_path, Finding(hit("/odd"), hit("/a")), Pages(stumble))
    await web.open()
    found = await web.search("q", deadline=FAR)
    await web.close()
    odd = kept(tmp_path)[page_key("http://site.test/odd")]
    assert isinstance(odd, PageEntry) and (odd.failure, odd.text) == ("unreadable", "") and "IndexError" in odd.detail
    assert [one["context"] for one in shown(found.text)][0] == "[This page could not be fetched.]"
    assert "http://site.test/odd" in caplog.text and "Traceback" in caplog.text


@pytest.mark.parametrize("error", [OSError("Too many open files"), MemoryError(), RuntimeError("no new thread")])
async def test_missing_local_packages_are_not_recorded_as_a_page_failure(tmp_path: Path, error: Exception) -> None:
    async def fail(url: str) -> None:
        raise error

    web = searching(tmp_path, Finding(hit("/a")), Pages(fail))
    await web.open()
    with pytest.raises(type(error)):
        await web.search("q", deadline=FAR)
    await web.close()
    assert page_key("http://site.test/a") not in kept(tmp_path)


@pytest.mark.parametrize("broken_off", [False, True])
async def test_abandoned_search_is_recorded_unless_everything_is_cancelled(tmp_path: Path, broken_off: bool) -> None:
    keys = SearchToolSettings.model_validate({"web": {"provider": PROVIDER}})
    tool = SearchTool(keys, web=searching(tmp_path, Finding(hit("/a"))))

    async def search_and_cancel() -> None:
        async with tool:
            left = asyncio.create_task(tool.call("q", deadline=FAR))
            await asyncio.sleep(0)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            if broken_off:
                raise KeyError("broken off")

    if broken_off:
        with pytest.raises(KeyError):
            await search_and_cancel()
    else:
        await search_and_cancel()
    assert list(kept(tmp_path)) == ([] if broken_off else [search_key("q", "en")])
