"""Find the number of requests in flight beyond which a server that queues requests answers no faster.

Latency alone does not show it: a batching server rightly gets slower as it holds more requests. Longer answers are
therefore only a reason to try half as many requests. If the throughput stays almost the same, the lower limit is kept;
otherwise the old one is restored. Nothing here waits.
"""

from __future__ import annotations

SLOWER = 2.0
"""Multiple of the best mean latency above which half the limit is tried."""
ENOUGH = 0.9
"""Share of the throughput that half of the requests must reach for the lower limit to be kept."""
MIN_ANSWERS = 64
"""Least answers per throughput measurement; two per request in flight if that is more, as they may come in bursts."""
RATES_AT_PLATEAU = 16
"""Measurements at a lowered ceiling before twice as many requests are tried: the server may have become faster."""

_FIRST_SHARE = 0.9
"""Share of the requests sent before the first answer that determine the best latency; the rest may have failed."""


class Plateau:
    """Throughput monitor of one server while its limit is reached; `ceiling` is the highest useful limit."""

    def __init__(self, cap: int) -> None:
        self.ceiling = cap
        self._cap = cap
        self._best_s = float("inf")
        self._answers = self._answers_left = 0
        self._sum_s = 0.0
        self._began = 0.0
        self._value = 0
        self._moved = False
        # While half of the limit is tried: the limit before, its answers per second, and the ceiling before.
        self._tried: tuple[int, float, int] | None = None
        self._below = False
        self._rates = 0

    def forget(self) -> int | None:
        """Drop the current measurement; return the limit to restore if half of it was being tried, else None."""
        if self._best_s < float("inf"):
            self._answers_left = 0
        if self._tried is None:
            return None
        before, _, self.ceiling = self._tried
        self._tried, self._below = None, False
        return before

    def answered(self, value: int, in_flight: int, seconds: float, now: float) -> int | None:
        """Record an answer that arrived while the limit was reached; return the next limit to try, if any."""
        if self._best_s == float("inf"):
            self._note_first(value, seconds, now)
            return None
        if in_flight > value:  # The request was sent under an earlier, larger limit.
            return None
        if not self._answers_left:
            self._answers = self._answers_left = max(MIN_ANSWERS, 2 * value)
            self._sum_s, self._began, self._value, self._moved = 0.0, now, value, False
            return None
        self._sum_s += seconds
        self._moved |= value != self._value
        self._answers_left -= 1
        if self._answers_left:
            return None
        return self._measured(value, self._sum_s / self._answers, self._answers / max(1e-9, now - self._began))

    def _note_first(self, value: int, seconds: float, now: float) -> None:
        # Among requests sent later, short answers arrive first and would make the rest look slow.
        if not self._began:
            self._answers = self._answers_left = max(1, int(_FIRST_SHARE * value))
            self._began = now
        if now - seconds < self._began:
            self._sum_s += seconds
            self._answers_left -= 1
            if not self._answers_left:
                self._best_s = self._sum_s / self._answers

    def _measured(self, value: int, mean_s: float, rate: float) -> int | None:
        if self._tried is not None:
            return self._judge(*self._tried, rate)
        suspicious = self._below or mean_s > SLOWER * self._best_s
        self._best_s = min(self._best_s, mean_s)
        if self._moved:  # the limit changed during the measurement
            return None
        if suspicious and value > 1:
            # Whatever the result, this latency is no longer suspicious.
            self._best_s, self._tried = mean_s, (value, rate, self.ceiling)
            self.ceiling = value // 2
            return self.ceiling
        if self.ceiling < self._cap and value == self.ceiling:
            self._rates += 1
            if self._rates >= RATES_AT_PLATEAU:
                self._rates, self.ceiling = 0, min(self._cap, 2 * self.ceiling)
        return None

    def _judge(self, before: int, rate_before: float, ceiling_before: int, rate: float) -> int:
        self._tried, self._rates = None, 0
        self._below = rate >= ENOUGH * rate_before
        if self._below:  # half of that may be enough too
            return self.ceiling
        self.ceiling = ceiling_before
        return before
