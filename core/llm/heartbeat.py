"""Check whether a server that holds requests is alive, and hold the clocks of its requests while it is silent.

A server that is frozen, cut off or swapped out accepts requests and does not respond. A server that is busy with a long
answer does not respond either, but it answers a small request meanwhile. So while requests are on the wire and nothing
has arrived for a while, the server is probed. If it does not answer, the clocks of all work that waits for it
(`core/work_clock.py`) are held, from its last response until its next one.

A busy server may take seconds for the probe as well. So the time that it gets depends on how long probes took so far.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from treadle.core.work_clock import TimeLimit

FRESH_S = 0.5
"""Seconds for which a response shows that the server is alive."""
PAUSES_UNTIL_SILENT = 3.0
"""Multiple of the first pause between probes that an answer to a probe may always take, at least `_MIN_SILENCE_S`; see
`Heartbeat.silence_limit_s`."""
TIMES_LATENCY = 4.0
"""Multiple of the usual time of recent probes that an answer to a probe may take if that is longer, at most
`_MAX_SILENCE_S`."""
_MIN_SILENCE_S = 0.5
_MAX_SILENCE_S = 60.0
_PROBE_S = 5.0
"""Timeout of a probe in seconds, or `silence_limit_s` if that is longer; it doubles with each unanswered probe, up to
`_MAX_SILENCE_S`."""
_LOOK_S = 0.5
_MIN_PAUSE_S = 0.05
_NUM_LATENCIES = 8


@dataclass(slots=True, eq=False)
class WatchedRequest:
    """Request on the wire: its time limit, and the time since which it waits."""

    limit: TimeLimit
    since: float
    held_until: float | None = None
    """Time at which its limit would have passed if its clock were not held; None while the clock runs."""


class Heartbeat:
    """Signs of life of one server. All times are the event loop's.

    Attributes:
        last_response_at: Time of its last response.
        recovered_at: Time of its first response after the latest silence.
        silent_since: Time of its last response while it is silent; else None.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[object]],
        *,
        min_pause_s: float = 1.0,
        max_pause_s: float = 5.0,
        max_silence_s: float = 120.0,
    ) -> None:
        """Create the monitor; `ask` sends a small request, and raises if it is not answered at all.

        The pauses between probes double from the first to the longest. A request is ended if it has waited through
        `max_silence_s` of silence and its own time would be over.
        """
        self.last_response_at = 0.0
        self.recovered_at = float("-inf")
        self.silent_since: float | None = None
        self._ask = ask
        self._min_pause_s = max(min_pause_s, _MIN_PAUSE_S)
        self._max_pause_s = max(max_pause_s, self._min_pause_s)
        self._max_silence_s = max_silence_s
        self._pause_s = self._min_pause_s
        self._busy_since = 0.0
        self._latencies: deque[float] = deque(maxlen=_NUM_LATENCIES)
        self._num_unanswered = 0
        """Number of probes without an answer since the last response."""
        self._watches: dict[WatchedRequest, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._probe_task: asyncio.Task[None] | None = None
        self._probe_sent_at = 0.0

    @property
    def silence_limit_s(self) -> float:
        """Seconds without an answer to a probe after which the server counts as silent."""
        least_s = max(_MIN_SILENCE_S, PAUSES_UNTIL_SILENT * self._min_pause_s)
        if not self._latencies:
            return least_s
        # Not the longest latency: a probe that is in flight when a silence ends also takes long.
        usual_s = sorted(self._latencies)[-2:][0]
        return max(least_s, min(TIMES_LATENCY * usual_s, _MAX_SILENCE_S))

    def took(self, seconds: float) -> None:
        """Record how long the server took to answer a probe."""
        self._latencies.append(seconds)

    def watch(self, limit: TimeLimit) -> WatchedRequest:
        """Start to watch a request that goes on the wire now."""
        now = _now()
        watch = WatchedRequest(limit, now)
        if not self._watches:
            self._busy_since, self._pause_s = now, self._min_pause_s
        self._watches[watch] = None
        if self.silent_since is not None:
            self._hold(watch)
        if self._timer is None:
            self._schedule_check(self._pause_s)
        return watch

    def unwatch(self, watch: WatchedRequest) -> None:
        """Stop watching a request that is off the wire."""
        del self._watches[watch]
        self._release(watch)

    def heard(self) -> None:
        """Record a response of any kind."""
        self.last_response_at = _now()
        self._pause_s, self._num_unanswered = self._min_pause_s, 0
        self._end_silence()

    def ended_by_silence(self, watch: WatchedRequest) -> bool:
        """Return whether a request was ended because its server was silent for too long."""
        return self.silent_since is not None and watch.held_until is not None and watch.limit.expired()

    async def is_alive(self) -> bool:
        """Return whether the server responds now, or did so just before; probe it if necessary."""
        began = _now()
        if began - self.last_response_at < FRESH_S:
            return True
        self.probe_now()
        question = self._probe_task
        assert question is not None
        await asyncio.wait({question}, timeout=max(0.0, self._probe_sent_at + self.silence_limit_s - began))
        if self.last_response_at < began:
            self._begin_silence(_now())
        return self.last_response_at >= began

    def probe_now(self) -> None:
        """Probe the server, unless a probe is on its way."""
        if self._probe_task is None:
            self._start_probe()

    async def close(self) -> None:
        """Cancel the current probe and the timer."""
        if self._timer is not None:
            self._timer.cancel()
        if self._probe_task is not None:
            self._probe_task.cancel()
            await asyncio.gather(self._probe_task, return_exceptions=True)

    def _schedule_check(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._watches:
            return
        now = _now()
        if self._probe_task is not None:
            # A probe that was in flight at the last response counts as unanswered only since that response.
            if now - max(self._probe_sent_at, self.last_response_at) >= self.silence_limit_s:
                self._begin_silence(now)
            self._schedule_check(_LOOK_S)
            return
        quiet_s = now - max(self.last_response_at, self._busy_since)
        if quiet_s < self._pause_s:
            self._schedule_check(max(self._pause_s - quiet_s, _MIN_PAUSE_S))  # Not sooner, even for a rounding error.
            return
        self._start_probe()
        self._schedule_check(_LOOK_S)

    def _start_probe(self) -> None:
        self._probe_sent_at = _now()
        self._probe_task = asyncio.get_running_loop().create_task(self._send_probe())

    async def _send_probe(self) -> None:
        # A server that became slow answers one of the probes; a dead connection answers no probe.
        within_s = min(max(_PROBE_S, self.silence_limit_s) * 2.0 ** min(self._num_unanswered, 10), _MAX_SILENCE_S)
        try:
            async with asyncio.timeout(within_s):
                await self._ask()
        except Exception:  # noqa: BLE001 - whatever the reason, it did not answer
            self._num_unanswered += 1
            if self.last_response_at < self._probe_sent_at:
                self._begin_silence(_now())
        else:
            self._num_unanswered = 0
            self.last_response_at = _now()
            self.took(self.last_response_at - self._probe_sent_at)
            self._end_silence()
        finally:
            self._probe_task = None
            self._busy_since = _now()
            self._pause_s = min(2 * self._pause_s, self._max_pause_s)

    def _begin_silence(self, now: float) -> None:
        if self.silent_since is None:
            # Silence counts from the last response, so the time until it was noticed is given back as well.
            self.silent_since = self.last_response_at
            for watch in self._watches:
                self._hold(watch)
        if now - self.silent_since >= self._max_silence_s:
            for watch in self._watches:
                waited_s = now - max(watch.since, self.silent_since)
                if waited_s >= self._max_silence_s and (watch.held_until or 0.0) <= now:
                    watch.limit.end_now()

    def _hold(self, watch: WatchedRequest) -> None:
        assert self.silent_since is not None
        limit = watch.limit
        watch.held_until = (limit.clock.loop_time(limit.when) if limit.when is not None else None) or _now()
        limit.clock.begin_hold(max(watch.since, self.silent_since))

    def _release(self, watch: WatchedRequest) -> None:
        if watch.held_until is not None:
            watch.held_until = None
            watch.limit.clock.end_hold()

    def _end_silence(self) -> None:
        if self.silent_since is not None:
            self.silent_since, self.recovered_at = None, self.last_response_at
            for watch in self._watches:
                self._release(watch)


def _now() -> float:
    return asyncio.get_running_loop().time()
