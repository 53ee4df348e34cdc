"""Asking search providers: keys in turn, a bounded rate, and retries by what went wrong.

A provider's address is the user's configuration, like a model endpoint: it is asked without redirects, proxies and
cookies, and its answers are bounded; it is not held to the rules for pages.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from multidict import CIMultiDict
from yarl import URL

from treadle.agent.web.config import ProviderSettings
from treadle.agent.web.key_ring import Key, KeyRing
from treadle.agent.web.provider_requests import failure_of, hits_of, repeats_key, request_of
from treadle.agent.web.types import Language, Provider, QueryRefused, WebHit
from treadle.core.errors import ToolError
from treadle.core.llm.client import SHORTEST_SECRET, HttpClient
from treadle.core.llm.wire import Failure
from treadle.retriever.client import SearchUnavailable

EMPTY_TRIES = 3
"""Answers without a hit, until that is what there is to find."""
RATE_REST_S = 30.0
"""A key that is over its rate rests so long where the provider does not say how long."""
QUOTA_REST_S = 3_600.0
_SHORTEST_REST_S = 1.0
_PLAIN_QUERY = "weather"
"""What a key is tried with that has answered nothing yet, where it refuses a query."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0

Sleep = Callable[[float], Awaitable[object]]


@dataclass(frozen=True)
class _Connection:
    connect_timeout_s: float = 10.0
    max_response_bytes: int = 1 << 20


class WebProvider:
    """A provider that is asked over HTTP; see `Provider`."""

    def __init__(
        self,
        settings: ProviderSettings,
        *,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] | None = None,
        sleep: Sleep = asyncio.sleep,
        seed: int = 0,
    ) -> None:
        """`clock` and `sleep` are replaced in tests; `seed` feeds the jitter of pauses. Raises what `KeyRing` does."""
        self.name = settings.name
        self._settings = settings
        self._now = clock if clock is not None else _loop_time
        self._sleep = sleep
        self._random = random.Random(seed)
        self._keys = KeyRing(settings.api_key_envs, environ, clock=self._now)
        self._proven: set[Key] = set()
        self._next_start = float("-inf")
        self._http: HttpClient | None = None

    async def search(self, query: str, language: Language, *, deadline: float) -> tuple[WebHit, ...]:
        """See `Provider.search`."""
        for _ in range(EMPTY_TRIES):
            if hits := await self._answer(query, language, deadline):
                return hits
        return ()

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    async def _answer(self, query: str, language: Language, deadline: float) -> tuple[WebHit, ...]:
        errors, pause_s, last = 0, _FIRST_PAUSE_S, "no time was left to ask"
        while True:
            rest_s = self._keys.ready_at() - self._now()
            if rest_s > 0:
                await self._pause(rest_s, deadline, f"all keys rest; {last}")
            await self._await_turn(deadline, last)
            key = self._keys.take()
            if key is None:  # while this search waited for its turn
                continue
            try:
                return await self._ask(query, language, key, deadline)
            except Failure as failure:
                last = str(failure)
                if failure.kind == "key" and key in self._proven and await self._takes_others(key, deadline):
                    # A firewall before the provider refuses queries in the way in which a key is refused.
                    raise QueryRefused(last) from None
                if self._is_about_key(key, failure):
                    continue
                await self._raise_if_query(key, failure, deadline)
                self._raise_final(failure)
            errors += 1
            if errors > (self._settings.retry_limit + 1) * len(self._keys) - 1:
                raise SearchUnavailable(f"{self.name} does not answer; {last}")
            await self._pause(pause_s * self._random.uniform(0.5, 1.0), deadline, last)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _is_about_key(self, key: Key, failure: Failure) -> bool:
        if failure.kind == "rate_limit":
            seconds = RATE_REST_S if failure.retry_after_s is None else failure.retry_after_s
            self._keys.rest(key, max(seconds, _SHORTEST_REST_S))
        elif failure.kind == "quota":
            self._keys.rest(key, QUOTA_REST_S)
        elif failure.kind == "key":
            self._keys.drop(key, str(failure))
        else:
            return False
        return True

    async def _raise_if_query(self, key: Key, failure: Failure, deadline: float) -> None:
        if failure.kind != "query":
            return
        if key in self._proven or await self._takes_others(key, deadline):
            raise QueryRefused(str(failure)) from None
        raise SearchUnavailable(f"{self.name} refuses a query, and others as well: {failure}") from None

    async def _takes_others(self, key: Key, deadline: float) -> bool:
        """Whether a key is good for a query that nobody refuses: else it is not this query that is refused."""
        await self._await_turn(deadline, "a query was refused")
        try:
            await self._ask(_PLAIN_QUERY, "en", key, deadline)
        except Failure:
            return False
        return True

    def _raise_final(self, failure: Failure) -> None:
        if failure.kind == "refused":
            raise ToolError(f"{self.name} refuses every request; check its url and settings: {failure}") from None

    async def _ask(self, query: str, language: Language, key: Key, deadline: float) -> tuple[WebHit, ...]:
        request = request_of(self._settings, query, language, key.value)
        headers = CIMultiDict(request.headers)
        # Encoded already: yarl must not read a query's plus signs and percent signs anew.
        url = URL(request.url, encoded=True)
        if self._http is None:
            self._http = HttpClient(_Connection())
        left_s = deadline - self._now()
        limit_s = min(left_s, self._settings.request_timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                if request.method == "POST":
                    status, said, data = await self._http.post(url, request.body, headers, secret=key.value)
                else:
                    status, said, data = await self._http.get(url, headers, secret=key.value)
                if status != 200:
                    raise failure_of(status, said, data, query)
                # In a thread: an answer of so many bytes can take more of the event loop's time than others can wait.
                hits = await asyncio.to_thread(_hits, self._settings, data, key.value)
                self._proven.add(key)
                return hits
        except TimeoutError:
            if limit_s == left_s:
                raise SearchUnavailable(f"{self.name} did not answer in time") from None
            raise Failure("timeout", f"no answer in {limit_s:g} s") from None

    async def _await_turn(self, deadline: float, last: str) -> None:
        """Let one request start per 1 / max_queries_per_s."""
        now = self._now()
        starts_at = max(now, self._next_start)
        if starts_at >= deadline:
            raise SearchUnavailable(f"{self.name} was not asked in time; {last}")
        self._next_start = starts_at + 1 / self._settings.max_queries_per_s
        if starts_at > now:
            await self._sleep(starts_at - now)

    async def _pause(self, seconds: float, deadline: float, last: str) -> None:
        if self._now() + seconds >= deadline:
            raise SearchUnavailable(f"{self.name} does not answer; {last}")
        await self._sleep(max(seconds, 0.0))


def _hits(settings: ProviderSettings, data: bytes, key: str) -> tuple[WebHit, ...]:
    """See `hits_of`; a Failure too where the key is in them, which the client knows only as JSON spells it.

    Hits are kept on record, shown to models and exported.
    """
    hits = hits_of(settings, data)
    if len(key) >= SHORTEST_SECRET and repeats_key(hits, key):
        raise Failure("malformed", "the answer repeats the key that it was asked with")
    return hits


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def make_provider(settings: ProviderSettings) -> Provider:
    """The provider that settings name. Raises ConfigError naming a variable that holds no usable key."""
    return WebProvider(settings)
