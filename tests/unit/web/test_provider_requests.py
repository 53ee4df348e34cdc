"""Requests to search providers, and parsing of their responses."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.web.web_answers import (
    ANSWERS,
    BING,
    BRAVE,
    GOOGLE,
    KEY,
    SEARXNG,
    SERPER,
)

from treadle.core.llm.failures import Failure
from treadle.web import provider_requests
from treadle.web.config import ProviderSettings
from treadle.web.pages.passages import clean_line
from treadle.web.provider_requests import failure_of, hits_of, request_of
from treadle.web.types import MAX_HITS


@pytest.mark.parametrize("name", ANSWERS)
def test_only_organic_hits_are_read(name: str) -> None:
    settings, answer, hits = ANSWERS[name]
    assert hits_of(settings, json.dumps(answer).encode()) == hits


def test_bright_data_answer_may_have_an_envelope() -> None:
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
def test_empty_answer_is_not_a_failure(settings: ProviderSettings, answer: dict[str, Any]) -> None:
    assert hits_of(settings, json.dumps(answer).encode()) == ()


def test_empty_answer_with_unresponsive_engines_is_a_failure() -> None:
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


def test_hits_are_truncated_and_cleaned() -> None:
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


def test_parses_no_more_hits_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[str]()

    def noted(text: str) -> str:
        made.append(text)
        return clean_line(text)

    monkeypatch.setattr(provider_requests, "clean_line", noted)
    items = [{"link": f"https://e.org/{i}", "title": str(i)} for i in range(5_000)]
    assert len(hits_of(SERPER, json.dumps({"organic": items}).encode())) == len(made) == MAX_HITS


def test_lone_surrogate_in_one_title_does_not_reject_the_answer() -> None:
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
def test_requests_contain_the_query_its_language_and_the_key(
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


def test_query_is_truncated_to_what_brave_accepts() -> None:
    asked = values(request_of(BRAVE, "word " * 300, "en", KEY).url)["q"]
    assert len(asked.split()) == 50
    assert len(values(request_of(BRAVE, "x" * 900, "en", KEY).url)["q"]) == 400


def test_request_does_not_show_its_key() -> None:
    assert KEY not in repr([request_of(settings, "q", "en", KEY) for settings in (SERPER, BRAVE, BING, SEARXNG)])


def test_provider_names_distinguish_engines() -> None:
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
def test_failures_are_classified(
    status: int, headers: dict[str, str], body: bytes, kind: str, seconds: float | None
) -> None:
    failure = failure_of(status, headers, body)
    assert (failure.kind, failure.retry_after_s) == (kind, seconds)
