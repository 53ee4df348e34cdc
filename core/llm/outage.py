"""Track endpoints that are down: check them until they are back, and log each outage only once."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from treadle.core.llm.config import ModelSettings
from treadle.core.llm.endpoint import Endpoint, Health
from treadle.core.llm.failures import Failure
from treadle.core.untrusted.sanitize import one_line

_log = logging.getLogger(__name__)

QUIET_S = 60.0
"""Seconds after a log line about an endpoint during which its further outages are counted, not logged."""


@dataclass(slots=True)
class _Outage:
    since: float
    handled: bool = False
    logged: bool = False


@dataclass(slots=True)
class _LogThrottle:
    """Time of the last log line on a subject, and the number of lines suppressed since."""

    at: float = float("-inf")
    num_suppressed: int = 0

    def due(self, now: float) -> bool:
        if now - self.at < QUIET_S:
            self.num_suppressed += 1
            return False
        self.at = now
        return True


class Outages:
    """Outages of a model's endpoints.

    Attributes:
        over: Event that is set while any endpoint takes requests.
    """

    def __init__(
        self,
        name: str,
        settings: ModelSettings,
        endpoints: Sequence[Endpoint],
        ask: Callable[[Endpoint], Awaitable[int]],
        chance: random.Random,
    ) -> None:
        """Create the tracker; `ask` sends GET /models and returns the status, `chance` is the jitter of pauses."""
        self.over = asyncio.Event()
        self.over.set()
        self._name = name
        self._settings = settings
        self._endpoints = endpoints
        self._ask = ask
        self._random = chance
        self._probes: set[asyncio.Task[None]] = set()
        self._down: dict[Endpoint, _Outage] = {}
        self._throttles: dict[Endpoint | None, _LogThrottle] = {}
        self._all_down_logged = False
        self._closed = False

    def describe(self) -> str:
        """Return the last error of each endpoint, as the cause of an exception."""
        states = "; ".join(f"{item.url} ({item.last_error or item.health.value})" for item in self._endpoints)
        return f"models.{self._name}: no endpoint answers: {states}"

    def note_fault(self, endpoint: Endpoint, error: str, *, at_once: bool) -> None:
        """Record a failure that counts against an endpoint's health; `at_once` takes it down immediately."""
        on_trial = endpoint.health is Health.TRIAL
        endpoint.last_error = error
        if not endpoint.failed(at_once):
            return
        self._down.setdefault(endpoint, _Outage(asyncio.get_running_loop().time()))
        self.refresh()
        if self._closed:
            return
        # Three failures in a row may be chance: logged if the check fails too.
        if at_once or on_trial:
            self._log_down(endpoint)
        probe = asyncio.get_running_loop().create_task(self._probe(endpoint))
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    def note_success(self, endpoint: Endpoint, sent_at: float) -> None:
        """Record that the endpoint just answered a request that was sent at `sent_at`."""
        endpoint.succeeded(sent_at)
        outage = self._down.get(endpoint) if self._down else None
        # A request that was sent before the outage does not show that it is over.
        if outage is None or sent_at < outage.since:
            return
        del self._down[endpoint]
        if outage.logged:
            seconds = asyncio.get_running_loop().time() - outage.since
            _log.warning("models.%s: %s answers again after %.3g s", self._name, endpoint.url, seconds)

    def refresh(self) -> None:
        """Set or clear `over` after an endpoint's health changed."""
        if any(endpoint.usable for endpoint in self._endpoints):
            self.over.set()
            self._all_down_logged = False
        else:
            self.over.clear()

    async def close(self) -> None:
        """Cancel all checks."""
        self._closed = True
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)

    async def _probe(self, endpoint: Endpoint) -> None:
        """Check an endpoint that is down, at growing intervals, until it answers with a status below 500."""
        while endpoint.health is Health.DOWN:
            if endpoint.probe_count:
                pause = self._settings.probe_base_s * 2.0 ** min(endpoint.probe_count - 1, 30)
                await asyncio.sleep(min(self._settings.probe_max_s, pause) * self._random.uniform(0.5, 1.0))
            endpoint.probe_count += 1
            status = 599
            try:
                async with asyncio.timeout(max(self._settings.connect_timeout_s, endpoint.heartbeat.silence_limit_s)):
                    status = await self._ask(endpoint)
            except (Failure, TimeoutError):
                pass
            except Exception as error:  # noqa: BLE001 - without further checks, it would stay down for good
                endpoint.last_error = f"its check failed: {type(error).__name__}: {error}"
            if status < 500:
                endpoint.heartbeat.heard()
                endpoint.readmit()
            else:
                self._log_down(endpoint)
        self.refresh()

    def _log_down(self, endpoint: Endpoint) -> None:
        outage = self._down.get(endpoint)
        if outage is None or outage.handled:
            return
        outage.handled = True
        now = asyncio.get_running_loop().time()
        logged = self._throttles.setdefault(endpoint, _LogThrottle())
        if logged.due(now):
            outage.logged = True
            left = sum(item.usable for item in self._endpoints)
            more = (
                f"; was down {logged.num_suppressed} more times since the last such message"
                if logged.num_suppressed
                else ""
            )
            logged.num_suppressed = 0
            error = one_line(endpoint.last_error)
            words = (self._name, endpoint.url, error, left, len(self._endpoints), more)
            _log.warning("models.%s: %s is down: %s; %d of %d endpoints left%s", *words)
        self._log_all_down(now)

    def _log_all_down(self, now: float) -> None:
        if self._all_down_logged or any(endpoint.usable for endpoint in self._endpoints):
            return
        self._all_down_logged = True
        if self._throttles.setdefault(None, _LogThrottle()).due(now):
            _log.warning(
                "models.%s: all endpoints are down; requests wait up to %g s (outage_wait_s) for one to come back",
                self._name,
                self._settings.outage_wait_s,
            )
