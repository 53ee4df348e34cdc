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
from treadle.agent.web.provider_requests import failure_of, hits_of, repeats_key, request_of, without_key
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
"""What a key is tried with where it refuses a query: nobody refuses this one."""
_REFUSALS = frozenset({"key", "query", "refused"})
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
            came = await self._ask(query, language, key, deadline)
            if isinstance(came, Failure) and came.kind in _REFUSALS:
                came = await self._without_the_query(came, key, deadline)
            if not isinstance(came, Failure):
                return came
            last = str(came)
            if self._is_about_key(key, came):
                continue
            self._raise_final(came)
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

    async def _without_the_query(self, refusal: Failure, key: Key, deadline: float) -> Failure:
        """What goes wrong with a query that nobody refuses; raises QueryRefused where nothing does.

        A firewall before a provider refuses queries in the way in which a key, an address or anything is refused.
        """
        await self._await_turn(deadline, str(refusal))
        came = await self._ask(_PLAIN_QUERY, "en", key, deadline)
        if isinstance(came, Failure):
            return came
        raise QueryRefused(str(refusal))

    def _raise_final(self, failure: Failure) -> None:
        if failure.kind == "query":
            raise SearchUnavailable(f"{self.name} refuses a query, and others as well: {failure}")
        if failure.kind == "refused":
            raise ToolError(f"{self.name} refuses every request; check its url and settings: {failure}")

    async def _ask(self, query: str, language: Language, key: Key, deadline: float) -> tuple[WebHit, ...] | Failure:
        """One request: hits, or what went wrong; raises SearchUnavailable at the deadline."""
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
                # In a thread: an answer of so many bytes can take more of the event loop's time than others can wait.
                return await asyncio.to_thread(_outcome, self._settings, query, key.value, status, said, data)
        except TimeoutError:
            if limit_s == left_s:
                raise SearchUnavailable(f"{self.name} did not answer in time") from None
            return Failure("timeout", f"no answer in {limit_s:g} s")
        except Failure as failure:  # of the connection
            return failure

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


def _outcome(
    settings: ProviderSettings, query: str, key: str, status: int, headers: Mapping[str, str], data: bytes
) -> tuple[WebHit, ...] | Failure:
    """What an answer comes to; nothing of it holds the key, which the client knows only as JSON spells it.

    Hits, and why a query was refused, are kept on record, shown and exported.
    """
    came: tuple[WebHit, ...] | Failure
    try:
        came = hits_of(settings, data) if status == 200 else failure_of(status, headers, data, query)
    except Failure as failure:
        came = failure
    if len(key) < SHORTEST_SECRET:
        return came
    if isinstance(came, Failure):
        return without_key(came, data, key)
    if repeats_key(came, key):
        return Failure("malformed", "the answer repeats the key that it was asked with")
    return came


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def make_provider(settings: ProviderSettings) -> Provider:
    """The provider that settings name. Raises ConfigError naming a variable that holds no usable key."""
    return WebProvider(settings)
