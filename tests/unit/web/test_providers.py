"""Search providers over HTTP: turns of keys, tries and pauses."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from support.servers.own_clock import ForwardClock, until
from support.servers.web_servers import Page, Site
from support.web.web_answers import (
    ANSWERS,
    ENVIRON,
    GOOD,
    KEY,
    NOTHING,
    TOWER,
    Day,
    found,
    keys_sent,
    provider,
    scripted,
)

from treadle.core.errors import ConfigError, ToolError
from treadle.retriever.client import SearchUnavailable
from treadle.web import providers
from treadle.web.config import ProviderSettings
from treadle.web.provider_requests import hits_of
from treadle.web.providers import EMPTY_TRIES, QUOTA_PAUSE_S, RATE_LIMIT_PAUSE_S, WebProvider
from treadle.web.types import WebHit


async def test_each_search_sends_one_request() -> None:
    with Site({"/search": GOOD}) as site:
        asked = provider(site, Day())
        assert asked.name == "serper" and await found(asked) == (TOWER,)
        (request,) = site.requests
        assert json.loads(request.body)["q"] == "eiffel tower" and request.headers["accept-encoding"] == "identity"


async def test_empty_answer_is_requested_again_and_then_accepted() -> None:
    with Site({"/search": NOTHING}) as site:
        assert await found(provider(site, Day())) == () and len(site.requests) == EMPTY_TRIES
    with Site({"/search": scripted(NOTHING, GOOD)}) as site:
        assert await found(provider(site, Day())) == (TOWER,) and len(site.requests) == 2


async def test_rate_limited_key_is_replaced_by_the_next_immediately() -> None:
    with Site({"/search": scripted(Page("slow down", 429, headers={"Retry-After": "20"}), GOOD)}) as site:
        day = Day()
        assert await found(provider(site, day, "KEY_A", "KEY_B")) == (TOWER,)
        assert keys_sent(site) == [ENVIRON["KEY_A"], ENVIRON["KEY_B"]] and day.now == pytest.approx(0, abs=1e-6)


async def test_first_ready_key_is_waited_for_if_all_keys_rest() -> None:
    slow = [Page("slow down", 429, headers={"Retry-After": seconds}) for seconds in ("20", "8")]
    with Site({"/search": scripted(*slow, GOOD)}) as site:
        day = Day()
        assert await found(provider(site, day, "KEY_A", "KEY_B")) == (TOWER,)
        assert keys_sent(site)[2] == ENVIRON["KEY_B"] and day.now == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("answer", "rest_s"),
    [
        (Page("slow down", 429), RATE_LIMIT_PAUSE_S),
        (Page("pay", 402), QUOTA_PAUSE_S),
        (Page("", 429, headers={"Retry-After": "0"}), 1.0),
    ],
)
async def test_keys_rest_as_long_as_required(answer: Page, rest_s: float) -> None:
    with Site({"/search": scripted(answer, GOOD)}) as site:
        day = Day()
        assert await found(provider(site, day), deadline=10_000.0) == (TOWER,) and day.now == pytest.approx(rest_s)


async def test_rest_beyond_the_deadline_is_not_waited_for() -> None:
    with Site({"/search": Page("slow down", 429, headers={"Retry-After": "61"})}) as site:
        day = Day()
        with pytest.raises(SearchUnavailable, match="all keys are paused; HTTP 429: slow down"):
            await found(provider(site, day))
        assert day.pauses == [] and len(site.requests) == 1


async def test_refused_keys_are_dropped_and_a_provider_without_valid_keys_stops_the_run() -> None:
    unauthorized = Page("Unauthorized.", 403)
    with Site({"/search": lambda request: unauthorized if request.headers["x-api-key"] == KEY else GOOD}) as site:
        asked = provider(site, Day(), "KEY_A", "KEY_B")
        for _ in range(2):
            assert await asked.search("q", "en", deadline=60.0) == (TOWER,)
        await asked.close()
        assert keys_sent(site) == [KEY, KEY, ENVIRON["KEY_B"], ENVIRON["KEY_B"]], "tried with two queries, then dropped"
    with Site({"/search": lambda request: Page(f"bad key {request.headers['x-api-key']}", 401)}) as site:
        with pytest.raises(ToolError, match="KEY_A, KEY_B") as caught:
            await found(provider(site, Day(), "KEY_A", "KEY_B"))
        assert not caught.value.retryable and len(site.requests) == 4


async def test_transient_provider_errors_are_retried_after_growing_pauses() -> None:
    errors = [Page("", 500), Page("not JSON"), Page("", 502)]
    with Site({"/search": scripted(*errors, GOOD)}) as site:
        day = Day()
        assert await found(provider(site, day)) == (TOWER,) and len(site.requests) == 4
        assert len(day.pauses) == 3
        for pause, most in zip(day.pauses, (0.5, 1.0, 2.0), strict=True):
            assert most / 2 <= pause <= most


async def test_provider_that_keeps_failing_is_unavailable() -> None:
    with Site({"/search": Page("out of order", 500)}) as site:
        with pytest.raises(SearchUnavailable, match="HTTP 500: out of order") as caught:
            await found(provider(site, Day(), "KEY_A", "KEY_B", retry_limit=1))
        assert caught.value.retryable and keys_sent(site) == [ENVIRON["KEY_A"], ENVIRON["KEY_B"]] * 2


async def test_absent_server_is_unavailable() -> None:
    with Site({}) as site:
        gone = provider(site, Day(), retry_limit=1)
    with pytest.raises(SearchUnavailable, match="serper does not answer"):
        await found(gone)


async def test_slow_provider_is_abandoned_at_the_deadline() -> None:
    with Site({"/search": GOOD}) as site:
        site.hold("/search")
        with pytest.raises(SearchUnavailable, match="in time"):
            await found(provider(site, Day()), deadline=0.05)


async def test_slow_answer_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ForwardClock(monkeypatch)
    with Site({"/search": GOOD}) as site:
        site.hold("/search")
        search = asyncio.create_task(found(provider(site, Day(), retry_limit=1, request_timeout_s=30.0)))
        for num_requests in (1, 2):
            await until(lambda num_requests=num_requests: len(site.requests) == num_requests)
            clock.pass_(31.0)
        with pytest.raises(SearchUnavailable, match=r"no answer in 30 s"):
            await search
        assert len(site.requests) == 2


async def test_redirects_are_not_followed() -> None:
    with Site({"/": GOOD}) as elsewhere:
        away = Page("", 302, headers={"Location": elsewhere.url("/")})
        with Site({"/search": away}) as site, pytest.raises(ToolError, match="HTTP 302"):
            await found(provider(site, Day()))
        assert elsewhere.requests == []


async def test_searches_start_at_the_allowed_rate() -> None:
    with Site({"/search": GOOD}) as site:
        day = Day()
        settings = ProviderSettings(
            type="serper", url=site.url("/search"), api_key_envs=("KEY_A",), max_queries_per_s=4
        )  # fmt: skip
        asked = WebProvider(settings, environ=ENVIRON, clock=day, sleep=day.sleep)
        for _ in range(3):
            await asked.search("q", "en", deadline=60.0)
        assert day.now == pytest.approx(0.5)
        with pytest.raises(SearchUnavailable, match="not queried in time"):
            await asked.search("q", "en", deadline=0.6)
        await asked.close()


async def test_answers_are_parsed_outside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[threading.Thread]()

    def noted(settings: ProviderSettings, data: bytes, most: int) -> tuple[WebHit, ...]:
        threads.append(threading.current_thread())
        return hits_of(settings, data, most)

    monkeypatch.setattr(providers, "hits_of", noted)
    with Site({"/search": GOOD}) as site:
        assert await found(provider(site, Day())) == (TOWER,)
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


async def test_answer_is_limited_to_one_mebibyte() -> None:
    whole = json.dumps({**ANSWERS["serper"][1], "more": ""})
    for num_bytes, is_taken in ((1 << 20, True), ((1 << 20) + 1, False)):
        answer = whole.replace('"more": "', '"more": "' + "x" * (num_bytes - len(whole)))
        assert len(answer) == num_bytes
        with Site({"/search": Page(answer)}) as site:
            asked = found(provider(site, Day(), retry_limit=0))
            if is_taken:
                assert await asked == (TOWER,)
            else:
                with pytest.raises(SearchUnavailable, match="larger than 1048576 bytes"):
                    await asked


async def test_variable_without_a_key_is_named() -> None:
    with pytest.raises(ConfigError, match="KEY_Z is not set"):
        WebProvider(ProviderSettings(type="serper", api_key_envs=("KEY_Z",)), environ=ENVIRON)


async def test_self_hosted_searxng_needs_no_key() -> None:
    answer = Page(json.dumps(ANSWERS["searxng"][1]), media_type="application/json")
    with Site({"/search": answer}) as site:
        asked = WebProvider(ProviderSettings(type="searxng", url=site.url("/")), environ={})
        hits = await asked.search("a+b & c", "en", deadline=asyncio.get_running_loop().time() + 60)
        await asked.close()
        assert hits == ANSWERS["searxng"][2] and site.requests[0].query["q"] == "a+b & c"
    with Site({"/search": Page("Forbidden", 403)}) as site:
        asked = WebProvider(ProviderSettings(type="searxng", url=site.url("/")), environ={}, clock=Day())
        with pytest.raises(ToolError, match="search.formats"):
            await found(asked)
