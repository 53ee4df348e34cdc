"""Endpoints that are down: asked until they are back, and told in the log once each, however many requests met it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from treadle.core.harmless import one_line
from treadle.core.llm.config import ModelSettings
from treadle.core.llm.endpoint import GONE_AFTER_S, Endpoint, Health
from treadle.core.llm.wire import Failure

_log = logging.getLogger(__name__)

QUIET_S = 60.0
"""An endpoint that goes down again within this time of the last line about it is counted, not told."""


@dataclass(slots=True)
class _Outage:
    since: float
    noted: bool = False
    told: bool = False


@dataclass(slots=True)
class _Told:
    """When something was last told, and what was not told since."""

    at: float = float("-inf")
    untold: int = 0

    def due(self, now: float) -> bool:
        if now - self.at < QUIET_S:
            self.untold += 1
            return False
        self.at = now
        return True


class Outages:
    """Which endpoints of a model are down.

    Attributes:
        over: Set while any endpoint takes requests.
    """

    def __init__(
        self,
        name: str,
        settings: ModelSettings,
        endpoints: Sequence[Endpoint],
        ask: Callable[[Endpoint], Awaitable[int]],
        chance: random.Random,
    ) -> None:
        """`ask` sends GET /models and returns the status; `chance` shortens pauses."""
        self.over = asyncio.Event()
        self.over.set()
        self._name = name
        self._settings = settings
        self._endpoints = endpoints
        self._ask = ask
        self._random = chance
        self._probes: set[asyncio.Task[None]] = set()
        self._down: dict[Endpoint, _Outage] = {}
        self._told: dict[Endpoint | None, _Told] = {}
        self._all_told = False
        self._closed = False

    def describe(self) -> str:
        """What each endpoint said last, as the cause of an error."""
        states = "; ".join(f"{item.url} ({item.last_error or item.health.value})" for item in self._endpoints)
        return f"models.{self._name}: no endpoint answers: {states}"

    def note_fault(self, endpoint: Endpoint, error: str, *, at_once: bool) -> None:
        """A request failed in a way that speaks against the endpoint's health; `at_once` takes it down by itself."""
        on_trial = endpoint.health is Health.TRIAL
        endpoint.last_error = error
        if not endpoint.failed(at_once):
            return
        endpoint.down_at = asyncio.get_running_loop().time()
        self._down.setdefault(endpoint, _Outage(endpoint.down_at))
        self.refresh()
        if self._closed:
            return
        # Silence may be one long answer, and three failures in a row may be chance: told if the first check fails too.
        loop = asyncio.get_running_loop()
        if endpoint.silent:
            loop.call_later(GONE_AFTER_S, self._tell_if_gone, endpoint)
        elif at_once or on_trial:
            self._tell_down(endpoint)
        probe = loop.create_task(self._probe(endpoint))
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    def note_success(self, endpoint: Endpoint, sent_at: float) -> None:
        """The endpoint just now did what it was asked at a time."""
        endpoint.succeeded(sent_at)
        outage = self._down.get(endpoint) if self._down else None
        # What was sent before the outage says nothing of its end.
        if outage is None or sent_at < outage.since:
            return
        del self._down[endpoint]
        if outage.told:
            seconds = asyncio.get_running_loop().time() - outage.since
            _log.warning("models.%s: %s answers again after %.3g s", self._name, endpoint.url, seconds)

    def refresh(self) -> None:
        """Set or clear `over` after an endpoint's health changed."""
        if any(endpoint.usable for endpoint in self._endpoints):
            self.over.set()
            self._all_told = False
        else:
            self.over.clear()

    async def close(self) -> None:
        """End all checks."""
        self._closed = True
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)

    async def _probe(self, endpoint: Endpoint) -> None:
        """Ask an endpoint that is down, at growing intervals, until it answers anything but a server error."""
        while endpoint.health is Health.DOWN:
            if endpoint.probe_count:
                pause = self._settings.probe_base_s * 2.0 ** min(endpoint.probe_count - 1, 30)
                await asyncio.sleep(min(self._settings.probe_max_s, pause) * self._random.uniform(0.5, 1.0))
            endpoint.probe_count += 1
            status = 599
            try:
                async with asyncio.timeout(self._settings.connect_timeout_s):
                    status = await self._ask(endpoint)
            except (Failure, TimeoutError):
                pass
            if status < 500:
                endpoint.alive_at = asyncio.get_running_loop().time()
                endpoint.readmit()
            else:
                self._tell_down(endpoint)
        self.refresh()

    def _tell_if_gone(self, endpoint: Endpoint) -> None:
        if not self._closed and endpoint.gone(asyncio.get_running_loop().time()):
            self._tell_down(endpoint)

    def _tell_down(self, endpoint: Endpoint) -> None:
        outage = self._down.get(endpoint)
        if outage is None or outage.noted:
            return
        outage.noted = True
        now = asyncio.get_running_loop().time()
        told = self._told.setdefault(endpoint, _Told())
        if told.due(now):
            outage.told = True
            left = sum(item.usable for item in self._endpoints)
            more = f"; was down {told.untold} more times since this was last said" if told.untold else ""
            told.untold = 0
            error = one_line(endpoint.last_error)
            words = (self._name, endpoint.url, error, left, len(self._endpoints), more)
            _log.warning("models.%s: %s is down: %s; %d of %d endpoints left%s", *words)
        self._tell_all_down(now)

    def _tell_all_down(self, now: float) -> None:
        if self._all_told or any(endpoint.usable for endpoint in self._endpoints):
            return
        self._all_told = True
        if self._told.setdefault(None, _Told()).due(now):
            _log.warning(
                "models.%s: no endpoint is left; requests wait up to %g s (outage_wait_s) for one to come back",
                self._name,
                self._settings.outage_wait_s,
            )
