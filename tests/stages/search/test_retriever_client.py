"""The client of the retrieval service against scripted services on loopback."""

from __future__ import annotations

import asyncio

import pytest
from support.servers.own_clock import ForwardClock, until
from support.servers.scripted_search import FOUND, Answer, Pauses, Service, client, later, serving

from treadle.core.errors import ConfigError, ToolError
from treadle.retriever.client import (
    SearchUnavailable,
    ServiceClient,
    ServiceClientSettings,
    ask_fingerprint,
)


async def test_documents_have_title_and_text() -> None:
    service = Service()
    async with serving(service), client(service.url) as searcher:
        first, second = await searcher.search("q", 2, deadline=later())
        assert (first.id, first.title, first.text) == ("7", "Title", "Text\nmore")
        assert (second.contents, second.title) == ("bare", "")
        assert searcher.fingerprint == "abc"
    assert service.asked == [{"query": "q", "top_n": 2}]


async def test_unacceptable_query_is_truncated_and_sanitized() -> None:
    service = Service()
    async with serving(service), client(service.url) as searcher:
        await searcher.search("\ud800" + "x" * 10_000_000, 2, deadline=later())
    assert service.asked[0]["query"] == "?" + "x" * 4095


@pytest.mark.parametrize(
    "failure",
    [
        (500, {"detail": "boom"}),
        (503, {"detail": "loading"}, {"Retry-After": "0"}),
        (429, {"detail": "busy"}, {"Retry-After": "0"}),
        (408, {}),
        (502, "<html>"),
        None,
    ],
)
async def test_transient_failures_are_retried_after_a_pause(failure: Answer | None) -> None:
    service, pauses = Service(failure, failure, (200, FOUND)), Pauses()
    async with serving(service), client(service.url, pauses=pauses) as searcher:
        assert len(await searcher.search("q", 2, deadline=later())) == 2
    assert len(service.asked) == 3 and len(pauses.seconds) == 2 and min(pauses.seconds) > 0


async def test_retry_after_header_is_respected() -> None:
    service, pauses = Service((429, {}, {"Retry-After": "7"}), (200, FOUND)), Pauses()
    async with serving(service), client(service.url, pauses=pauses) as searcher:
        await searcher.search("q", 2, deadline=later())
    assert pauses.seconds[0] == pytest.approx(7, abs=0.5)


async def test_another_address_is_tried_immediately() -> None:
    busy, free, pauses = Service((429, {}, {"Retry-After": "9"})), Service(), Pauses()
    async with serving(busy, free), client(busy.url, free.url, pauses=pauses) as searcher:
        for _ in range(3):
            assert len(await searcher.search("q", 2, deadline=later())) == 2
    assert pauses.seconds == [0.0]
    assert (len(busy.asked), len(free.asked)) == (1, 3)


async def test_unresponsive_service_is_abandoned_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    silent, alive = Service("hang"), Service()
    async with serving(silent, alive), client(silent.url, alive.url, request_timeout_s=60.0) as searcher:
        clock = ForwardClock(monkeypatch)
        found = asyncio.create_task(searcher.search("q", 2, deadline=later(120.0)))
        await until(lambda: bool(silent.asked))
        clock.pass_(61.0)
        assert len(await found) == 2
    assert len(silent.asked) == 1


async def test_deadline_during_a_search_is_a_timeout_and_during_failures_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent, broken = Service("hang"), Service((500, {}))
    async with serving(silent, broken):
        async with client(silent.url) as searcher:
            with pytest.raises(TimeoutError):
                await searcher.search("q", 2, deadline=later(0.05))
        clock = ForwardClock(monkeypatch)
        async with client(broken.url, pauses=Pauses(clock.pass_), retry_limit=999) as searcher:
            with pytest.raises(SearchUnavailable, match="HTTP 500") as outage:
                await searcher.search("q", 2, deadline=later())
            assert outage.value.retryable and 1 < len(broken.asked) < 999


async def test_unresponsive_service_is_an_outage_not_a_slow_search(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = Service("hang")
    async with serving(frozen), client(frozen.url, request_timeout_s=120.0) as searcher:
        frozen.info = ["hang"]  # type: ignore[list-item]
        clock = ForwardClock(monkeypatch)
        search = asyncio.create_task(searcher.search("q", 2, deadline=later()))
        await clock.pass_until_done(search)
        with pytest.raises(SearchUnavailable, match="it does not answer, not even GET /info") as outage:
            await search
        assert outage.value.retryable


async def test_retries_are_bounded() -> None:
    broken = Service((500, {"detail": "still \x1b[31mbroken"}))
    async with serving(broken), client(broken.url, retry_limit=3) as searcher:
        with pytest.raises(SearchUnavailable) as outage:
            await searcher.search("q", 2, deadline=later())
    assert len(broken.asked) == 4 and "\x1b" not in str(outage.value)


async def test_refusal_is_final_and_names_the_service() -> None:
    service = Service((422, {"detail": "top_n must be at most 100"}))
    async with serving(service), client(service.url) as searcher:
        with pytest.raises(ToolError, match="top_n must be at most 100") as refusal:
            await searcher.search("q", 1000, deadline=later())
        assert not refusal.value.retryable
    assert len(service.asked) == 1


async def test_loading_services_are_waited_for_and_absent_ones_only_briefly() -> None:
    service = Service()
    service.info = [(503, {}), (503, {}), (200, {"fingerprint": "abc"})]
    async with serving(service), client(service.url) as searcher:
        assert searcher.fingerprint == "abc"
    with pytest.raises(SearchUnavailable, match="treadle retriever serve"):
        async with client("http://127.0.0.1:9", start_wait_s=0):
            pass


async def test_services_must_hold_the_same_index() -> None:
    one, other = Service(), Service(info=(200, {"fingerprint": "xyz"}))
    async with serving(one, other):
        with pytest.raises(ConfigError, match="a different index"):
            async with client(one.url, other.url):
                pass


@pytest.mark.parametrize(
    ("told", "expected", "named"),
    [
        ((200, {"fingerprint": "abc"}), "xyz", r"a different index \(abc\), but this run was started with xyz"),
        (
            (200, {"fingerprint": "abc"}),
            "unknown",
            r"a different index \(abc\), but this run was started with unknown",
        ),
        ((404, {}), "abc", r"a different index \(unknown\)"),
    ],
)
async def test_services_must_hold_the_expected_index(told: Answer, expected: str, named: str) -> None:
    service = Service(info=told)
    async with serving(service):
        with pytest.raises(ConfigError, match=named):
            async with client(service.url, fingerprint=expected):
                pass


@pytest.mark.parametrize(("told", "fingerprint"), [((200, {"fingerprint": "abc"}), "abc"), ((404, {}), "unknown")])
async def test_fetched_fingerprint_is_expected_later(told: Answer, fingerprint: str) -> None:
    service = Service(info=told)
    async with serving(service):
        settings = ServiceClientSettings.model_validate({"endpoints": [{"url": service.url}]})
        assert await ask_fingerprint(settings, 4) == fingerprint
        async with client(service.url, fingerprint=fingerprint):
            pass


async def test_fingerprint_request_waits_for_a_loading_service_but_not_an_absent_one() -> None:
    service = Service(info=(503, {}))
    service.info.append((200, {"fingerprint": "abc"}))
    async with serving(service):
        settings = ServiceClientSettings.model_validate({"endpoints": [{"url": service.url}]})
        assert await ask_fingerprint(settings, 4) == "abc"
    settings = ServiceClientSettings.model_validate({"endpoints": [{"url": service.url}], "start_wait_s": 1e9})
    with pytest.raises(SearchUnavailable, match="treadle retriever serve"):
        await ask_fingerprint(settings, 4)


@pytest.mark.parametrize("back", ["abc", "xyz"])
async def test_service_that_returns_is_checked_for_its_index_again(back: str) -> None:
    service = Service(None, (200, FOUND))
    service.info = [(200, {"fingerprint": "abc"}), (200, {"fingerprint": back})]
    async with serving(service), client(service.url) as searcher:
        if back == "abc":
            assert len(await searcher.search("q", 2, deadline=later())) == 2
        else:
            with pytest.raises(ConfigError, match=r"restarted with a different index \(xyz, not abc\)"):
                await searcher.search("q", 2, deadline=later())


async def test_service_without_the_fingerprint_route_is_still_used() -> None:
    service = Service(info=(404, {"detail": "Not Found"}))
    async with serving(service), client(service.url) as searcher:
        assert searcher.fingerprint is None
        assert len(await searcher.search("q", 2, deadline=later())) == 2


async def test_token_is_sent_but_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_TOKEN", "canary-token-1")
    service = Service((401, {"detail": "no canary-token-1"}))
    settings = {"endpoints": [{"url": "", "api_key_env": "SEARCH_TOKEN"}]}
    async with serving(service):
        settings["endpoints"][0]["url"] = service.url
        searcher = ServiceClient(ServiceClientSettings.model_validate(settings))
        await searcher.open()
        with pytest.raises(ToolError) as refusal:
            await searcher.search("q", 2, deadline=later())
        await searcher.close()
    assert service.headers == ["Bearer canary-token-1"] and "canary-token-1" not in str(refusal.value)
