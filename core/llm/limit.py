"""Find how many requests one server can hold, from its answers and refusals alone.

Refusals at random (say, of one request in twenty) must not look like a limit, and servers do not announce their limit.
Above a limit, refusals come in a row: then the number of requests that the server still holds is the limit. Servers
that queue requests instead of refusing them are handled in `plateau`. Nothing here waits or sends.
"""

from __future__ import annotations

from treadle.core.llm.plateau import Plateau

START = 64
"""Limit at first, if the cap allows it."""
FIRST_GROWTH = 3
"""Increase per answer at the limit (fourfold per round of answers) until it is first lowered; 1 from then on."""
EVIDENCE = 4.0
"""Number of refusals in a row that show a limit."""
DECAY_PER_ANSWER = 0.25
"""Share of a refusal that each answer cancels: one refusal in five or fewer never adds up."""
FIRST_HOLD_ROUNDS = 2
MAX_HOLD_ROUNDS = 32
"""Rounds of answers before one more request is tried, at first and at most. Each refused try doubles their number."""
_TRIAL_ROUNDS = 2


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
        """Record that the server asked to slow down while it held `others` more requests.

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
