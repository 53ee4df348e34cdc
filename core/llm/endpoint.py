"""State of one endpoint in the pool: its health, and how many requests it may hold now.

Nothing here sends a request.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict, deque
from collections.abc import Sequence
from enum import Enum

from treadle.core.llm.client import Target
from treadle.core.llm.config import EndpointSettings
from treadle.core.llm.extras import NO_HEADERS, RequestHeaders
from treadle.core.llm.heartbeat import Heartbeat
from treadle.core.llm.limit import InFlightLimit
from treadle.core.llm.types import EndpointCounts, EndpointState

FAILURES_UNTIL_DOWN = 3
"""Consecutive failures that take an endpoint down; a refused connection or a failure on trial needs only one."""


_MAX_SESSIONS = 10_000
"""Sessions whose endpoints are remembered, the last ones used."""


class Health(Enum):
    """Health of an endpoint; it decides whether the endpoint gets requests."""

    HEALTHY = "healthy"
    TRIAL = "trial"
    """Back after an outage: gets requests, but the next failure takes it down again."""
    DOWN = "down"
    """Gets no requests until a check succeeds."""


class Endpoint:
    """State of one endpoint. All times are the event loop's."""

    def __init__(
        self,
        settings: EndpointSettings,
        max_in_flight: int,
        heartbeat: Heartbeat,
        headers: RequestHeaders = NO_HEADERS,
    ) -> None:
        self.target = Target(settings, headers)
        self.url = settings.url
        self.health = Health.HEALTHY
        self.in_flight = 0
        self.paused_until = 0.0
        self.heartbeat = heartbeat
        self.silent = False
        """Whether it went down because it did not respond at all, not even with errors."""
        self.last_error = ""
        self.probe_count = 0
        self.failures_in_a_row = 0
        self.counts = EndpointCounts()
        self._limit = InFlightLimit(max_in_flight)
        self._waiters: deque[asyncio.Future[bool]] = deque()
        self._idle: asyncio.Event | None = None
        self._salt = hashlib.blake2b(settings.url.encode(), digest_size=8).digest()

    @property
    def limit(self) -> int:
        """Maximum number of requests that may be in flight now."""
        return self._limit.value

    @property
    def load(self) -> int:
        """Number of requests in flight or waiting for a slot."""
        return self.in_flight + len(self._waiters)

    @property
    def usable(self) -> bool:
        """True if new requests may be placed here."""
        return self.health is Health.HEALTHY or self.health is Health.TRIAL

    def state(self) -> EndpointState:
        """Return the endpoint's current state."""
        counts = self.counts
        return EndpointState(
            url=self.url,
            health=self.health.value,
            in_flight=self.in_flight,
            queued=len(self._waiters),
            answered=counts.answered,
            sampled_tokens=counts.sampled_tokens,
            errors=dict(counts.errors),
            last_error=self.last_error,
        )

    @property
    def last_alive_at(self) -> float:
        """Time of the endpoint's last response of any kind."""
        return self.heartbeat.last_response_at

    @property
    def is_unresponsive(self) -> bool:
        """True if it is down because it was silent, so that its requests should be sent elsewhere."""
        return self.silent and self.health is Health.DOWN

    def rank(self, session: bytes) -> bytes:
        """Return the rendezvous hash of a session, which decides between endpoints with the same load."""
        return hashlib.blake2b(session, key=self._salt, digest_size=8).digest()

    def try_acquire(self) -> bool:
        """Take a slot if one is free and no request waits for one."""
        if self._waiters or self.in_flight >= self.limit:
            return False
        self.in_flight += 1
        return True

    async def acquire(self, *, first: bool = False) -> bool:
        """Wait for a slot in order of arrival, or before all others if `first`.

        Return False if the endpoint stopped taking requests meanwhile.
        """
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if first:
            self._waiters.appendleft(waiter)
        else:
            self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # The slot was granted just before the cancellation.
                if waiter.result():
                    self.release()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def release(self) -> None:
        """Release a slot and give it to the next waiter."""
        self.in_flight -= 1
        if self._waiters:
            self._grant_slots()
        if self._idle is not None and self.load == 0:
            self._idle.set()

    def _grant_slots(self) -> None:
        while self._waiters and self.in_flight < self.limit:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.in_flight += 1
                waiter.set_result(True)

    def _reject_waiters(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(False)

    async def wait_idle(self) -> None:
        """Return once nothing is in flight or waiting here."""
        while self.load:
            self._idle = self._idle or asyncio.Event()
            self._idle.clear()
            await self._idle.wait()

    def succeeded(self, sent_at: float) -> None:
        """Record an answer that just arrived, before its slot is released: the limit may rise."""
        self.failures_in_a_row = 0
        if self.health is Health.TRIAL:
            self.health = Health.HEALTHY
            self.probe_count = 0
        if self._limit.answered(self.in_flight, sent_at, self.last_alive_at):
            self._grant_slots()

    def refused(self, rest_until: float) -> None:
        """Record that the server asked to slow down; if it refuses everything, pause it until `rest_until`."""
        if self._limit.refused(self.in_flight - 1):
            self.paused_until = max(self.paused_until, rest_until)

    def failed(self, at_once: bool) -> bool:
        """Count a failure; return whether this one took the endpoint down."""
        self.failures_in_a_row += 1
        limit = 1 if at_once or self.health is Health.TRIAL else FAILURES_UNTIL_DOWN
        if not self.usable or self.failures_in_a_row < limit:
            return False
        self.health = Health.DOWN
        self.failures_in_a_row = 0
        self._reject_waiters()
        return True

    def readmit(self) -> None:
        """Put an endpoint on trial after a successful check."""
        if self.health is Health.DOWN:
            self.health = Health.TRIAL
            self.silent = False


class Homes:
    """The endpoints that each session has used. A session stays at these, because their caches hold its prompt."""

    def __init__(self) -> None:
        self._homes: OrderedDict[str, list[Endpoint]] = OrderedDict()

    def of(self, session: str, ready: Sequence[Endpoint]) -> Endpoint:
        """Return the session's first home among the `ready` endpoints.

        If the session has no home among these, the endpoint with the fewest requests becomes one. An empty session has
        no home.
        """
        if not session:
            return min(ready, key=lambda endpoint: endpoint.load)
        homes = self._homes.setdefault(session, [])
        self._homes.move_to_end(session)
        if len(self._homes) > _MAX_SESSIONS:
            self._homes.popitem(last=False)
        home = next((endpoint for endpoint in homes if endpoint in ready), None)
        if home is None:
            least = min(endpoint.load for endpoint in ready)
            key = session.encode("utf-8", "surrogatepass")
            home = max((item for item in ready if item.load == least), key=lambda endpoint: endpoint.rank(key))
            homes.append(home)
        return home
