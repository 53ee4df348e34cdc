"""The dialects of search providers: requests, answers, and what kind of failure a reply is. Pure; nothing is sent.

Answers are untrusted: whatever they hold ends in hits within bounds, or in a `Failure`.
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

from treadle.agent.web.config import ProviderSettings
from treadle.agent.web.passages import clean_line
from treadle.agent.web.types import (
    MAX_HITS,
    MAX_NAME_CHARS,
    MAX_SNIPPET_CHARS,
    MAX_TITLE_CHARS,
    MAX_URL_CHARS,
    Language,
    WebHit,
)
from treadle.core.llm.wire import Failure, excerpt, parse_retry_after

NUM_RESULTS = 10
"""Hits that are asked for. Bing counts one more."""
_MAX_PARTS = 50_000
"""Lists and objects of an answer: more of them are read in one go of 0.1 s and more, in which no other thread runs."""

_OWN_URLS = {
    "serper": "https://google.serper.dev/search",
    "brave": "https://api.search.brave.com/res/v1/web/search",
    "bright_data": "https://api.brightdata.com/request",
}
_BRAVE_QUERY_CHARS = 400
_BRAVE_QUERY_WORDS = 50

_SPENT_CODES = frozenset({"QUOTA_LIMITED"})
_KEY_REFUSED_CODES = frozenset({"SUBSCRIPTION_TOKEN_INVALID", "SUBSCRIPTION_NOT_FOUND"})
_SPENT_MESSAGE = re.compile(
    r"(?:you (?:have|do not have|don't have) )?(?:not enough|enough|out of|no|insufficient) (?:credits?|balance|funds?)"
    r"|(?:your |the )?(?:monthly |daily |api )?quota (?:has been |is )?(?:exceeded|exhausted)"
    r"|(?:you have |you've )?exceeded (?:your|the) (?:current |monthly |daily |api )?quota",
    re.IGNORECASE,
)
"""A whole message: part of one may be the query, which is a model's."""
_TAG = re.compile(r"</?strong>")
# An escape of a JSON text, in group 1 one of half a character.
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
_UNICODE = re.compile(r"\\u([0-9a-fA-F]{4})")
_READ_BYTES = 8_192
_NOT_SHOWN = "(not shown, as it repeats the key)"
_MAX_READINGS = 4
"""As what a text is looked at in search of a key: as it is, unquoted, unquoted twice, ..."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a provider. Its headers hold the key, so they are not shown."""

    method: str
    url: str
    headers: dict[str, str] = field(repr=False)
    body: bytes = b""


def request_of(settings: ProviderSettings, query: str, language: Language, key: str) -> Request:
    """The request for a query, in the way of the provider; `key` may be empty for a SearXNG."""
    url = settings.url or _OWN_URLS.get(settings.type, "")
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "treadle"}
    chinese = language == "zh"
    if settings.type == "serper":
        places = {"gl": "cn", "hl": "zh-cn"} if chinese else {"gl": "us", "hl": "en"}
        body = orjson.dumps({"q": query, **places, "num": NUM_RESULTS})
        return Request("POST", url, {**headers, "X-API-KEY": key, "Content-Type": "application/json"}, body)
    if settings.type == "brave":
        places = {"country": "CN", "search_lang": "zh-hans"} if chinese else {"country": "US", "search_lang": "en"}
        asked = " ".join(query[:_BRAVE_QUERY_CHARS].split()[:_BRAVE_QUERY_WORDS])
        options = {**places, "count": NUM_RESULTS, "result_filter": "web", "text_decorations": "false"}
        return Request("GET", f"{url}?{urlencode({'q': asked, **options})}", {**headers, "X-Subscription-Token": key})
    if settings.type == "bright_data":
        body = orjson.dumps({"zone": settings.zone, "url": _engine_url(settings, query, chinese), "format": "raw"})
        authorized = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        return Request("POST", url, {**headers, **authorized}, body)
    options = {"q": query, "format": "json", "language": "zh-CN" if chinese else "en-US"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return Request("GET", f"{url.removesuffix('/search')}/search?{urlencode(options)}", headers)


def _engine_url(settings: ProviderSettings, query: str, chinese: bool) -> str:
    """The page of a search engine that Bright Data is to read, and to give back as JSON."""
    if settings.engine == "google":
        places = {"gl": "cn", "hl": "zh-cn"} if chinese else {"gl": "us", "hl": "en"}
        return f"https://www.google.com/search?{urlencode({'q': query, **places, 'num': NUM_RESULTS, 'brd_json': 1})}"
    market = "zh-CN" if chinese else "en-US"
    options = {"cc": "cn" if chinese else "us", "setLang": market, "mkt": market, "count": NUM_RESULTS + 1}
    return f"https://www.bing.com/search?{urlencode({'q': query, **options, 'brd_json': 1})}"


def hits_of(settings: ProviderSettings, data: bytes) -> tuple[WebHit, ...]:
    """Organic hits of an answer with status 200, best first, at most 20. Raises Failure of kind `malformed`.

    A SearXNG whose engines did not answer has found nothing for another reason than that there is nothing; that is a
    Failure of kind `server`.
    """
    answer = _parsed(data)
    if not isinstance(answer, dict):
        raise Failure("malformed", "the answer is no JSON object")
    if settings.type == "bright_data" and isinstance(answer.get("body"), str) and "organic" not in answer:
        answer = _parsed(answer["body"].encode("utf-8", "replace"))
    hits = organic_hits(answer)
    if hits is None:
        said = excerpt(data)
        raise Failure("malformed", f"the answer holds no list of hits: {said}")
    if settings.type == "searxng" and not hits and isinstance(answer, dict) and answer.get("unresponsive_engines"):
        silent = excerpt(orjson.dumps(answer["unresponsive_engines"]))
        raise Failure("server", f"nothing was found, but engines did not answer: {silent}")
    if settings.type == "brave":
        hits = tuple(replace(hit, title=_plain(hit.title), snippet=_plain(hit.snippet)) for hit in hits)
    return hits


def organic_hits(answer: Any) -> tuple[WebHit, ...] | None:
    """Hits of any known answer: a list, or an object with `organic`, `results`, `web.results` or `webPages.value`.

    None where it is nothing of the kind, or where one of the hits is no object. Hits without a usable URL are left out.
    """
    found = answer
    if isinstance(answer, dict):
        # An answer that has found nothing leaves its list out, but still says that it is one.
        for path in (("organic",), ("results",), ("web", "results"), ("webPages", "value")):
            found = _at(answer, path)
            if found is not None:
                break
        else:
            is_answer = "searchParameters" in answer or answer.get("type") == "search" or "general" in answer
            return () if is_answer else None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        return None
    # No more are made than are kept: an answer may list a hundred thousand.
    hits = filter(None, map(_hit, found))
    return tuple(islice(hits, MAX_HITS))


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
    """The first of some values that is a text with something in it, on one line, cut."""
    for name in names:
        value = item.get(name) if isinstance(item, dict) else None
        if isinstance(value, str) and value.strip():
            return clean_line(value[: 4 * limit].encode("utf-8", "replace").decode())[:limit]
    return ""


def _plain(text: str) -> str:
    """Text of Brave, which marks words and spells characters as HTML does."""
    return clean_line(html.unescape(_TAG.sub("", text)))


def _parsed(data: bytes) -> Any:
    if data.count(b"[") + data.count(b"{") > _MAX_PARTS:
        raise Failure("malformed", f"the answer has more than {_MAX_PARTS:,} parts")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:  # half a character in one title must not cost the whole answer
        return orjson.loads(_ESCAPE.sub(_whole, data))
    except orjson.JSONDecodeError:
        raise Failure("malformed", "the answer is not JSON") from None


def _whole(escape: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if escape[1] else escape[0]


def repeats_key(hits: Iterable[WebHit], key: str) -> bool:
    """Whether hits hold the key that they were asked with, as it is or as addresses and HTML spell it."""
    return _spell((text for hit in hits for text in (hit.title, hit.url, hit.snippet, hit.site_name, hit.date)), key)


def without_key(failure: Failure, data: bytes, key: str) -> Failure:
    """The failure that an answer is, in words in which its key is not spelled in any such way, nor a part of it."""
    # More than is said of the answer, so that no key is cut in two where that ends.
    texts = [data[:_READ_BYTES].decode("utf-8", "replace"), str(failure)]
    texts += [_UNICODE.sub(lambda escape: chr(int(escape[1], 16)), text).replace("\\/", "/") for text in texts]
    if not _spell(texts, key):
        return failure
    status = re.match(r"HTTP \d{3}: ", str(failure))
    return Failure(failure.kind, f"{status[0] if status else ''}{_NOT_SHOWN}", failure.retry_after_s)


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
    """What kind of failure an answer to a query with another status than 200 is.

    `rate_limit` and `quota`: the key must rest; `server`: may pass. For the others another query must tell whether it
    is this one that is refused; if it is not, `key`: the key is; `refused`: any request is; `query`: who knows. What is
    said of a key is read in fields that no query gets into.
    """
    said = f"HTTP {status}: {excerpt(data)}"
    code, message = _code_and_message(data)
    is_spent = code in _SPENT_CODES or (
        _SPENT_MESSAGE.fullmatch(message) is not None and message.casefold() not in query.casefold()
    )
    if status == 402 or (status in (400, 403, 429) and is_spent):
        return Failure("quota", said)
    if status == 429:
        return Failure("rate_limit", said, _rest_s(headers))
    if status == 503 and (seconds := parse_retry_after(headers.get("Retry-After"))) is not None:
        return Failure("rate_limit", said, seconds)
    if status in (401, 403) or (status in (400, 422) and code in _KEY_REFUSED_CODES):
        return Failure("key", said)
    if status >= 500 or status == 408:
        return Failure("server", said)
    return Failure("query" if status in (400, 414, 422) else "refused", said)


def _code_and_message(data: bytes) -> tuple[str, str]:
    """Brave's code of an error and the message of Serper and Bright Data; empty where there is none."""
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError:
        return "", ""
    code, message = _at(answer, ("error", "code")), _at(answer, ("message",))
    return code if isinstance(code, str) else "", message.strip(" .!") if isinstance(message, str) else ""


def _rest_s(headers: Mapping[str, str]) -> float | None:
    """Seconds after which a key may be used again, by `Retry-After` or by Brave's headers, a number for each window."""
    if (seconds := parse_retry_after(headers.get("Retry-After"))) is not None:
        return seconds
    left = headers.get("X-RateLimit-Remaining", "").split(",")
    resets = [parse_retry_after(value) for value in headers.get("X-RateLimit-Reset", "").split(",")]
    spent = [
        seconds for value, seconds in zip(left, resets, strict=False) if value.strip() == "0" and seconds is not None
    ]
    return max(spent, default=None)
