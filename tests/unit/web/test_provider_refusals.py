"""Refusals of providers: a query, a key or everything; and no key leaks from their messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from support.servers.web_servers import Page, Request, Site
from support.web.web_answers import (
    ENVIRON,
    GOOD,
    KEY,
    TOWER,
    Day,
    found,
    keys_sent,
    provider,
    queries_sent,
    refusing,
)

from treadle.core.errors import ToolError
from treadle.retriever.client import SearchUnavailable
from treadle.web.config import ProviderSettings
from treadle.web.providers import WebProvider
from treadle.web.types import QueryRefused

REPEATED = (
    "bad: invalid api key",
    "quota exceeded",
    "Not enough credits",
    "SUBSCRIPTION_TOKEN_INVALID",
    "QUOTA_LIMITED",
)


@pytest.mark.parametrize("query", REPEATED)
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"message": "{}"}),
        (400, {"message": "Query '{}' is not allowed."}),
        (422, {"error": {"code": "VALIDATION", "detail": "{}", "meta": {"errors": [{"input": "{}", "code": "{}"}]}}}),
        (422, {"error": "{}", "message": ["{}"]}),
        (400, ["{}"]),
    ],
)
async def test_query_echoed_by_an_error_drops_no_key(query: str, status: int, body: Any) -> None:
    def answer(request: Request) -> Page:
        asked = json.dumps(json.loads(request.body)["q"])[1:-1]
        return Page(json.dumps(body).replace("{}", asked), status) if "eiffel" not in asked else GOOD

    with Site({"/search": answer}) as site:
        asked = provider(site, day := Day(), "KEY_A", "KEY_B")
        for _ in range(3):
            with pytest.raises(SearchUnavailable, match="refuses this query"):
                await asked.search(query, "en", deadline=60.0)
        assert await found(asked) == (TOWER,) and day.now < 1.0
        assert sorted(set(keys_sent(site))) == sorted(ENVIRON.values())


async def test_refused_query_stays_pending_but_a_wrong_address_fails() -> None:
    with Site({"/search": Page('{"message": "Query not allowed"}', 400)}) as site:
        with pytest.raises(SearchUnavailable, match="refuses this query and others: HTTP 400"):
            await found(provider(site, Day()))
        assert [json.loads(request.body)["q"] for request in site.requests] == ["eiffel tower", "weather"]
    with Site({}) as site:
        with pytest.raises(ToolError, match="check its url") as caught:
            await found(provider(site, Day()))
        assert not caught.value.retryable and len(site.requests) == 2


@pytest.mark.parametrize("before", [(), ("good",)], ids=["first", "after a good one"])
async def test_query_refused_while_another_succeeds_is_permanent_and_drops_no_key(
    before: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with refusing() as site:
        for status in (302, 400, 401, 403, 404, 405, 406, 413, 414, 422, 431, 451):
            site.requests.clear()
            asked = provider(site, Day(), "KEY_A", "KEY_B")
            for query in before:
                await asked.search(query, "en", deadline=60.0)
            for _ in range(2):
                with pytest.raises(QueryRefused, match=f"HTTP {status}: .*Query pattern not allowed"):
                    await asked.search(f"bad {status}", "en", deadline=60.0)
            assert await asked.search("good", "en", deadline=60.0) == await found(asked) == (TOWER,)
            bad = [f"bad {status}", "weather"]
            assert queries_sent(site) == [*before, *bad, *bad, "good", "eiffel tower"]
            assert set(keys_sent(site)) == set(ENVIRON.values()) and not caplog.records


@pytest.mark.parametrize(
    ("status", "passing"),
    [
        (400, Page("slow down", 429, headers={"Retry-After": "5"})),
        (403, Page("slow down", 429, headers={"Retry-After": "5"})),
        (404, Page("busy", 503, headers={"Retry-After": "5"})),
        (403, Page("out of order", 500)),
        (403, Page("", 408)),
        (403, Page("<html>")),
    ],
)
async def test_key_probed_at_a_bad_moment_is_kept(status: int, passing: Page, caplog: pytest.LogCaptureFixture) -> None:
    with refusing(passing) as site:
        asked, bad = provider(site, day := Day()), f"bad {status}"
        await asked.search("good", "en", deadline=60.0)
        with pytest.raises(QueryRefused, match=f"HTTP {status}"):
            await asked.search(bad, "en", deadline=60.0)
        assert await found(asked) == (TOWER,) and day.now > 0 and not caplog.records
        assert queries_sent(site) == ["good", bad, "weather", bad, "weather", "eiffel tower"]


async def test_refused_query_stays_pending_if_its_key_cannot_be_probed_in_time() -> None:
    with refusing(Page("slow down", 429, headers={"Retry-After": "61"})) as site:
        asked = provider(site, Day())
        with pytest.raises(SearchUnavailable, match="all keys are paused; HTTP 429"):
            await asked.search("bad 403", "en", deadline=60.0)
        await asked.close()
    with refusing(*[Page("out of order", 500)] * 9) as site:
        asked = provider(site, Day(), retry_limit=1)
        with pytest.raises(SearchUnavailable, match="does not answer; HTTP 500"):
            await asked.search("bad 404", "en", deadline=60.0)
        await asked.close()


async def test_key_refused_during_a_run_is_dropped() -> None:
    def answer(request: Request) -> Page:
        return Page("Forbidden", 403) if len(site.requests) > 1 else GOOD

    with Site({"/search": answer}) as site:
        asked = provider(site, Day())
        assert await asked.search("q", "en", deadline=60.0) == (TOWER,)
        with pytest.raises(ToolError, match="refuses all keys, those in KEY_A"):
            await found(asked)
        assert queries_sent(site) == ["q", "eiffel tower", "weather"]


@pytest.mark.parametrize("kind", ["serper", "brave", "searxng"])
@pytest.mark.parametrize("status", [200, 401, 404, 500])
async def test_key_echoed_by_the_provider_is_not_passed_on(
    status: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    echo = {"organic": [{"link": "https://e.org", "title": KEY, "snippet": KEY}], "message": f"your key {KEY}"}
    with Site({"/search": Page(json.dumps(echo), status)}) as site:
        day = Day()
        settings = ProviderSettings.model_validate(
            {"type": kind, "url": site.url("/search"), "api_key_envs": ("KEY_A",), "retry_limit": 1}
        )
        asked = WebProvider(settings, environ=ENVIRON, clock=day, sleep=day.sleep)
        with pytest.raises(ToolError) as caught:
            await found(asked)
        assert KEY in str(site.requests[0].headers)
        assert KEY not in str(caught.value) + caplog.text + repr(caught.value.__context__)


SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "escaped letters": lambda key: "".join(f"\\u{ord(char):04x}" for char in key),
    "entities": lambda key: key.replace("/", "&#x2F;").replace("s", "&#115;"),
    "percent": lambda key: quote(key, safe="").replace("s", "%73"),
    "percent twice": lambda key: quote(quote(key, safe=""), safe=""),
    "capitals": lambda key: key.upper(),
    "divided by what is not seen": lambda key: key[:5] + "\u200b" + key[5:],
}


@pytest.mark.parametrize("field", ["title", "link", "snippet", "source", "date"])
@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_key_in_another_spelling_becomes_no_hit(spelling: str, field: str) -> None:
    key = "sk-AbCd/12+34=567890xyz"
    hit = {"link": "https://e.org/", "title": "t", field: "https://e.org/KEY"}
    with Site({"/search": Page(json.dumps({"organic": [hit]}).replace("KEY", SPELLINGS[spelling](key)))}) as site:
        settings = ProviderSettings(type="serper", url=site.url("/search"), api_key_envs=("K",), retry_limit=0)
        asked = WebProvider(settings, environ={"K": key}, clock=Day())
        with pytest.raises(SearchUnavailable, match="contains the API key") as caught:
            await found(asked)
    assert key not in str(caught.value)


@pytest.mark.parametrize("spelling", [*SPELLINGS, "cut off", "two ways at once"])
async def test_refusal_reason_does_not_contain_the_key(spelling: str) -> None:
    key = "sk-AbCd/12+34=567890xyz"
    spelled = {
        "cut off": "x" * 270 + "".join(f"%{ord(char):02X}" for char in key),
        "two ways at once": "\\u0073k-AbCd\\/12%2B34&#61;567890xyz",
    }.get(spelling) or SPELLINGS[spelling](key)
    with refusing(body='{"message": "bad KEY"}'.replace("KEY", spelled)) as site:
        settings = ProviderSettings(type="serper", url=site.url("/search"), api_key_envs=("K",))
        asked = WebProvider(settings, environ={"K": key}, clock=Day())
        with pytest.raises(QueryRefused) as caught:
            await asked.search("bad 403", "en", deadline=60.0)
        await asked.close()
    assert str(caught.value).startswith("HTTP 403: ")
    for part in ("%73k", "%41", "&#115;", "\\u0073", "567890xyz"):
        assert part.casefold() not in str(caught.value).casefold()
    assert caught.value.__context__ is None


async def test_escaped_key_next_to_hits_is_not_passed_on() -> None:
    said = "".join(f"\\u{ord(char):04x}" for char in KEY)
    with Site({"/search": Page('{"results": [], "unresponsive_engines": ["' + said + '"]}')}) as site:
        settings = ProviderSettings(type="searxng", url=site.url("/"), api_key_envs=("KEY_A",), retry_limit=0)
        with pytest.raises(SearchUnavailable, match="contains the API key") as caught:
            await found(WebProvider(settings, environ=ENVIRON, clock=Day()))
    error: BaseException | None = caught.value
    while error is not None:
        assert KEY not in str(error)
        error = error.__context__
