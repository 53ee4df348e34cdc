"""Search at retrieval services: several endpoints, one deadline, and retries depending on the failure.

`answers.py` has the formats of requests and answers. The documents are the same as from the same index in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

import orjson
from multidict import CIMultiDict

from treadle.core.errors import ConfigError, ToolError
from treadle.core.llm.client import HttpClient, Target
from treadle.core.llm.config import EndpointSettings
from treadle.core.llm.failures import Failure, excerpt, parse_retry_after
from treadle.core.untrusted.json_text import load_json
from treadle.core.untrusted.sanitize import one_line
from treadle.retriever.answers import parse_documents, search_api_of
from treadle.retriever.client_config import ServiceClientSettings
from treadle.retriever.corpus import Document
from treadle.retriever.index import MAX_QUERY_CHARS

_log = logging.getLogger(__name__)

_UNREACHABLE_PAUSE_S = 1.0
"""Seconds for which an endpoint that could not be reached is used last."""
_PROMPT_ANSWER_S = 0.5
"""Seconds within which a service answers GET /info, unless it was frozen just before. A service that answered another
search less than this ago counts as alive without a request."""
_NO_ANSWER_KINDS = frozenset({"connect", "timeout"})
_CONNECTION_KINDS = frozenset({"connect", "reset"})
_FINAL_KINDS = frozenset({"refused", "malformed"})
"""Kinds of failure for which a retry does not help."""
_START_HINT = "start it (`treadle retriever serve`), or correct `environment.search.service.endpoints`"
TRIAL_QUERY = "test"
"""Query that tests a service without a fingerprint before any agent's search; it need not find anything."""
__all__ = ["SearchUnavailable", "ServiceClient", "ServiceClientSettings", "ask_fingerprint"]

UNKNOWN = "unknown"
"""Fingerprint of a service that does not report one."""
_FIRST_PAUSE_S = 0.25
_MAX_PAUSE_S = 8.0
_LOADING = frozenset({429, 502, 503, 504})
"""Status codes of a service that is busy or loading, or of a gateway that waits for it."""
_ROUTE_HINT = "an endpoint is the part of the address before /search, or all of it up to /search or /retrieve"
_KEY_HINT = "the endpoint's `api_key_env` names the environment variable that holds the key"
_STATUS_HINTS = {401: _KEY_HINT, 403: _KEY_HINT, 404: _ROUTE_HINT, 405: _ROUTE_HINT}

Sleep = Callable[[float], Awaitable[object]]


class SearchUnavailable(ToolError):
    """Failure of all search services; the search stays pending."""

    retryable = True


class _Service:
    """The state of one service, as seen by this client."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.url = settings.url
        self.headers: CIMultiDict[str] = Target(settings).headers
        self.api, self.search = search_api_of(settings.url)
        self.info = self.search.parent / "info"
        self.in_flight = 0
        self.paused_until = 0.0
        self.last_response_at = float("-inf")
        """Time of its last response to a search."""
        self.was_unreachable = False
        """Whether the service was unreachable: it may have been restarted with another index."""

    def body(self, query: str, top_n: int) -> bytes:
        """Return the body of one search request."""
        return orjson.dumps(self.api.body(query[:MAX_QUERY_CHARS].encode("utf-8", "replace").decode(), top_n))


class ServiceClient:
    """A client of retrieval services. Call `open` before and `close` after use.

    Thousands of tasks of one event loop may call `search`.
    """

    def __init__(
        self, settings: ServiceClientSettings, *, top_n: int = 1, seed: int = 0, sleep: Sleep = asyncio.sleep
    ) -> None:
        """Configure the client.

        `top_n` is used for the test search of `open`. `seed` is only for the jitter of pauses. Tests replace `sleep`.
        """
        self._settings = settings
        self._top_n = top_n
        self._random = random.Random(seed)
        self._sleep = sleep
        self._services: list[_Service] = []
        self._http: HttpClient | None = None
        self.fingerprint: str | None = None
        """Fingerprint of the index that all services hold; None if they do not report one."""

    async def open(self) -> None:
        """Get the fingerprint of every service, or try a search if it reports none; wait while a service is loading.

        Raises ToolError naming a service that is unreachable or whose answer is unusable, and ConfigError if a service
        serves a different index than the others, or than the settings expect.
        """
        self._services = [_Service(endpoint) for endpoint in self._settings.endpoints]
        self._http = HttpClient(self._settings.connect_timeout_s, self._settings.max_response_bytes)
        found = await asyncio.gather(*(self._open_service(address) for address in self._services))
        self.fingerprint = found[0]
        for address, fingerprint in zip(self._services, found, strict=True):
            if fingerprint is None and self._settings.fingerprint is None:  # Otherwise it was logged before.
                _log.warning(
                    "search service %s does not report which index it serves: a change of the index cannot be detected",
                    address.url,
                )
            if fingerprint != found[0]:
                raise ConfigError(
                    f"{address.url} serves a different index than {self._services[0].url} "
                    f"({fingerprint or UNKNOWN}, not {found[0] or UNKNOWN}); serve the same one on all addresses"
                )
        expected = self._settings.fingerprint
        if expected is not None and expected != (self.fingerprint or UNKNOWN):
            raise ConfigError(
                f"search service {self._services[0].url} serves a different index ({self.fingerprint or UNKNOWN}), "
                f"but this run was started with {expected}; serve that one again, or start a new run"
            )

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    async def search(self, query: str, top_n: int, *, deadline: float) -> Sequence[Document]:
        """Return at most `top_n` documents, best first.

        Raises TimeoutError if `deadline` (event loop's clock) passes while a service that is alive is searching;
        a service that was frozen meanwhile is searched a second time, with the same time limit;
        SearchUnavailable if services did not answer or kept failing until retries or time ran out; ToolError if a
        service refuses the request or its answer is unusable; ConfigError if a service came back with another index.
        """
        failures, pause_s, last = 0, _FIRST_PAUSE_S, "no service was free"
        loop = asyncio.get_running_loop()
        started, retried_slow = loop.time(), False
        limit_s = deadline - started
        while True:
            address = self._choose()
            try:
                return await self._ask(address, query, top_n, deadline)
            except TimeoutError:
                if failures:
                    raise SearchUnavailable(f"search at {address.url}: {last}") from None
                asked_at = loop.time()
                if address.last_response_at >= max(started, asked_at - _PROMPT_ANSWER_S):
                    raise  # It answered another search just now. What it answered before it froze shows nothing.
                if not await self._is_alive(address):
                    detail = "it does not answer, not even GET /info"
                    raise SearchUnavailable(f"search at {address.url}: {detail}") from None
                if loop.time() - asked_at < _PROMPT_ANSWER_S or retried_slow:
                    raise
                # It was frozen, or it is slow to answer anything: search a second time, with the same time limit.
                retried_slow, started = True, loop.time()
                deadline = started + limit_s
                continue
            except Failure as failure:
                last = f"{address.search}: {failure}"
                if failure.kind in _FINAL_KINDS:
                    raise ToolError(f"search service {address.search}: {failure}") from None
                failures += 1
                wait_s = self._pause_service(address, failure, pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            now = asyncio.get_running_loop().time()
            if failures > self._settings.retry_limit + len(self._services) - 1 or now + wait_s >= deadline:
                raise SearchUnavailable(f"no search service answers; {last}")
            await self._sleep(wait_s)

    async def _ask(self, address: _Service, query: str, top_n: int, deadline: float) -> list[Document]:
        attempt_ends = asyncio.get_running_loop().time() + self._settings.request_timeout_s
        address.in_flight += 1
        try:
            async with asyncio.timeout_at(min(deadline, attempt_ends)):
                if address.was_unreachable:
                    await self._recheck_fingerprint(address)
                return await self._post(address, query, top_n)
        except TimeoutError:
            if attempt_ends < deadline:
                raise Failure("timeout", f"no answer in {self._settings.request_timeout_s:g} s") from None
            raise
        finally:
            address.in_flight -= 1

    async def _post(self, address: _Service, query: str, top_n: int) -> list[Document]:
        """Send one search to a service and return its documents; raise Failure."""
        assert self._http is not None
        status, headers, data = await self._http.post(address.search, address.body(query, top_n), address.headers)
        if not 200 <= status < 300:
            raise _failure(status, headers, data)
        address.last_response_at = asyncio.get_running_loop().time()
        found = parse_documents(data, address.api)[:top_n]
        address.paused_until = 0.0
        return found

    async def _is_alive(self, address: _Service) -> bool:
        """Return whether a service answers GET /info: a frozen one accepts requests without answering them."""
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                await self._info(address)
        except TimeoutError:
            return False
        except Failure as failure:
            return failure.kind not in _NO_ANSWER_KINDS | _CONNECTION_KINDS
        return True

    async def _recheck_fingerprint(self, address: _Service) -> None:
        fingerprint = await self._info(address)
        if fingerprint != self.fingerprint:
            raise ConfigError(
                f"search service {address.url} restarted with a different index ({fingerprint or UNKNOWN}, not "
                f"{self.fingerprint or UNKNOWN}); serve the same one again"
            )
        address.was_unreachable = False

    def _choose(self) -> _Service:
        now = asyncio.get_running_loop().time()
        return min(self._services, key=lambda address: (address.paused_until > now, address.in_flight))

    def _pause_service(self, address: _Service, failure: Failure, pause_s: float) -> float:
        """Use a service last for a while, after a failure; return the seconds to wait before the next attempt.

        They are 0 if another service is available.
        """
        now = asyncio.get_running_loop().time()
        address.was_unreachable |= failure.kind in _CONNECTION_KINDS
        pause_s = max(pause_s * self._random.uniform(0.5, 1.0), failure.retry_after_s or 0.0)
        address.paused_until = now + max(pause_s, _UNREACHABLE_PAUSE_S if failure.kind in _NO_ANSWER_KINDS else 0.0)
        has_available = any(other.paused_until <= now for other in self._services)
        return 0.0 if has_available else max(0.0, min(other.paused_until for other in self._services) - now)

    async def _open_service(self, address: _Service) -> str | None:
        """Return the fingerprint of a service's index, or None after one test search; wait while it is loading."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._settings.start_wait_s
        pause_s, failures = _FIRST_PAUSE_S, 0
        while True:
            try:
                fingerprint = await self._info(address)
                if fingerprint is None:  # Only Treadle's services report one, and they need no test.
                    await self._ask(address, TRIAL_QUERY, self._top_n, deadline=math.inf)
                return fingerprint
            except Failure as failure:
                if failure.kind in _FINAL_KINDS:
                    raise ToolError(f"search service {address.search}: {failure}") from None
                failures += 1
                # A service that fails is not one that is loading: it gets only as many retries as a search.
                is_broken = failure.kind in ("server", "reset") and failures > self._settings.retry_limit
                if failure.kind == "connect" or is_broken or loop.time() + pause_s >= give_up_at:
                    raise SearchUnavailable(
                        f"search service {address.search} is not ready: {failure}; {_START_HINT}"
                    ) from None
                if failures == 1:
                    _log.warning("waiting for search service %s: %s", address.search, failure)
            await self._sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    async def _info(self, address: _Service) -> str | None:
        """Return the fingerprint of a service's index; None if the service has no route that reports it.

        Only Treadle's services have one. Other problems with an endpoint are left to the test search, which reports
        them better.
        """
        assert self._http is not None
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s + _MAX_PAUSE_S):
                status, headers, data = await self._http.get(address.info, address.headers)
        except TimeoutError:
            raise Failure("connect", "no answer") from None
        if status in _LOADING or (status >= 500 and self.fingerprint is not None):
            raise _failure(status, headers, data)
        with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError):
            if status == 200:
                return one_line(str(load_json(data)["fingerprint"]))[:128]
        return None


def _failure(status: int, headers: Mapping[str, str], data: bytes) -> Failure:
    detail = f"HTTP {status}: {excerpt(data)}"
    if status in _LOADING:
        return Failure("rate_limit", detail, parse_retry_after(headers.get("Retry-After")))
    if status >= 500 or status == 408:
        return Failure("server", detail)
    if 300 <= status < 400:
        place = excerpt(headers.get("Location", "").encode("utf-8", "replace"))
        return Failure("refused", f"HTTP {status}, moved to {place}; use that address as the endpoint")
    return Failure("refused", f"{detail}; {_STATUS_HINTS.get(status, 'it refuses the request')}")


async def ask_fingerprint(settings: ServiceClientSettings, top_n: int) -> str:
    """Connect to the services and return the fingerprint of their index, `unknown` if they do not report it.

    Raises the same errors as `ServiceClient.open`.
    """
    client = ServiceClient(settings, top_n=top_n)
    try:
        await client.open()
    finally:
        await client.close()
    return client.fingerprint or UNKNOWN
