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

from treadle.core.work_clock import Limit

FRESH_S = 0.5
"""Seconds for which a response shows that the server is alive."""
PAUSES_UNTIL_SILENT = 3.0
"""A probe may take this multiple of the first pause, at least `_LEAST_PATIENCE_S`..."""
TIMES_LATENCY = 4.0
"""...or this multiple of what probes took, at most `_MOST_PATIENCE_S`, whichever is longer."""
_LEAST_PATIENCE_S = 0.5
_MOST_PATIENCE_S = 60.0
_PROBE_S = 5.0
"""Maximum seconds for a probe unless it may take longer; then another one follows, which may take twice as long."""
_LOOK_S = 0.5
_SHORTEST_PAUSE_S = 0.05
_NUM_LATENCIES = 8


@dataclass(slots=True, eq=False)
class Watch:
    """Request on the wire: its time limit, and the time since which it waits."""

    limit: Limit
    since: float
    held_until: float | None = None
    """Time at which its limit would have passed, while its clock is held; else None."""


class Heartbeat:
    """Signs of life of one server. All times are the event loop's.

    Attributes:
        heard_at: Time of its last response.
        back_at: Time of its first response after the latest silence.
        silent_since: Time of its last response while it is silent; else None.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[object]],
        *,
        first_pause_s: float = 1.0,
        longest_pause_s: float = 5.0,
        longest_silence_s: float = 120.0,
    ) -> None:
        """Create the monitor; `ask` sends a small request, and raises if it is not answered at all.

        The pauses between probes double from the first to the longest. A request is ended if it has waited through
        `longest_silence_s` of silence and its own time would be over.
        """
        self.heard_at = 0.0
        self.back_at = float("-inf")
        self.silent_since: float | None = None
        self._ask = ask
        self._first_pause_s = max(first_pause_s, _SHORTEST_PAUSE_S)
        self._longest_pause_s = max(longest_pause_s, self._first_pause_s)
        self._longest_silence_s = longest_silence_s
        self._pause_s = self._first_pause_s
        self._busy_since = 0.0
        self._latencies: deque[float] = deque(maxlen=_NUM_LATENCIES)
        self._num_unanswered = 0
        """Number of probes without an answer since the last response."""
        self._watches: dict[Watch, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._question: asyncio.Task[None] | None = None
        self._asked_at = 0.0

    @property
    def patience_s(self) -> float:
        """Seconds without an answer to a probe after which the server counts as silent."""
        least_s = max(_LEAST_PATIENCE_S, PAUSES_UNTIL_SILENT * self._first_pause_s)
        if not self._latencies:
            return least_s
        # Not the longest one: the probe that meets the end of a silence takes long, too.
        usual_s = sorted(self._latencies)[-2:][0]
        return max(least_s, min(TIMES_LATENCY * usual_s, _MOST_PATIENCE_S))

    def took(self, seconds: float) -> None:
        """Record how long the server took to answer a probe."""
        self._latencies.append(seconds)

    def watch(self, limit: Limit) -> Watch:
        """Start to watch a request that goes on the wire now."""
        now = _now()
        watch = Watch(limit, now)
        if not self._watches:
            self._busy_since, self._pause_s = now, self._first_pause_s
        self._watches[watch] = None
        if self.silent_since is not None:
            self._hold(watch)
        if self._timer is None:
            self._look_in(self._pause_s)
        return watch

    def unwatch(self, watch: Watch) -> None:
        """Stop watching a request that is off the wire."""
        del self._watches[watch]
        self._release(watch)

    def heard(self) -> None:
        """Record a response of any kind."""
        self.heard_at = _now()
        self._pause_s, self._num_unanswered = self._first_pause_s, 0
        self._end_silence()

    def gave_up(self, watch: Watch) -> bool:
        """Return whether a request was ended because its server was silent for too long."""
        return self.silent_since is not None and watch.held_until is not None and watch.limit.expired()

    async def is_alive(self) -> bool:
        """Return whether the server responds now, or did so just before; probe it if necessary."""
        began = _now()
        if began - self.heard_at < FRESH_S:
            return True
        self.ask_now()
        question = self._question
        assert question is not None
        await asyncio.wait({question}, timeout=max(0.0, self._asked_at + self.patience_s - began))
        if self.heard_at < began:
            self._fall_silent(_now())
        return self.heard_at >= began

    def ask_now(self) -> None:
        """Probe the server, unless a probe is on its way."""
        if self._question is None:
            self._begin_question()

    async def close(self) -> None:
        """Cancel the current probe and the timer."""
        if self._timer is not None:
            self._timer.cancel()
        if self._question is not None:
            self._question.cancel()
            await asyncio.gather(self._question, return_exceptions=True)

    def _look_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._watches:
            return
        now = _now()
        if self._question is not None:
            if now - self._asked_at >= self.patience_s and self.heard_at < self._asked_at:
                self._fall_silent(now)
            self._look_in(_LOOK_S)
            return
        quiet_s = now - max(self.heard_at, self._busy_since)
        if quiet_s < self._pause_s:
            self._look_in(max(self._pause_s - quiet_s, _SHORTEST_PAUSE_S))  # Not for a rounding error.
            return
        self._begin_question()
        self._look_in(_LOOK_S)

    def _begin_question(self) -> None:
        self._asked_at = _now()
        self._question = asyncio.get_running_loop().create_task(self._put_question())

    async def _put_question(self) -> None:
        # A server that became slow answers one of them; on a connection that is dead none is answered.
        within_s = min(max(_PROBE_S, self.patience_s) * 2.0 ** min(self._num_unanswered, 10), _MOST_PATIENCE_S)
        try:
            async with asyncio.timeout(within_s):
                await self._ask()
        except Exception:  # noqa: BLE001 - whatever the reason, it did not answer
            self._num_unanswered += 1
            if self.heard_at < self._asked_at:
                self._fall_silent(_now())
        else:
            self._num_unanswered = 0
            self.heard_at = _now()
            self.took(self.heard_at - self._asked_at)
            self._end_silence()
        finally:
            self._question = None
            self._busy_since = _now()
            self._pause_s = min(2 * self._pause_s, self._longest_pause_s)

    def _fall_silent(self, now: float) -> None:
        if self.silent_since is None:
            # Silence counts from the last response, so the time until it was noticed is given back as well.
            self.silent_since = self.heard_at
            for watch in self._watches:
                self._hold(watch)
        if now - self.silent_since >= self._longest_silence_s:
            for watch in self._watches:
                waited_s = now - max(watch.since, self.silent_since)
                if waited_s >= self._longest_silence_s and (watch.held_until or 0.0) <= now:
                    watch.limit.end_now()

    def _hold(self, watch: Watch) -> None:
        assert self.silent_since is not None
        limit = watch.limit
        watch.held_until = (limit.clock.loop_time(limit.when) if limit.when is not None else None) or _now()
        limit.clock.begin_hold(max(watch.since, self.silent_since))

    def _release(self, watch: Watch) -> None:
        if watch.held_until is not None:
            watch.held_until = None
            watch.limit.clock.end_hold()

    def _end_silence(self) -> None:
        if self.silent_since is not None:
            self.silent_since, self.back_at = None, self.heard_at
            for watch in self._watches:
                self._release(watch)


def _now() -> float:
    return asyncio.get_running_loop().time()
