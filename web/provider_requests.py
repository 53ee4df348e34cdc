"""Build requests to search providers and parse their answers and failures. Pure; nothing is sent.

Answers are untrusted: any answer results in bounded hits or in a `Failure`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any
from urllib.parse import unquote, urlencode

import orjson

from treadle.core.llm.failures import Failure, excerpt, parse_retry_after
from treadle.core.untrusted.json_text import load_json
from treadle.web.config import ProviderSettings
from treadle.web.pages.passages import clean_line
from treadle.web.types import (
    MAX_HITS,
    MAX_NAME_CHARS,
    MAX_SNIPPET_CHARS,
    MAX_TITLE_CHARS,
    MAX_URL_CHARS,
    Language,
    WebHit,
)

NUM_RESULTS = 10
"""Default number of requested hits. Bing is asked for one more."""
_MAX_PARTS = 50_000
"""Most lists and objects in an answer. Parsing more takes 0.1 s or longer in one go and blocks all other threads."""

_OWN_URLS = {
    "serper": "https://google.serper.dev/search",
    "brave": "https://api.search.brave.com/res/v1/web/search",
    "bright_data": "https://api.brightdata.com/request",
}
_BRAVE_RESULTS = 20
"""Largest number of hits that Brave returns."""
_BRAVE_QUERY_CHARS = 400
_BRAVE_QUERY_WORDS = 50

_QUOTA_CODES = frozenset({"QUOTA_LIMITED"})
_KEY_REFUSED_CODES = frozenset({"SUBSCRIPTION_TOKEN_INVALID", "SUBSCRIPTION_NOT_FOUND"})
_QUOTA_MESSAGE = re.compile(
    r"(?:you (?:have|do not have|don't have) )?(?:not enough|enough|out of|no|insufficient) (?:credits?|balance|funds?)"
    r"|(?:your |the )?(?:monthly |daily |api )?quota (?:has been |is )?(?:exceeded|exhausted)"
    r"|(?:you have |you've )?exceeded (?:your|the) (?:current |monthly |daily |api )?quota",
    re.IGNORECASE,
)
"""Pattern of a message about an exhausted quota; it must match the whole message, since a part may be the query."""
_TAG = re.compile(r"</?strong>")
_UNICODE = re.compile(r"\\u([0-9a-fA-F]{4})")
_READ_BYTES = 8_192
_HIDDEN_IN_MESSAGES = "(not shown, as it repeats the key)"
_MAX_READINGS = 4
"""Number of forms of a text that are searched for the key: unchanged, decoded from URL and HTML, decoded twice, ..."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request to a provider. `repr` omits the headers, since they contain the key."""

    method: str
    url: str
    headers: dict[str, str] = field(repr=False)
    body: bytes = b""


def request_of(
    settings: ProviderSettings, query: str, language: Language, key: str, num_results: int = NUM_RESULTS
) -> Request:
    """Return the request for a query in the provider's format; `key` may be empty for SearXNG.

    SearXNG returns as many hits as its engines do.
    """
    url = settings.url or _OWN_URLS.get(settings.type, "")
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "treadle"}
    chinese = language == "zh"
    if settings.type == "serper":
        locale = {"gl": "cn", "hl": "zh-cn"} if chinese else {"gl": "us", "hl": "en"}
        body = orjson.dumps({"q": query, **locale, "num": num_results})
        return Request("POST", url, {**headers, "X-API-KEY": key, "Content-Type": "application/json"}, body)
    if settings.type == "brave":
        locale = {"country": "CN", "search_lang": "zh-hans"} if chinese else {"country": "US", "search_lang": "en"}
        asked = " ".join(query[:_BRAVE_QUERY_CHARS].split()[:_BRAVE_QUERY_WORDS])
        options = {
            **locale,
            "count": min(num_results, _BRAVE_RESULTS),
            "result_filter": "web",
            "text_decorations": "false",
        }
        return Request("GET", f"{url}?{urlencode({'q': asked, **options})}", {**headers, "X-Subscription-Token": key})
    if settings.type == "bright_data":
        body = orjson.dumps(
            {"zone": settings.zone, "url": _engine_url(settings, query, chinese, num_results), "format": "raw"}
        )
        authorized = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        return Request("POST", url, {**headers, **authorized}, body)
    options = {"q": query, "format": "json", "language": "zh-CN" if chinese else "en-US"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return Request("GET", f"{url.removesuffix('/search')}/search?{urlencode(options)}", headers)


def _engine_url(settings: ProviderSettings, query: str, chinese: bool, num_results: int) -> str:
    """Return the URL of the search engine's page that Bright Data fetches and returns as JSON."""
    if settings.engine == "google":
        locale = {"gl": "cn", "hl": "zh-cn"} if chinese else {"gl": "us", "hl": "en"}
        return f"https://www.google.com/search?{urlencode({'q': query, **locale, 'num': num_results, 'brd_json': 1})}"
    market = "zh-CN" if chinese else "en-US"
    options = {"cc": "cn" if chinese else "us", "setLang": market, "mkt": market, "count": num_results + 1}
    return f"https://www.bing.com/search?{urlencode({'q': query, **options, 'brd_json': 1})}"


def hits_of(settings: ProviderSettings, data: bytes, most: int = MAX_HITS) -> tuple[WebHit, ...]:
    """Return the organic hits of an answer with status 200, best first, at most `most`.

    Raises Failure of kind `malformed`, or of kind `server` if SearXNG found nothing because its engines did not answer.
    """
    answer = _parsed(data)
    if not isinstance(answer, dict):
        raise Failure("malformed", "the answer is not a JSON object")
    if settings.type == "bright_data" and isinstance(answer.get("body"), str) and "organic" not in answer:
        answer = _parsed(answer["body"].encode("utf-8", "replace"))
    hits = organic_hits(answer, most)
    if hits is None:
        said = excerpt(data)
        raise Failure("malformed", f"the answer holds no list of hits: {said}")
    if settings.type == "searxng" and not hits and isinstance(answer, dict) and answer.get("unresponsive_engines"):
        silent = excerpt(orjson.dumps(answer["unresponsive_engines"]))
        raise Failure("server", f"no hits, and these engines did not answer: {silent}")
    if settings.type == "brave":
        hits = tuple(replace(hit, title=_plain(hit.title), snippet=_plain(hit.snippet)) for hit in hits)
    return hits


def organic_hits(answer: Any, most: int = MAX_HITS) -> tuple[WebHit, ...] | None:
    """Return the hits of an answer in any known format, leaving out hits without a usable URL.

    Known are a list, and an object with `organic`, `results`, `web.results` or `webPages.value`. Returns None if the
    answer has another format, or if a hit is not an object.
    """
    found = answer
    if isinstance(answer, dict):
        # An answer without hits omits its list, but other keys still identify it as an answer.
        for path in (("organic",), ("results",), ("web", "results"), ("webPages", "value")):
            found = _at(answer, path)
            if found is not None:
                break
        else:
            is_answer = "searchParameters" in answer or answer.get("type") == "search" or "general" in answer
            return () if is_answer else None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        return None
    # Stops at the limit: an answer may list a hundred thousand hits.
    hits = filter(None, map(_hit, found))
    return tuple(islice(hits, most))


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _hit(item: dict[str, Any]) -> WebHit | None:
    url = item.get("link") if isinstance(item.get("link"), str) else item.get("url")
    if not isinstance(url, str) or not url.strip() or len(url) > MAX_URL_CHARS:
        return None
    return WebHit(
        title=_text(item, "title", "name", limit=MAX_TITLE_CHARS),
        url=url.strip().encode("utf-8", "replace").decode(),
        snippet=_text(item, "snippet", "description", "content", limit=MAX_SNIPPET_CHARS),
        site_name=_text(item, "site_name", "siteName", "source", limit=MAX_NAME_CHARS)
        or _text(_at(item, ("profile",)) or {}, "long_name", "name", limit=MAX_NAME_CHARS),
        date=_text(item, "date", "page_age", "publishedDate", "datePublished", "age", limit=MAX_NAME_CHARS),
    )


def _text(item: Any, *names: str, limit: int) -> str:
    """Return the first of some values that is non-blank text, on one line and truncated."""
    for name in names:
        value = item.get(name) if isinstance(item, dict) else None
        if isinstance(value, str) and value.strip():
            return clean_line(value[: 4 * limit].encode("utf-8", "replace").decode())[:limit]
    return ""


def _plain(text: str) -> str:
    """Return text from Brave without its `<strong>` tags and HTML escapes."""
    return clean_line(html.unescape(_TAG.sub("", text)))


def _parsed(data: bytes) -> Any:
    if data.count(b"[") + data.count(b"{") > _MAX_PARTS:
        raise Failure("malformed", f"the answer has more than {_MAX_PARTS:,} parts")
    try:
        return load_json(data)
    except orjson.JSONDecodeError:
        raise Failure("malformed", "the answer is not JSON") from None


def repeats_key(hits: Iterable[WebHit], key: str) -> bool:
    """Return whether hits contain the API key, unchanged or as URLs and HTML encode it."""
    return _spell((text for hit in hits for text in (hit.title, hit.url, hit.snippet, hit.site_name, hit.date)), key)


def without_key(failure: Failure, data: bytes, key: str) -> Failure:
    """Return a failure whose message does not contain the API key, nor a part of it.

    The key may be unchanged, or encoded as in URLs, HTML or JSON.
    """
    # Reads more of the answer than messages quote, so that no key is cut in two where the quote ends.
    texts = [data[:_READ_BYTES].decode("utf-8", "replace"), str(failure)]
    texts += [_UNICODE.sub(lambda escape: chr(int(escape[1], 16)), text).replace("\\/", "/") for text in texts]
    if not _spell(texts, key):
        return failure
    status = re.match(r"HTTP \d{3}: ", str(failure))
    return Failure(failure.kind, f"{status[0] if status else ''}{_HIDDEN_IN_MESSAGES}", failure.retry_after_s)


def _spell(texts: Iterable[str], key: str) -> bool:
    return any(key.casefold() in spelled.casefold() for text in texts for spelled in _readings(text))


def _readings(text: str) -> Iterator[str]:
    for _ in range(_MAX_READINGS):
        yield clean_line(text)
        read = html.unescape(unquote(text))
        if read == text:
            return
        text = read


def failure_of(status: int, headers: Mapping[str, str], data: bytes, query: str = "") -> Failure:
    """Classify an answer with a status other than 200.

    The kind is `rate_limit` or `quota` if the key must pause, and `server` if the error is retryable. The other kinds
    are provisional, since the query itself may be refused; a plain query then decides. If that one fails too, `key`
    means that the key is refused, `refused` that every request is, and `query` that the cause is unknown. Statements
    about a key are only read from fields that cannot contain the query.
    """
    said = f"HTTP {status}: {excerpt(data)}"
    code, message = _code_and_message(data)
    is_quota = code in _QUOTA_CODES or (
        _QUOTA_MESSAGE.fullmatch(message) is not None and message.casefold() not in query.casefold()
    )
    if status == 402 or (status in (400, 403, 429) and is_quota):
        return Failure("quota", said)
    if status == 429:
        return Failure("rate_limit", said, _pause_s(headers))
    if status == 503 and (seconds := parse_retry_after(headers.get("Retry-After"))) is not None:
        return Failure("rate_limit", said, seconds)
    if status in (401, 403) or (status in (400, 422) and code in _KEY_REFUSED_CODES):
        return Failure("key", said)
    if status >= 500 or status == 408:
        return Failure("server", said)
    return Failure("query" if status in (400, 414, 422) else "refused", said)


def _code_and_message(data: bytes) -> tuple[str, str]:
    """Return Brave's error code, and the message of Serper and Bright Data; empty if missing."""
    try:
        answer = load_json(data)
    except orjson.JSONDecodeError:
        return "", ""
    code, message = _at(answer, ("error", "code")), _at(answer, ("message",))
    return code if isinstance(code, str) else "", message.strip(" .!") if isinstance(message, str) else ""


def _pause_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds until a key may be used again, from `Retry-After` or Brave's headers (a number per window)."""
    if (seconds := parse_retry_after(headers.get("Retry-After"))) is not None:
        return seconds
    left = headers.get("X-RateLimit-Remaining", "").split(",")
    reset_values = [parse_retry_after(value) for value in headers.get("X-RateLimit-Reset", "").split(",")]
    spent = [
        seconds
        for value, seconds in zip(left, reset_values, strict=False)
        if value.strip() == "0" and seconds is not None
    ]
    return max(spent, default=None)
