"""How many requests one server may hold: found by asking, without a word from the server about it.

A refusal that comes whatever the load is (one request in twenty, say) must not look like a limit, and a limit must be
found although nobody names it. What tells them apart is that above a limit refusals come in a row: then what the
server holds at that moment is the limit. Servers that refuse nothing are `plateau`'s. Nothing here waits or sends.
"""

from __future__ import annotations

from treadle.core.llm.plateau import Plateau

START = 64
"""Requests at first, where the cap allows as many."""
FIRST_GROWTH = 3
"""More requests per answer at the limit until something is refused: four times as many per round; then one more."""
EVIDENCE = 4.0
"""Refusals in a row that show a limit."""
FORGOTTEN_PER_ANSWER = 0.25
"""Share of a refusal that each answer takes back: one refusal in five and fewer never add up."""
FIRST_HOLD_ROUNDS = 2
LONGEST_HOLD_ROUNDS = 32
"""Rounds of answers between two tries of one more request; doubled each time that the one more was refused."""
_TRIAL_ROUNDS = 2


class InFlightLimit:
    """The number of requests that one server may hold now: `value`, between 1 and a cap."""

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
        """Note an answer, with so many requests in flight including its own; returns whether the limit rose."""
        if self._refusals:
            self._refusals = max(0.0, self._refusals - FORGOTTEN_PER_ANSWER)
        before, plateau = self.value, self._plateau
        if in_flight < before:  # it is not the limit that keeps requests away
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
        # A trial is of one more.
        self.value = min(most, self.value + (1 if self._trying else self._growth))

    def refused(self, others: int) -> bool:
        """Note that the server asked to slow down while it held so many others.

        Returns whether it refuses all that it is asked, whatever the load: then only waiting helps.
        """
        self._refusals = min(EVIDENCE, self._refusals + 1.0)
        if self._refusals < EVIDENCE:
            return False
        self._plateau = None  # a server that refuses does not let requests wait
        self._cut(others)
        if others:
            return False
        self._answers_left = 0
        return True

    def _cut(self, value: int) -> None:
        if self._trying:
            self._hold_rounds = min(LONGEST_HOLD_ROUNDS, 2 * self._hold_rounds)
            self._trying = False
        if self._plateau is not None:
            self._plateau.forget()
        self._growth = 1
        self.value = max(1, min(self.value, value))
        self._answers_left = self._hold_rounds * self.value
