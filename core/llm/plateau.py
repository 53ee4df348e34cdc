"""Where more requests in flight bring no more answers: for servers that let requests wait instead of refusing them.

Time alone does not show it, for a batching server rightly gets slower as it holds more. So longer answers only raise a
suspicion, and half as many requests are tried: they must lose next to nothing, or all is as before. Nothing here waits.
"""

from __future__ import annotations

SLOWER = 2.0
"""Answers that take so many times what they took at best make a check due."""
ENOUGH = 0.9
"""Share of the answers per second that half of the requests must bring to be enough."""
FEWEST_ANSWERS = 64
"""Answers that a rate is taken from, or two per request in flight if that is more: they may come in bursts."""
RATES_AT_PLATEAU = 16
"""Rates that are taken until twice as many requests are tried again; the server may have got faster."""

_FIRST_SHARE = 0.9
"""Share of the requests sent before the first answer that tell what answers take at best; the rest may have failed."""


class Plateau:
    """Watches the answers of one server while its limit is reached; `ceiling` is the most that is worth having."""

    def __init__(self, cap: int) -> None:
        self.ceiling = cap
        self._cap = cap
        self._best_s = float("inf")
        self._answers = self._answers_left = 0
        self._sum_s = 0.0
        self._began = 0.0
        self._value = 0
        self._moved = False
        # While half of it is tried: the limit, its answers per second, and the ceiling before.
        self._tried: tuple[int, float, int] | None = None
        self._below = False
        self._rates = 0

    def forget(self) -> int | None:
        """Drop what is being measured; returns the limit to go back to, if half of it was being tried."""
        if self._best_s < float("inf"):
            self._answers_left = 0
        if self._tried is None:
            return None
        before, _, self.ceiling = self._tried
        self._tried, self._below = None, False
        return before

    def answered(self, value: int, in_flight: int, seconds: float, now: float) -> int | None:
        """Note an answer that came while the limit was reached; returns another limit where one is to be tried."""
        if self._best_s == float("inf"):
            self._note_first(value, seconds, now)
            return None
        if in_flight > value:  # those of the larger limit before
            return None
        if not self._answers_left:
            self._answers = self._answers_left = max(FEWEST_ANSWERS, 2 * value)
            self._sum_s, self._began, self._value, self._moved = 0.0, now, value, False
            return None
        self._sum_s += seconds
        self._moved |= value != self._value
        self._answers_left -= 1
        if self._answers_left:
            return None
        return self._measured(value, self._sum_s / self._answers, self._answers / max(1e-9, now - self._began))

    def _note_first(self, value: int, seconds: float, now: float) -> None:
        # Of requests that were sent later the short answers come first, and would make the others look slow.
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
        if self._moved:
            return None
        if suspicious and value > 1:
            # Whatever comes out, so long is no longer suspicious.
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
        if self._below:  # and half of that may be enough too
            return self.ceiling
        self.ceiling = ceiling_before
        return before
