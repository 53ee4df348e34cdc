"""Searching at retrieval services: several addresses, one deadline, retries by what went wrong.

Speaks the routes of `treadle retriever serve`, which are those of FlashRAG's and Search-R1's services. What a service
sends is checked; hits are equal to those of the same index in this process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from multidict import CIMultiDict
from yarl import URL

from treadle.core.errors import ConfigError, ToolError
from treadle.core.harmless import one_line
from treadle.core.llm.client import HttpClient, Target
from treadle.core.llm.config import EndpointSettings
from treadle.core.llm.wire import Failure, excerpt, parse_retry_after
from treadle.retriever.client_config import ServiceClientSettings
from treadle.retriever.index import MAX_QUERY_CHARS, Hit

_log = logging.getLogger(__name__)

_REST_S = 1.0
"""An address that could not be reached is asked last for so long."""
_SILENT = frozenset({"connect", "timeout"})
_AWAY = frozenset({"connect", "reset"})
_START_IT = "start it with `treadle retriever serve`"
__all__ = ["SearchUnavailable", "ServiceClient", "ServiceClientSettings", "ask_fingerprint", "parse_hits"]

UNKNOWN = "unknown"
"""Fingerprint of services that do not tell theirs."""
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 8.0

Sleep = Callable[[float], Awaitable[object]]


class SearchUnavailable(ToolError):
    """No service answered; what the search was for is owed."""

    retryable = True


class _Address:
    """One service, as far as it is known."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.url = settings.url
        self.headers: CIMultiDict[str] = Target(settings).headers
        self.search = URL(f"{settings.url}/search")
        self.in_flight = 0
        self.rests_until = 0.0
        self.was_away = False
        """It may have been started anew, with another index."""


class ServiceClient:
    """Use `open` before and `close` after; `search` may be called by thousands of tasks of one event loop."""

    def __init__(self, settings: ServiceClientSettings, *, seed: int = 0, sleep: Sleep = asyncio.sleep) -> None:
        """`seed` feeds the jitter of pauses only; `sleep` is replaced in tests."""
        self._settings = settings
        self._random = random.Random(seed)
        self._sleep = sleep
        self._addresses: list[_Address] = []
        self._http: HttpClient | None = None
        self.fingerprint: str | None = None
        """Of the index that all services hold; None where they do not tell."""

    async def open(self) -> None:
        """Wait until every service has loaded its index; one that is not there is not waited for.

        Raises ToolError naming a service that does not answer, ConfigError for one that holds another index than the
        others, or than the settings expect.
        """
        self._addresses = [_Address(endpoint) for endpoint in self._settings.endpoints]
        self._http = HttpClient(self._settings)
        found = await asyncio.gather(*(self._fingerprint_of(address) for address in self._addresses))
        self.fingerprint = found[0]
        for address, fingerprint in zip(self._addresses, found, strict=True):
            if fingerprint != found[0]:
                raise ConfigError(
                    f"{address.url} holds another index than {self._addresses[0].url} "
                    f"({fingerprint or UNKNOWN}, not {found[0] or UNKNOWN}); serve the same one on all addresses"
                )
        expected = self._settings.fingerprint
        if expected is not None and expected != (self.fingerprint or UNKNOWN):
            raise ConfigError(
                f"search service {self._addresses[0].url} holds another index ({self.fingerprint or UNKNOWN}) than "
                f"this run was begun with ({expected}); serve that one again, or begin a new run"
            )

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    async def search(self, query: str, top_n: int, *, deadline: float) -> Sequence[Hit]:
        """At most `top_n` documents, best first.

        Raises TimeoutError where `deadline` (event loop's clock) comes while a service is searching; SearchUnavailable
        where services kept failing until retries or time ran out; ToolError where a service refuses the request;
        ConfigError where one came back with another index.
        """
        body = orjson.dumps(
            {
                "query": query[:MAX_QUERY_CHARS].encode("utf-8", "replace").decode(),
                "top_n": top_n,
                "return_score": True,
            }
        )
        failures, pause_s, last = 0, _FIRST_PAUSE_S, "no service was free"
        while True:
            address = self._choose()
            try:
                return await self._ask(address, body, top_n, deadline)
            except TimeoutError:
                if failures:
                    raise SearchUnavailable(f"search at {address.url}: {last}") from None
                raise
            except Failure as failure:
                last = f"{address.url}: {failure}"
                if failure.kind == "refused":
                    raise ToolError(f"the search service refuses a request: {last}") from None
                failures += 1
                wait_s = self._wait_s(address, failure, pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            now = asyncio.get_running_loop().time()
            if failures > self._settings.retry_limit + len(self._addresses) - 1 or now + wait_s >= deadline:
                raise SearchUnavailable(f"no search service answers; {last}")
            await self._sleep(wait_s)

    async def _ask(self, address: _Address, body: bytes, top_n: int, deadline: float) -> list[Hit]:
        assert self._http is not None
        attempt_ends = asyncio.get_running_loop().time() + self._settings.request_timeout_s
        address.in_flight += 1
        try:
            async with asyncio.timeout_at(min(deadline, attempt_ends)):
                if address.was_away:
                    await self._meet_again(address)
                status, headers, data = await self._http.post(address.search, body, address.headers)
        except TimeoutError:
            if attempt_ends < deadline:
                raise Failure("timeout", f"no answer in {self._settings.request_timeout_s:g} s") from None
            raise
        finally:
            address.in_flight -= 1
        if status == 200:
            address.rests_until = 0.0
            return parse_hits(data)[:top_n]
        raise _failure(status, headers.get("Retry-After"), data)

    async def _meet_again(self, address: _Address) -> None:
        fingerprint = await self._info(address)
        if fingerprint != self.fingerprint:
            raise ConfigError(
                f"search service {address.url} came back with another index ({fingerprint or UNKNOWN}, not "
                f"{self.fingerprint or UNKNOWN}); serve the same one again"
            )
        address.was_away = False

    def _choose(self) -> _Address:
        now = asyncio.get_running_loop().time()
        return min(self._addresses, key=lambda address: (address.rests_until > now, address.in_flight))

    def _wait_s(self, address: _Address, failure: Failure, pause_s: float) -> float:
        """How long to wait before the next try: not at all where another address may be asked."""
        now = asyncio.get_running_loop().time()
        address.was_away |= failure.kind in _AWAY
        pause_s = max(pause_s * self._random.uniform(0.5, 1.0), failure.retry_after_s or 0.0)
        address.rests_until = now + max(pause_s, _REST_S if failure.kind in _SILENT else 0.0)
        rested = any(other.rests_until <= now for other in self._addresses)
        return 0.0 if rested else max(0.0, min(other.rests_until for other in self._addresses) - now)

    async def _fingerprint_of(self, address: _Address) -> str | None:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._settings.start_wait_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await self._info(address)
            except (Failure, TimeoutError) as failure:
                kind = failure.kind if isinstance(failure, Failure) else "timeout"
                if kind == "refused":
                    raise ToolError(f"search service {address.url}: {failure}") from None
                if kind in _SILENT or loop.time() + pause_s >= give_up:
                    said = str(failure) or "no answer"
                    raise SearchUnavailable(f"search service {address.url} is not ready: {said}; {_START_IT}") from None
            await self._sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _info(self, address: _Address) -> str | None:
        """Fingerprint of a service's index; None from one that has no route for it, which FlashRAG's has not."""
        assert self._http is not None
        async with asyncio.timeout(self._settings.connect_timeout_s + _LONGEST_PAUSE_S):
            status, headers, data = await self._http.get(URL(f"{address.url}/info"), address.headers)
        if status in (404, 405):
            _log.warning("search service %s does not say which index it holds", address.url)
            return None
        if status != 200:
            raise _failure(status, headers.get("Retry-After"), data)
        try:
            fingerprint = orjson.loads(data)["fingerprint"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise Failure("malformed", "GET /info names no fingerprint") from None
        return one_line(str(fingerprint))[:128]


def parse_hits(data: bytes) -> list[Hit]:
    """Hits of `[documents, scores]`; raises Failure of kind `malformed`. The first line of a document is its title."""
    try:
        answer: Any = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise Failure("malformed", "the answer is not JSON") from None
    if not (isinstance(answer, list) and len(answer) == 2 and all(isinstance(part, list) for part in answer)):
        raise Failure("malformed", "the answer is not [documents, scores]")
    documents, scores = answer
    if len(documents) != len(scores):
        raise Failure("malformed", f"{len(documents)} documents come with {len(scores)} scores")
    return [_hit(document, score) for document, score in zip(documents, scores, strict=True)]


def _hit(document: Any, score: Any) -> Hit:
    if not isinstance(document, dict) or not isinstance(score, int | float) or not math.isfinite(score):
        raise Failure("malformed", "a document or score of the answer is of another kind")
    name, contents = document.get("id"), document.get("contents")
    if not isinstance(name, str) or not isinstance(contents, str):
        raise Failure("malformed", "a document of the answer has no 'id' or 'contents' of text")
    title, newline, text = contents.partition("\n")
    return Hit(name, title, text, float(score)) if newline else Hit(name, "", contents, float(score))


def _failure(status: int, retry_after: str | None, data: bytes) -> Failure:
    said = f"HTTP {status}: {excerpt(data)}"
    seconds = parse_retry_after(retry_after)
    if status == 429 or (status == 503 and seconds is not None):
        return Failure("rate_limit", said, seconds)
    if status >= 500 or status == 408:
        return Failure("server", said)
    return Failure("refused", said)


async def ask_fingerprint(settings: ServiceClientSettings) -> str:
    """Fingerprint of the index that the services hold, `unknown` where they do not tell; raises what `open` raises."""
    client = ServiceClient(settings)
    try:
        await client.open()
    finally:
        await client.close()
    return client.fingerprint or UNKNOWN
