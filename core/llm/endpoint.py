"""One endpoint as the pool sees it: its health, and how many requests it may hold now.

Nothing here sends a request.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from enum import Enum

from treadle.core.llm.client import Target
from treadle.core.llm.config import EndpointSettings
from treadle.core.llm.limit import InFlightLimit

FAILURES_UNTIL_DOWN = 3
"""Consecutive failures after which an endpoint counts as down; a refused connection or a failed trial needs one."""
GONE_AFTER_S = 0.5
"""A silent endpoint that does not answer GET /models for so long is given up, with all that it holds."""


class Health(Enum):
    """Whether an endpoint gets requests."""

    HEALTHY = "healthy"
    TRIAL = "trial"
    """Back after an outage: gets requests, but the next failure takes it down again."""
    DRAINING = "draining"
    """Finishes what it has and gets nothing new, until it is resumed."""
    DOWN = "down"
    """Gets nothing until a check finds it back."""


class Endpoint:
    """State of one endpoint. All times are the event loop's."""

    def __init__(self, settings: EndpointSettings, max_in_flight: int) -> None:
        self.target = Target(settings)
        self.url = settings.url
        self.health = Health.HEALTHY
        self.in_flight = 0
        self.paused_until = 0.0
        self.alive_at = 0.0
        """When it last said anything."""
        self.down_at = 0.0
        self.silent = False
        """Whether it went down because it said nothing, not even that it fails."""
        self.last_error = ""
        self.probe_count = 0
        self.failures_in_a_row = 0
        self._limit = InFlightLimit(max_in_flight)
        self._waiters: deque[asyncio.Future[bool]] = deque()
        self._idle: asyncio.Event | None = None
        self._salt = hashlib.blake2b(settings.url.encode(), digest_size=8).digest()

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return self._limit.value

    @property
    def load(self) -> int:
        """Requests in flight or waiting for a slot."""
        return self.in_flight + len(self._waiters)

    @property
    def usable(self) -> bool:
        """Whether new requests may be placed here."""
        return self.health is Health.HEALTHY or self.health is Health.TRIAL

    def gone(self, now: float) -> bool:
        """Whether it fell silent and has not even answered the first check in a while: what it holds is lost."""
        return self.silent and self.health is Health.DOWN and now - self.down_at >= GONE_AFTER_S

    def rank(self, session: bytes) -> bytes:
        """Rendezvous weight of a session here: the endpoint with the largest one is its home."""
        return hashlib.blake2b(session, key=self._salt, digest_size=8).digest()

    def try_acquire(self) -> bool:
        """Take a slot if one is free and nobody waits for it."""
        if self._waiters or self.in_flight >= self.limit:
            return False
        self.in_flight += 1
        return True

    async def acquire(self, *, first: bool = False) -> bool:
        """Wait for a slot in order of arrival, or before all others.

        Returns False if the endpoint stopped taking requests meanwhile.
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
                if waiter.result():
                    self.release()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def release(self) -> None:
        """Give a slot back and hand it on."""
        self.in_flight -= 1
        if self._waiters:
            self._hand_out()
        if self._idle is not None and self.load == 0:
            self._idle.set()

    def _hand_out(self) -> None:
        while self._waiters and self.in_flight < self.limit:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.in_flight += 1
                waiter.set_result(True)

    def _send_waiters_away(self) -> None:
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
        """An answer came, just now: healthy, and perhaps more may be held. Called while its slot is still taken."""
        self.failures_in_a_row = 0
        if self.health is Health.TRIAL:
            self.health = Health.HEALTHY
            self.probe_count = 0
        if self._limit.answered(self.in_flight, sent_at, self.alive_at):
            self._hand_out()

    def refused(self, rest_until: float) -> None:
        """The server asked to slow down; where it refuses everything, nothing is sent to it until a time."""
        if self._limit.refused(self.in_flight - 1):
            self.paused_until = max(self.paused_until, rest_until)

    def failed(self, at_once: bool) -> bool:
        """Count a failure; returns whether it took the endpoint down just now."""
        self.failures_in_a_row += 1
        limit = 1 if at_once or self.health is Health.TRIAL else FAILURES_UNTIL_DOWN
        if not self.usable or self.failures_in_a_row < limit:
            return False
        self.health = Health.DOWN
        self.failures_in_a_row = 0
        self._send_waiters_away()
        return True

    def drain(self) -> None:
        """Place nothing new here until `resume`."""
        self.health = Health.DRAINING
        self._send_waiters_away()

    def resume(self) -> None:
        """End a drain; the first failure takes the endpoint down."""
        if self.health is Health.DRAINING:
            self.health, self.silent = Health.TRIAL, False

    def readmit(self) -> None:
        """A check found the endpoint back."""
        if self.health is Health.DOWN:
            self.health = Health.TRIAL
            self.silent = False
