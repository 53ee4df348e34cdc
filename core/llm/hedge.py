"""Send a request that takes too long a second time (a hedge), so that a server that never answers costs only seconds.

The threshold follows recent answer times: no fixed timeout fits both a judge's single word and a long chain of thought.
The first attempt continues, so a request that is merely long loses nothing; the first answer counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from treadle.core.llm.call import PoolCall
from treadle.core.llm.endpoint import Endpoint

TIMES_P95 = 1.5
"""Multiple of the 95th percentile of recent answer times after which a request is late."""
MIN_SAMPLES = 8
SHARE = 0.05
"""Hedges that each answer adds to the budget, in addition to one per threshold time. Hedges of requests at an endpoint
that is down do not use the budget."""
_MAX_BUDGET = 10.0
_SAMPLES = 256
_SAMPLES_PER_UPDATE = 16
_MAX_TICK_S = 0.25
_UNKNOWN_S = float("inf")


class Hedges:
    """Monitor of a pool's attempts on the wire, which hedges the late ones."""

    def __init__(self, floor_s: float | None, most_per_call: int) -> None:
        self.threshold_s = _UNKNOWN_S
        self._floor_s = floor_s
        self._most_per_call = most_per_call
        self._calls: dict[PoolCall, None] = {}
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._until_update = MIN_SAMPLES
        self._budget = 1.0

    def sent(self, call: PoolCall, endpoint: Endpoint, now: float) -> None:
        """Record that an attempt goes on the wire."""
        call.endpoint, call.sent_at, call.hedge_at = endpoint, now, now
        if not call.is_hedge and self._floor_s is not None:
            self._calls[call] = None

    def ended(self, call: PoolCall) -> None:
        """Record that an attempt is off the wire, and cancel its hedges."""
        self._calls.pop(call, None)
        if call.hedges:
            for hedge in call.hedges:
                hedge.cancel()
            call.hedges.clear()

    def answered(self, seconds: float) -> None:
        """Record how long an answer took."""
        self._samples.append(seconds)
        self._budget = min(_MAX_BUDGET, self._budget + SHARE)
        self._until_update -= 1
        if self._until_update <= 0 and self._floor_s is not None:
            self._until_update = _SAMPLES_PER_UPDATE
            ordered = sorted(self._samples)
            self.threshold_s = max(self._floor_s, TIMES_P95 * ordered[(len(ordered) - 1) * 95 // 100])

    def postpone(self, call: PoolCall) -> None:
        """Take back a hedge that found no endpoint: it does not count, and may be tried again at the next tick."""
        if call.hedge_counted:
            self._budget = min(_MAX_BUDGET, self._budget + 1.0)
        call.hedge_at = call.sent_at

    async def watch(
        self,
        note_late: Callable[[PoolCall, Endpoint], None],
        hedge: Callable[[PoolCall], Coroutine[Any, Any, None]],
    ) -> None:
        """Look for late attempts until cancelled, report each to `note_late`, and start the hedges that are allowed."""
        if self._floor_s is None:
            return
        loop = asyncio.get_running_loop()
        tick_s = min(_MAX_TICK_S, self._floor_s / 4)
        while True:
            await asyncio.sleep(tick_s)
            now = loop.time()
            self._budget = min(_MAX_BUDGET, self._budget + tick_s / self.threshold_s)
            # `down` is from before these reports: an endpoint that they take down is probed first, then hedged.
            for call, endpoint, down in self._late(now):
                note_late(call, endpoint)
                if self._may_hedge(call, down):
                    call.hedge_at = now + self.threshold_s
                    call.hedges = [task for task in call.hedges if not task.done()]
                    call.hedges.append(loop.create_task(hedge(call)))

    def _late(self, now: float) -> list[tuple[PoolCall, Endpoint, bool]]:
        """Return the late calls, each with its endpoint and whether that endpoint is down."""
        late = []
        for call in self._calls:
            endpoint = call.endpoint
            if endpoint is None or now < call.hedge_at:
                continue
            # Before enough answers have shown how long they take, the silence of its server alone makes a call late.
            is_stuck = self.threshold_s == _UNKNOWN_S and endpoint.heartbeat.silent_since is not None
            if endpoint.is_unresponsive or is_stuck or self.is_late(call):
                # A silent endpoint may lose all its requests at once, so hedges of these do not use up the budget.
                late.append((call, endpoint, not endpoint.usable or endpoint.heartbeat.recovered_at > call.sent_at))
        return late

    def is_late(self, call: PoolCall) -> bool:
        """Return whether the attempt on the wire has taken too long.

        After a silence its server gets the time of one answer, because a frozen server later continues its requests.
        """
        recovered_at = call.endpoint.heartbeat.recovered_at if call.endpoint is not None else 0.0
        return asyncio.get_running_loop().time() - max(call.sent_at, recovered_at) >= self.threshold_s

    def _may_hedge(self, call: PoolCall, down: bool) -> bool:
        call.hedge_counted = False
        if call.hedged >= self._most_per_call:
            return False
        if down:
            return True
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        call.hedge_counted = True
        return True
