"""A second try beside a request that takes too long, so that a server which never answers costs seconds.

What is too long follows from what answers took of late: no time limit fits both a judge's word and a long chain of
thought. The first attempt goes on, so a request that is merely long loses nothing; the first answer counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from treadle.core.llm.call import Call
from treadle.core.llm.endpoint import Endpoint

TIMES_P95 = 1.5
"""A request is late after so many times what 95 % of recent answers took."""
FEWEST_SAMPLES = 8
SHARE = 0.05
"""Most hedges per answer in the long run, besides one per time limit; those of endpoints that are down are free."""
_MOST_SAVED = 10.0
_SAMPLES = 256
_SAMPLES_PER_UPDATE = 16
_LONGEST_TICK_S = 0.25


class Hedges:
    """The attempts of a pool that are on the wire, and which of them are late."""

    def __init__(self, floor_s: float | None, most_per_call: int) -> None:
        self.threshold_s = float("inf")
        self._floor_s = floor_s
        self._most_per_call = most_per_call
        self._calls: dict[Call, None] = {}
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._until_update = FEWEST_SAMPLES
        self._saved = 1.0

    def sent(self, call: Call, endpoint: Endpoint, now: float) -> None:
        """An attempt goes on the wire."""
        call.endpoint, call.sent_at, call.hedge_at, call.known_late = endpoint, now, now, False
        if not call.beside and self._floor_s is not None:
            self._calls[call] = None

    def ended(self, call: Call) -> None:
        """It is off the wire; its hedges end with it."""
        self._calls.pop(call, None)
        if call.hedges:
            for hedge in call.hedges:
                hedge.cancel()
            call.hedges.clear()

    def answered(self, seconds: float) -> None:
        """Note how long an answer took."""
        self._samples.append(seconds)
        self._saved = min(_MOST_SAVED, self._saved + SHARE)
        self._until_update -= 1
        if self._until_update <= 0 and self._floor_s is not None:
            self._until_update = _SAMPLES_PER_UPDATE
            ordered = sorted(self._samples)
            self.threshold_s = max(self._floor_s, TIMES_P95 * ordered[(len(ordered) - 1) * 95 // 100])

    def postpone(self, call: Call) -> None:
        """A hedge found no endpoint: it counts for nothing, and may be tried at the next look."""
        if call.hedge_counted:
            self._saved = min(_MOST_SAVED, self._saved + 1.0)
        call.hedge_at = call.sent_at

    async def watch(
        self,
        note_late: Callable[[Call, Endpoint], None],
        hedge: Callable[[Call], Coroutine[Any, Any, None]],
    ) -> None:
        """Look for late attempts for ever; the first lateness of each is noted, and a hedge begun where one may be."""
        if self._floor_s is None:
            return
        loop = asyncio.get_running_loop()
        tick_s = min(_LONGEST_TICK_S, self._floor_s / 4)
        while True:
            await asyncio.sleep(tick_s)
            now = loop.time()
            self._saved = min(_MOST_SAVED, self._saved + tick_s / self.threshold_s)
            # What goes down by what is noted now is asked first whether it is there, before all its calls are doubled.
            for call, endpoint, down in self._late(now):
                if not call.known_late:
                    call.known_late = True
                    note_late(call, endpoint)
                if self._may_hedge(call, down):
                    call.hedge_at = now + self.threshold_s
                    call.hedges = [task for task in call.hedges if not task.done()]
                    call.hedges.append(loop.create_task(hedge(call)))

    def _late(self, now: float) -> list[tuple[Call, Endpoint, bool]]:
        """Late calls, where they are, and whether that is down."""
        late = []
        for call in self._calls:
            endpoint = call.endpoint
            if endpoint is None or now < call.hedge_at:
                continue
            if now - call.sent_at >= self.threshold_s or endpoint.gone(now):
                late.append((call, endpoint, not endpoint.usable))
        return late

    def _may_hedge(self, call: Call, down: bool) -> bool:
        call.hedge_counted = False
        if call.hedged >= self._most_per_call:
            return False
        if down:
            return True
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        call.hedge_counted = True
        return True
