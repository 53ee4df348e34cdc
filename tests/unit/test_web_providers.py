"""Search providers: what they are asked, what is made of what they say, and what comes of their failures.

The answers are written by hand after the providers' documentation.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from support.web_servers import Page, Request, Site

from treadle.agent.web import provider_requests, providers
from treadle.agent.web.config import ProviderSettings
from treadle.agent.web.passages import clean_line
from treadle.agent.web.provider_requests import failure_of, hits_of, request_of
from treadle.agent.web.providers import EMPTY_TRIES, QUOTA_REST_S, RATE_REST_S, WebProvider
from treadle.agent.web.types import MAX_HITS, QueryRefused, WebHit
from treadle.core.errors import ConfigError, ToolError
from treadle.core.llm.wire import Failure
from treadle.retriever.client import SearchUnavailable

SERPER = ProviderSettings(type="serper", api_key_envs=("KEY_A",))
BRAVE = ProviderSettings(type="brave", api_key_envs=("KEY_A",))
BING = ProviderSettings(type="bright_data", api_key_envs=("KEY_A",), zone="serp_1")
GOOGLE = ProviderSettings(type="bright_data", api_key_envs=("KEY_A",), zone="serp_1", engine="google")
SEARXNG = ProviderSettings(type="searxng", url="http://localhost:8888")
ENVIRON = {"KEY_A": "secret-a-111", "KEY_B": "secret-b-222"}
KEY = ENVIRON["KEY_A"]

TOWER = WebHit("Eiffel Tower", "https://example.org/tower", "The tower is 330 metres tall.", "", "2024-05-01")
ANSWERS: dict[str, tuple[ProviderSettings, dict[str, Any], tuple[WebHit, ...]]] = {
    "serper": (
        SERPER,
        {
            "searchParameters": {"q": "eiffel tower", "gl": "us", "hl": "en", "num": 10, "type": "search"},
            "knowledgeGraph": {"title": "Eiffel Tower", "type": "Tower in Paris", "website": "https://example.org/k"},
            "organic": [
                {
                    "title": "Eiffel Tower",
                    "link": "https://example.org/tower",
                    "snippet": "The tower is 330 metres tall.",
                    "date": "2024-05-01",
                    "sitelinks": [{"title": "Tickets", "link": "https://example.org/tickets"}],
                    "position": 1,
                },
                {"title": "No link", "snippet": "nothing", "position": 2},
            ],
            "peopleAlsoAsk": [{"question": "How tall?", "link": "https://example.org/ask"}],
            "credits": 1,
        },
        (TOWER,),
    ),
    "brave": (
        BRAVE,
        {
            "type": "search",
            "query": {"original": "eiffel tower", "more_results_available": True},
            "web": {
                "type": "search",
                "results": [
                    {
                        "title": "Eiffel Tower &amp; <strong>more</strong>",
                        "url": "https://example.org/tower",
                        "description": "It&#x27;s <strong>330 metres</strong> tall.",
                        "page_age": "2024-05-01T00:00:00",
                        "age": "May 1, 2024",
                        "profile": {"name": "Example", "url": "https://example.org", "long_name": "example.org"},
                    }
                ],
            },
            "videos": {"type": "videos", "results": [{"title": "A video", "url": "https://example.org/video"}]},
        },
        (
            WebHit(
                "Eiffel Tower & more", "https://example.org/tower", "It's 330 metres tall.", "example.org",
                "2024-05-01T00:00:00",
            ),
        ),
    ),
    "bright_data": (
        BING,
        {
            "general": {"search_engine": "bing", "query": "eiffel tower", "language": "en"},
            "organic": [
                {
                    "link": "https://example.org/tower",
                    "display_link": "https://example.org",
                    "title": "Eiffel Tower",
                    "description": "The tower is 330 metres tall.",
                    "date": "2024-05-01",
                    "rank": 1,
                    "global_rank": 2,
                }
            ],
            "top_ads": [{"link": "https://example.org/ad", "title": "Buy a tower"}],
        },
        (TOWER,),
    ),
    "searxng": (
        SEARXNG,
        {
            "query": "eiffel tower",
            "number_of_results": 0,
            "results": [
                {
                    "url": "https://example.org/tower",
                    "title": "Eiffel Tower",
                    "content": "The tower is 330 metres tall.",
                    "publishedDate": "2024-05-01",
                    "engine": "bing",
                    "engines": ["bing"],
                    "category": "general",
                },
                {"url": "https://example.org/other", "title": "Other", "content": "", "publishedDate": None},
            ],
            "answers": [],
            "unresponsive_engines": [["duckduckgo", "timeout"]],
        },
        (TOWER, WebHit("Other", "https://example.org/other", "")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_organic_hits_are_read_and_nothing_else(name: str) -> None:
    settings, answer, hits = ANSWERS[name]
    assert hits_of(settings, json.dumps(answer).encode()) == hits


def test_an_answer_of_bright_data_may_come_in_an_envelope() -> None:
    settings, answer, hits = ANSWERS["bright_data"]
    enveloped = {"status_code": 200, "headers": {}, "body": json.dumps(answer)}
    assert hits_of(settings, json.dumps(enveloped).encode()) == hits


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        (SERPER, {"searchParameters": {"q": "x"}, "organic": []}),
        (SERPER, {"searchParameters": {"q": "x"}}),
        (BRAVE, {"type": "search", "query": {"original": "x"}}),
        (BING, {"general": {"query": "x"}}),
        (SEARXNG, {"query": "x", "results": [], "unresponsive_engines": []}),
    ],
)
def test_nothing_found_is_no_failure(settings: ProviderSettings, answer: dict[str, Any]) -> None:
    assert hits_of(settings, json.dumps(answer).encode()) == ()


def test_nothing_found_while_engines_are_silent_is_one() -> None:
    answer = {"query": "x", "results": [], "unresponsive_engines": [["google", "Suspended: CAPTCHA"]]}
    with pytest.raises(Failure, match="CAPTCHA") as caught:
        hits_of(SEARXNG, json.dumps(answer).encode())
    assert caught.value.kind == "server"


@pytest.mark.parametrize(
    "data",
    [
        b"", b"<html>", b"[]", b"null", b"3", b'{"organic": 3}', b'{"organic": ["text"]}', b'{"web": []}', b"{}",
        b'{"organic": [{"link": "https://e.org"}', b"[" * 100_000, b"\xff\xfe", b'{"message": "hello"}',
        b'{"organic": [], "results": [], "more": [' + b"[]," * 50_000 + b"[]]}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("settings", [SERPER, BRAVE, BING, SEARXNG], ids=lambda settings: str(settings.type))
def test_anything_else_is_malformed(settings: ProviderSettings, data: bytes) -> None:
    with pytest.raises(Failure) as caught:
        hits_of(settings, data)
    assert caught.value.kind == "malformed"


def test_hits_are_cut_to_bounds_and_cleaned() -> None:
    hit = {"title": "t" * 9_999, "link": "https://e.org", "snippet": "s\u202e\x1b " * 9_999, "date": 3}
    items = [
        hit,
        {"link": "https://e.org/" + "u" * 2_048},
        {"link": 7},
        *({"link": f"https://e.org/{i}"} for i in range(50)),
    ]
    hits = hits_of(SERPER, json.dumps({"organic": items}).encode())
    assert len(hits) == MAX_HITS and [len(hits[0].title), len(hits[0].snippet)] <= [500, 5_000]
    assert "\u202e" not in hits[0].snippet and "\x1b" not in hits[0].snippet and hits[0].date == ""
    assert hits[1].url == "https://e.org/0"


def test_no_more_hits_are_made_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[str]()

    def noted(text: str) -> str:
        made.append(text)
        return clean_line(text)

    monkeypatch.setattr(provider_requests, "clean_line", noted)
    items = [{"link": f"https://e.org/{i}", "title": str(i)} for i in range(5_000)]
    assert len(hits_of(SERPER, json.dumps({"organic": items}).encode())) == len(made) == MAX_HITS


def test_half_a_character_in_one_title_costs_no_answer() -> None:
    (hit,) = hits_of(SERPER, b'{"organic": [{"title": "a\\ud800b", "link": "https://e.org", "snippet": "s"}]}')
    assert (hit.title, hit.snippet) == ("ab", "s")
    data = b'{"organic": [{"title": "\\udc00 \\ud83d\\ude00 \\\\ud800 \\"\\ud800", "link": "https://e.org"}]}'
    (hit,) = hits_of(SERPER, data)
    assert hit.title == '\U0001f600 \\ud800 "'


@pytest.mark.parametrize(
    ("language", "serper", "brave", "market", "searxng"),
    [
        ("en", {"gl": "us", "hl": "en"}, {"country": "US", "search_lang": "en"}, ("us", "en-US"), "en-US"),
        ("zh", {"gl": "cn", "hl": "zh-cn"}, {"country": "CN", "search_lang": "zh-hans"}, ("cn", "zh-CN"), "zh-CN"),
    ],
)  # fmt: skip
def test_requests_carry_the_query_its_language_and_the_key(
    language: Any, serper: dict[str, str], brave: dict[str, str], market: tuple[str, str], searxng: str
) -> None:
    query = "C++ & 100% +埃菲尔 #1"
    asked = request_of(SERPER, query, language, KEY)
    assert (asked.method, asked.url, asked.headers["X-API-KEY"]) == ("POST", "https://google.serper.dev/search", KEY)
    assert json.loads(asked.body) == {"q": query, **serper, "num": 10}

    asked = request_of(BRAVE, query, language, KEY)
    assert asked.url.startswith("https://api.search.brave.com/res/v1/web/search?")
    sent = values(asked.url)
    assert sent["q"] == query and sent["count"] == "10" and sent.items() >= brave.items()
    assert asked.headers["X-Subscription-Token"] == KEY and asked.method == "GET" and KEY not in asked.url

    asked = request_of(BING, query, language, KEY)
    body = json.loads(asked.body)
    assert (asked.url, body["zone"], body["format"]) == ("https://api.brightdata.com/request", "serp_1", "raw")
    assert asked.headers["Authorization"] == f"Bearer {KEY}"
    sent = values(body["url"])
    assert body["url"].startswith("https://www.bing.com/search?") and sent["brd_json"] == "1" and sent["count"] == "11"
    assert (sent["q"], sent["cc"], sent["setLang"], sent["mkt"]) == (query, market[0], market[1], market[1])
    sent = values(json.loads(request_of(GOOGLE, query, language, KEY).body)["url"])
    assert sent["q"] == query and sent.items() >= serper.items()

    asked = request_of(SEARXNG, query, language, "")
    assert asked.url.startswith("http://localhost:8888/search?") and "Authorization" not in asked.headers
    assert values(asked.url) == {"q": query, "format": "json", "language": searxng}


def values(url: str) -> dict[str, str]:
    return {name: value for name, (value,) in parse_qs(urlsplit(url).query, strict_parsing=True).items()}


def test_a_query_is_cut_to_what_brave_takes() -> None:
    asked = values(request_of(BRAVE, "word " * 300, "en", KEY).url)["q"]
    assert len(asked.split()) == 50
    assert len(values(request_of(BRAVE, "x" * 900, "en", KEY).url)["q"]) == 400


def test_a_request_does_not_show_its_key() -> None:
    assert KEY not in repr([request_of(settings, "q", "en", KEY) for settings in (SERPER, BRAVE, BING, SEARXNG)])


def test_names_tell_engines_apart() -> None:
    assert BING.name == "bright_data/bing" != GOOGLE.name


RATE_LIMITED = (
    b'{"type":"ErrorResponse","error":{"code":"RATE_LIMITED","detail":"Request rate limit exceeded for plan.",\
"meta":{"plan":"Free","rate_limit":1,"rate_current":1,"quota_limit":2000,"quota_current":1}}}'
)


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "seconds"),
    [
        (429, {"Retry-After": "7"}, b"slow down", "rate_limit", 7.0),
        (429, {}, b"slow down", "rate_limit", None),
        (429, {"X-RateLimit-Remaining": "0, 1999", "X-RateLimit-Reset": "1, 1419704"}, RATE_LIMITED, "rate_limit", 1.0),
        (429, {"X-RateLimit-Remaining": "0, x", "X-RateLimit-Reset": "-"}, RATE_LIMITED, "rate_limit", None),
        (429, {}, b'{"error":{"code":"QUOTA_LIMITED"}}', "quota", None),
        (402, {}, b"", "quota", None),
        (400, {}, b'{"message":"Not enough credits","statusCode":400}', "quota", None),
        (401, {}, b"", "key", None),
        (403, {}, b'{"message":"Unauthorized.","statusCode":403}', "key", None),
        (422, {}, b'{"error":{"code":"SUBSCRIPTION_TOKEN_INVALID","status":422}}', "key", None),
        (422, {}, b'{"error":{"code":"VALIDATION","status":422}}', "query", None),
        (400, {}, b'{"message":"Query pattern not allowed for free accounts."}', "query", None),
        (500, {}, b"", "server", None),
        (503, {"Retry-After": "9"}, b"", "rate_limit", 9.0),
        (408, {}, b"", "server", None),
        (302, {"Location": "https://elsewhere"}, b"", "refused", None),
        (404, {}, b"", "refused", None),
    ],
)  # fmt: skip
def test_failures_are_told_apart(
    status: int, headers: dict[str, str], body: bytes, kind: str, seconds: float | None
) -> None:
    failure = failure_of(status, headers, body)
    assert (failure.kind, failure.retry_after_s) == (kind, seconds)


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
async def test_a_query_that_an_error_repeats_costs_no_key(query: str, status: int, body: Any) -> None:
    def answer(request: Request) -> Page:
        asked = json.dumps(json.loads(request.body)["q"])[1:-1]
        return Page(json.dumps(body).replace("{}", asked), status) if "eiffel" not in asked else GOOD

    with Site({"/search": answer}) as site:
        asked = provider(site, day := Day(), "KEY_A", "KEY_B")
        for _ in range(3):
            with pytest.raises(SearchUnavailable, match="refuses a query"):
                await asked.search(query, "en", deadline=60.0)
        assert await found(asked) == (TOWER,) and day.now < 1.0
        assert sorted(set(keys_sent(site))) == sorted(ENVIRON.values())


class Day:
    """A clock that only pauses set on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


GOOD = Page(json.dumps(ANSWERS["serper"][1]), media_type="application/json")
NOTHING = Page('{"searchParameters": {}, "organic": []}', media_type="application/json")
Script = list[Page | Callable[[Request], Page]]


def scripted(*answers: Page) -> Callable[[Request], Page]:
    """Answers in order; the last is repeated."""
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def provider(site: Site, day: Day, *names: str, **changed: Any) -> WebProvider:
    settings = ProviderSettings(
        type="serper", url=site.url("/search"), api_key_envs=names or ("KEY_A",),
        max_queries_per_s=1e9, **changed,
    )  # fmt: skip
    return WebProvider(settings, environ=ENVIRON, clock=day, sleep=day.sleep)


async def found(asked: WebProvider, deadline: float = 60.0) -> tuple[WebHit, ...]:
    try:
        return await asked.search("eiffel tower", "en", deadline=deadline)
    finally:
        await asked.close()


def keys_sent(site: Site) -> list[str]:
    return [request.headers["x-api-key"] for request in site.requests]


async def test_a_search_is_one_request() -> None:
    with Site({"/search": GOOD}) as site:
        asked = provider(site, Day())
        assert asked.name == "serper" and await found(asked) == (TOWER,)
        (request,) = site.requests
        assert json.loads(request.body)["q"] == "eiffel tower" and request.headers["accept-encoding"] == "identity"


async def test_nothing_found_is_asked_for_again_and_then_believed() -> None:
    with Site({"/search": NOTHING}) as site:
        assert await found(provider(site, Day())) == () and len(site.requests) == EMPTY_TRIES
    with Site({"/search": scripted(NOTHING, GOOD)}) as site:
        assert await found(provider(site, Day())) == (TOWER,) and len(site.requests) == 2


async def test_a_key_over_its_rate_gives_its_turn_to_the_next_at_once() -> None:
    with Site({"/search": scripted(Page("slow down", 429, headers={"Retry-After": "20"}), GOOD)}) as site:
        day = Day()
        assert await found(provider(site, day, "KEY_A", "KEY_B")) == (TOWER,)
        assert keys_sent(site) == [ENVIRON["KEY_A"], ENVIRON["KEY_B"]] and day.now == pytest.approx(0, abs=1e-6)


async def test_where_all_keys_rest_the_first_to_be_ready_is_waited_for() -> None:
    slow = [Page("slow down", 429, headers={"Retry-After": seconds}) for seconds in ("20", "8")]
    with Site({"/search": scripted(*slow, GOOD)}) as site:
        day = Day()
        assert await found(provider(site, day, "KEY_A", "KEY_B")) == (TOWER,)
        assert keys_sent(site)[2] == ENVIRON["KEY_B"] and day.now == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("answer", "rest_s"),
    [
        (Page("slow down", 429), RATE_REST_S),
        (Page("pay", 402), QUOTA_REST_S),
        (Page("", 429, headers={"Retry-After": "0"}), 1.0),
    ],
)
async def test_keys_rest_as_long_as_they_must(answer: Page, rest_s: float) -> None:
    with Site({"/search": scripted(answer, GOOD)}) as site:
        day = Day()
        assert await found(provider(site, day), deadline=10_000.0) == (TOWER,) and day.now == pytest.approx(rest_s)


async def test_a_rest_beyond_the_deadline_is_not_waited_for() -> None:
    with Site({"/search": Page("slow down", 429, headers={"Retry-After": "61"})}) as site:
        day = Day()
        with pytest.raises(SearchUnavailable, match="all keys rest; HTTP 429: slow down"):
            await found(provider(site, day))
        assert day.pauses == [] and len(site.requests) == 1


async def test_refused_keys_are_dropped_and_a_provider_that_takes_none_stops_everything() -> None:
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


async def test_errors_that_may_pass_are_tried_again_after_growing_pauses() -> None:
    errors = [Page("", 500), Page("not JSON"), Page("", 502)]
    with Site({"/search": scripted(*errors, GOOD)}) as site:
        day = Day()
        assert await found(provider(site, day)) == (TOWER,) and len(site.requests) == 4
        assert len(day.pauses) == 3
        for pause, most in zip(day.pauses, (0.5, 1.0, 2.0), strict=True):
            assert most / 2 <= pause <= most


async def test_a_provider_that_keeps_failing_is_unavailable() -> None:
    with Site({"/search": Page("out of order", 500)}) as site:
        with pytest.raises(SearchUnavailable, match="HTTP 500: out of order") as caught:
            await found(provider(site, Day(), "KEY_A", "KEY_B", retry_limit=1))
        assert caught.value.retryable and keys_sent(site) == [ENVIRON["KEY_A"], ENVIRON["KEY_B"]] * 2


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with Site({}) as site:
        gone = provider(site, Day(), retry_limit=1)
    with pytest.raises(SearchUnavailable, match="serper does not answer"):
        await found(gone)


async def test_a_slow_provider_is_given_up_at_the_deadline() -> None:
    with Site({"/search": GOOD}) as site:
        site.hold("/search")
        with pytest.raises(SearchUnavailable, match="in time"):
            await found(provider(site, Day()), deadline=0.05)


async def test_a_slow_answer_is_asked_for_again() -> None:
    with Site({"/search": GOOD}) as site:
        site.hold("/search")
        with pytest.raises(SearchUnavailable, match=r"no answer in 0\.05 s"):
            await found(provider(site, Day(), retry_limit=1, request_timeout_s=0.05))
        assert len(site.requests) == 2


async def test_a_refused_query_is_owed_and_a_wrong_address_is_not() -> None:
    with Site({"/search": Page('{"message": "Query not allowed"}', 400)}) as site:
        with pytest.raises(SearchUnavailable, match="refuses a query, and others as well: HTTP 400"):
            await found(provider(site, Day()))
        assert [json.loads(request.body)["q"] for request in site.requests] == ["eiffel tower", "weather"]
    with Site({}) as site:
        with pytest.raises(ToolError, match="check its url") as caught:
            await found(provider(site, Day()))
        assert not caught.value.retryable and len(site.requests) == 2


def refusing(*weather: Page, body: str = '{"message": "Query pattern not allowed"}') -> Site:
    """A provider that refuses `bad 403` with 403; `weather` are its answers in order to that query, then good ones."""
    plain = scripted(*weather, GOOD)

    def answer(request: Request) -> Page:
        word, _, status = json.loads(request.body)["q"].partition(" ")
        return plain(request) if word == "weather" else Page(body, int(status)) if word == "bad" else GOOD

    return Site({"/search": answer})


def queries_sent(site: Site) -> list[str]:
    return [json.loads(request.body)["q"] for request in site.requests]


@pytest.mark.parametrize("before", [(), ("good",)], ids=["first", "after a good one"])
async def test_a_query_that_is_refused_where_another_is_not_is_lastingly_refused_and_costs_no_key(
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
async def test_a_key_that_is_tried_at_a_bad_moment_is_kept(
    status: int, passing: Page, caplog: pytest.LogCaptureFixture
) -> None:
    with refusing(passing) as site:
        asked, bad = provider(site, day := Day()), f"bad {status}"
        await asked.search("good", "en", deadline=60.0)
        with pytest.raises(QueryRefused, match=f"HTTP {status}"):
            await asked.search(bad, "en", deadline=60.0)
        assert await found(asked) == (TOWER,) and day.now > 0 and not caplog.records
        assert queries_sent(site) == ["good", bad, "weather", bad, "weather", "eiffel tower"]


async def test_a_refused_query_is_owed_where_its_key_cannot_be_tried_in_time() -> None:
    with refusing(Page("slow down", 429, headers={"Retry-After": "61"})) as site:
        asked = provider(site, Day())
        with pytest.raises(SearchUnavailable, match="all keys rest; HTTP 429"):
            await asked.search("bad 403", "en", deadline=60.0)
        await asked.close()
    with refusing(*[Page("out of order", 500)] * 9) as site:
        asked = provider(site, Day(), retry_limit=1)
        with pytest.raises(SearchUnavailable, match="does not answer; HTTP 500"):
            await asked.search("bad 404", "en", deadline=60.0)
        await asked.close()


async def test_a_key_that_is_refused_in_the_middle_of_a_run_is_dropped() -> None:
    def answer(request: Request) -> Page:
        return Page("Forbidden", 403) if len(site.requests) > 1 else GOOD

    with Site({"/search": answer}) as site:
        asked = provider(site, Day())
        assert await asked.search("q", "en", deadline=60.0) == (TOWER,)
        with pytest.raises(ToolError, match="refuses all keys, those in KEY_A"):
            await found(asked)
        assert queries_sent(site) == ["q", "eiffel tower", "weather"]


async def test_redirects_are_not_followed() -> None:
    with Site({"/": GOOD}) as elsewhere:
        away = Page("", 302, headers={"Location": elsewhere.url("/")})
        with Site({"/search": away}) as site, pytest.raises(ToolError, match="HTTP 302"):
            await found(provider(site, Day()))
        assert elsewhere.requests == []


async def test_searches_start_at_the_rate_that_is_allowed() -> None:
    with Site({"/search": GOOD}) as site:
        day = Day()
        settings = ProviderSettings(
            type="serper", url=site.url("/search"), api_key_envs=("KEY_A",), max_queries_per_s=4
        )  # fmt: skip
        asked = WebProvider(settings, environ=ENVIRON, clock=day, sleep=day.sleep)
        for _ in range(3):
            await asked.search("q", "en", deadline=60.0)
        assert day.now == pytest.approx(0.5)
        with pytest.raises(SearchUnavailable, match="not asked in time"):
            await asked.search("q", "en", deadline=0.6)
        await asked.close()


@pytest.mark.parametrize("kind", ["serper", "brave", "searxng"])
@pytest.mark.parametrize("status", [200, 401, 404, 500])
async def test_a_key_that_the_provider_repeats_is_not_passed_on(
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
async def test_a_key_in_another_spelling_becomes_no_hit(spelling: str, field: str) -> None:
    key = "sk-AbCd/12+34=567890xyz"
    hit = {"link": "https://e.org/", "title": "t", field: "https://e.org/KEY"}
    with Site({"/search": Page(json.dumps({"organic": [hit]}).replace("KEY", SPELLINGS[spelling](key)))}) as site:
        settings = ProviderSettings(type="serper", url=site.url("/search"), api_key_envs=("K",), retry_limit=0)
        asked = WebProvider(settings, environ={"K": key}, clock=Day())
        with pytest.raises(SearchUnavailable, match="repeats the key") as caught:
            await found(asked)
    assert key not in str(caught.value)


@pytest.mark.parametrize("spelling", [*SPELLINGS, "cut off", "two ways at once"])
async def test_why_a_query_was_refused_does_not_hold_the_key(spelling: str) -> None:
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


async def test_a_key_that_an_answer_spells_with_escapes_beside_its_hits_is_not_passed_on() -> None:
    said = "".join(f"\\u{ord(char):04x}" for char in KEY)
    with Site({"/search": Page('{"results": [], "unresponsive_engines": ["' + said + '"]}')}) as site:
        settings = ProviderSettings(type="searxng", url=site.url("/"), api_key_envs=("KEY_A",), retry_limit=0)
        with pytest.raises(SearchUnavailable, match="repeats the key") as caught:
            await found(WebProvider(settings, environ=ENVIRON, clock=Day()))
    error: BaseException | None = caught.value
    while error is not None:
        assert KEY not in str(error)
        error = error.__context__


async def test_answers_are_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[threading.Thread]()

    def noted(settings: ProviderSettings, data: bytes) -> tuple[WebHit, ...]:
        threads.append(threading.current_thread())
        return hits_of(settings, data)

    monkeypatch.setattr(providers, "hits_of", noted)
    with Site({"/search": GOOD}) as site:
        assert await found(provider(site, Day())) == (TOWER,)
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


async def test_an_answer_has_a_mebibyte_at_most() -> None:
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


async def test_a_variable_without_a_key_is_named() -> None:
    with pytest.raises(ConfigError, match="KEY_Z is not set"):
        WebProvider(ProviderSettings(type="serper", api_key_envs=("KEY_Z",)), environ=ENVIRON)


async def test_a_searxng_of_ones_own_needs_no_key() -> None:
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
