"""Query search providers, with key rotation, a rate limit, and retries that depend on the failure.

A provider's address is part of the user's configuration, like a model endpoint. Requests to it use no redirects,
proxies or cookies, and its answers are bounded, but the address rules for pages do not apply.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Mapping

from multidict import CIMultiDict
from yarl import URL

from treadle.core.errors import ToolError
from treadle.core.llm.client import MIN_SECRET_CHARS, HttpClient
from treadle.core.llm.failures import Failure
from treadle.retriever.client import SearchUnavailable
from treadle.web.config import ProviderSettings
from treadle.web.key_ring import Key, KeyRing
from treadle.web.provider_requests import NUM_RESULTS, failure_of, hits_of, repeats_key, request_of, without_key
from treadle.web.types import MAX_HITS, Language, QueryRefused, WebHit

EMPTY_TRIES = 3
"""Number of answers in a row without a hit after which a search counts as empty."""
RATE_LIMIT_PAUSE_S = 30.0
"""Pause of a rate-limited key in seconds if the provider does not give one."""
QUOTA_PAUSE_S = 3_600.0
_MIN_KEY_PAUSE_S = 1.0
_PLAIN_QUERY = "weather"
"""Query that no provider refuses; it shows whether a key or only a query was refused."""
_REFUSAL_KINDS = frozenset({"key", "query", "refused"})
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 8.0

Sleep = Callable[[float], Awaitable[object]]


class WebProvider:
    """Search provider over HTTP. Many searches use it concurrently on one event loop."""

    def __init__(
        self,
        settings: ProviderSettings,
        *,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] | None = None,
        sleep: Sleep = asyncio.sleep,
        seed: int = 0,
    ) -> None:
        """Read the keys; `clock` and `sleep` are replaced in tests, `seed` is for the jitter of pauses.

        Raises ConfigError naming a variable without a usable key.
        """
        self.name = settings.name
        """Name as in `SearchEntry.provider`."""
        self._settings = settings
        self._now = clock if clock is not None else _loop_time
        self._sleep = sleep
        self._random = random.Random(seed)
        self._keys = KeyRing(settings.api_key_envs, environ, clock=self._now)
        self._next_start = float("-inf")
        self._http: HttpClient | None = None

    async def search(
        self, query: str, language: Language, *, deadline: float, num_results: int = NUM_RESULTS
    ) -> tuple[WebHit, ...]:
        """Return hits, best first, at most 20 or the requested number if that is larger.

        Return no hits if `EMPTY_TRIES` answers in a row have no hits.

        `deadline` is in the event loop's clock. Raises QueryRefused if the provider refuses this query but accepts
        others, SearchUnavailable at the deadline or if errors persist, and ToolError if the provider refuses all keys,
        or every request.
        """
        for _ in range(EMPTY_TRIES):
            if hits := await self._answer(query, language, deadline, num_results):
                return hits
        return ()

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    async def _answer(self, query: str, language: Language, deadline: float, num_results: int) -> tuple[WebHit, ...]:
        errors, pause_s, last_failure = 0, _FIRST_PAUSE_S, "no time was left for a request"
        while True:
            key_pause_s = self._keys.ready_at() - self._now()
            if key_pause_s > 0:
                await self._pause(key_pause_s, deadline, f"all keys are paused; {last_failure}")
            await self._await_rate_limit(deadline, last_failure)
            key = self._keys.take()
            if key is None:  # paused while this search waited for its turn
                continue
            result = await self._ask(query, language, key, deadline, num_results)
            if isinstance(result, Failure) and result.kind in _REFUSAL_KINDS:
                result = await self._check_with_plain_query(result, key, deadline)
            if not isinstance(result, Failure):
                return result
            last_failure = str(result)
            if self._handle_key_failure(key, result):
                continue
            self._raise_final(result)
            errors += 1
            if errors > (self._settings.retry_limit + 1) * len(self._keys) - 1:
                raise SearchUnavailable(f"{self.name} does not answer; {last_failure}")
            await self._pause(pause_s * self._random.uniform(0.5, 1.0), deadline, last_failure)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _handle_key_failure(self, key: Key, failure: Failure) -> bool:
        if failure.kind == "rate_limit":
            seconds = RATE_LIMIT_PAUSE_S if failure.retry_after_s is None else failure.retry_after_s
            self._keys.pause(key, max(seconds, _MIN_KEY_PAUSE_S))
        elif failure.kind == "quota":
            self._keys.pause(key, QUOTA_PAUSE_S)
        elif failure.kind == "key":
            self._keys.drop(key, str(failure))
        else:
            return False
        return True

    async def _check_with_plain_query(self, refusal: Failure, key: Key, deadline: float) -> Failure:
        """Send a plain query after a refusal and return its failure; raise QueryRefused if it succeeds.

        A firewall in front of a provider may refuse a query with the same status as a refused key, address or request.
        """
        await self._await_rate_limit(deadline, str(refusal))
        result = await self._ask(_PLAIN_QUERY, "en", key, deadline)
        if isinstance(result, Failure):
            return result
        raise QueryRefused(str(refusal))

    def _raise_final(self, failure: Failure) -> None:
        if failure.kind == "query":
            raise SearchUnavailable(f"{self.name} refuses this query and others: {failure}")
        if failure.kind == "refused":
            raise ToolError(f"{self.name} refuses every request; check its url and settings: {failure}")

    async def _ask(
        self, query: str, language: Language, key: Key, deadline: float, num_results: int = NUM_RESULTS
    ) -> tuple[WebHit, ...] | Failure:
        """Send one request; return hits or the failure. Raises SearchUnavailable at the deadline."""
        request = request_of(self._settings, query, language, key.value, num_results)
        headers = CIMultiDict(request.headers)
        # Already encoded: yarl must not encode a query's plus and percent signs again.
        url = URL(request.url, encoded=True)
        if self._http is None:
            self._http = HttpClient(10.0, 1 << 20)
        remaining_s = deadline - self._now()
        limit_s = min(remaining_s, self._settings.request_timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                if request.method == "POST":
                    status, response_headers, data = await self._http.post(
                        url, request.body, headers, secrets=(key.value,)
                    )
                else:
                    status, response_headers, data = await self._http.get(url, headers, secrets=(key.value,))
                # In a thread: parsing a large answer could block the event loop for too long.
                return await asyncio.to_thread(
                    _outcome,
                    self._settings,
                    query,
                    key.value,
                    status,
                    response_headers,
                    data,
                    max(num_results, MAX_HITS),
                )
        except TimeoutError:
            if limit_s == remaining_s:
                raise SearchUnavailable(f"{self.name} did not answer in time") from None
            return Failure("timeout", f"no answer in {limit_s:g} s")
        except Failure as failure:  # connection errors
            return failure

    async def _await_rate_limit(self, deadline: float, last_failure: str) -> None:
        """Wait so that at most `max_queries_per_s` requests start per second."""
        now = self._now()
        starts_at = max(now, self._next_start)
        if starts_at >= deadline:
            raise SearchUnavailable(f"{self.name} was not queried in time; {last_failure}")
        self._next_start = starts_at + 1 / self._settings.max_queries_per_s
        if starts_at > now:
            await self._sleep(starts_at - now)

    async def _pause(self, seconds: float, deadline: float, last_failure: str) -> None:
        if self._now() + seconds >= deadline:
            raise SearchUnavailable(f"{self.name} does not answer; {last_failure}")
        await self._sleep(max(seconds, 0.0))


def _outcome(
    settings: ProviderSettings, query: str, key: str, status: int, headers: Mapping[str, str], data: bytes, most: int
) -> tuple[WebHit, ...] | Failure:
    """Return the hits or the failure of an answer, without the API key in any encoding.

    Hits and refusals are recorded, shown and exported. The HTTP client only removes the key as JSON spells it.
    """
    result: tuple[WebHit, ...] | Failure
    try:
        result = hits_of(settings, data, most) if status == 200 else failure_of(status, headers, data, query)
    except Failure as failure:
        result = failure
    if len(key) < MIN_SECRET_CHARS:
        return result
    if isinstance(result, Failure):
        return without_key(result, data, key)
    if repeats_key(result, key):
        return Failure("malformed", "the answer contains the API key of the request")
    return result


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
