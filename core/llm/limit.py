"""Find how many requests one server can hold, from its answers and refusals alone.

Refusals at random (say, of one request in twenty) must not look like a limit, and servers do not announce their limit.
Above a limit, refusals come in a row: then the number of requests that the server still holds is the limit.

Servers may also queue requests instead of refusing them (`Plateau`). Latency alone does not show the number beyond
which such a server answers no faster: a batching server rightly gets slower as it holds more requests. Longer answers
are therefore only a reason to try half as many requests. If the throughput stays almost the same, the lower limit is
kept; otherwise the old one is restored. Nothing here waits or sends.
"""

from __future__ import annotations

START = 64
"""Limit at first, if the cap allows it."""
FIRST_GROWTH = 3
"""Number by which each answer at the limit raises it (fourfold per round of answers), until the limit is first lowered;
1 from then on."""
EVIDENCE = 4.0
"""Number of refusals in a row that show a limit."""
DECAY_PER_ANSWER = 0.25
"""Share of a refusal that each answer cancels: one refusal in five or fewer never adds up."""
FIRST_HOLD_ROUNDS = 2
MAX_HOLD_ROUNDS = 32
"""Rounds of answers before one more request is tried: `FIRST_HOLD_ROUNDS` at first. Each refused try doubles their
number, up to `MAX_HOLD_ROUNDS`."""
_TRIAL_ROUNDS = 2
SLOWER = 2.0
"""Multiple of the best mean latency above which half the limit is tried."""
ENOUGH = 0.9
"""Share of the throughput that half of the requests must reach for the lower limit to be kept."""
MIN_ANSWERS = 64
"""Least answers per throughput measurement; two per request in flight if that is more, as they may come in bursts."""
RATES_AT_PLATEAU = 16
"""Measurements at a lowered ceiling before twice as many requests are tried: the server may have become faster."""
_FIRST_SHARE = 0.9
"""Share of the limit: the mean latency of this many answers to requests that were sent before the first answer is the
first best latency. It is below 1 because some of these requests may have failed."""


class InFlightLimit:
    """Number of requests that one server may hold now: `value`, between 1 and a cap."""

    def __init__(self, cap: int) -> None:
        self.value = min(cap, START)
        self._cap = cap
        self._refusals = 0.0
        self._growth = FIRST_GROWTH
        self._plateau: Plateau | None = Plateau(cap)
        self._hold_rounds = FIRST_HOLD_ROUNDS
        # Answers at the limit until the next step; 0 while it grows with every answer.
        self._answers_left = 0
        self._trying = False

    def answered(self, in_flight: int, sent_at: float, now: float) -> bool:
        """Record an answer; return whether the limit rose. `in_flight` includes the answered request."""
        if self._refusals:
            self._refusals = max(0.0, self._refusals - DECAY_PER_ANSWER)
        before, plateau = self.value, self._plateau
        if in_flight < before:  # something other than the limit keeps requests away
            if plateau is not None:
                self.value = plateau.forget() or before
            return self.value > before
        most = self._cap if plateau is None else plateau.ceiling
        tried = None if plateau is None else plateau.answered(before, in_flight, now - sent_at, now)
        if tried is not None:
            self.value = tried
        elif before < most:
            self._rise(most)
        return self.value > before

    def _rise(self, most: int) -> None:
        if self._answers_left:
            self._answers_left -= 1
            if self._answers_left:
                return
            self._trying = not self._trying
            if self._trying:
                self._answers_left = _TRIAL_ROUNDS * self.value
            else:
                self._hold_rounds = FIRST_HOLD_ROUNDS
        # A trial adds a single request.
        self.value = min(most, self.value + (1 if self._trying else self._growth))

    def refused(self, others: int) -> bool:
        """Record that the server refused a request and asked to slow down; `others`: other requests that it held then.

        Return whether it refuses everything, whatever the load: then only waiting helps.
        """
        self._refusals = min(EVIDENCE, self._refusals + 1.0)
        if self._refusals < EVIDENCE:
            return False
        self._plateau = None  # a server that refuses requests does not queue them
        self._cut(others)
        if others:
            return False
        self._answers_left = 0
        return True

    def _cut(self, value: int) -> None:
        if self._trying:
            self._hold_rounds = min(MAX_HOLD_ROUNDS, 2 * self._hold_rounds)
            self._trying = False
        if self._plateau is not None:
            self._plateau.forget()
        self._growth = 1
        self.value = max(1, min(self.value, value))
        self._answers_left = self._hold_rounds * self.value


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
