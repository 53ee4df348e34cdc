"""Track the progress of a stage and estimate the time left, for the terminal and the Prefect UI."""

from __future__ import annotations

import time

from treadle.core.figures import duration

Fact = str | int | float

_FIRST_UNITS, _FIRST_SHARE = 10, 0.05
"""No estimate before this many units, or this share of them, are finished, whichever is less: concurrency delays the
first ones.
"""


class ProgressTracker:
    """Progress counter of one attempt of a stage."""

    def __init__(self) -> None:
        self.total = self.done = self._done_before = 0
        self.unit = "units"
        self._facts: dict[str, Fact] = {}
        self._began = time.monotonic()

    def start(self, total: int, done: int, unit: str) -> None:
        """Start, or restart with another total; `done` units were finished before."""
        self.total, self.done, self._done_before, self.unit = total, done, done, unit
        self._began = time.monotonic()

    def advance(self, count: int, facts: dict[str, Fact]) -> None:
        """Count finished units; later facts replace earlier ones of the same name."""
        self.done += count
        self._facts.update(facts)

    def counts(self) -> str:
        """Return the progress as in `12 of 40 rollouts`."""
        return f"{self.done:,} of {self.total:,} {self.unit}"

    def estimate(self) -> str:
        """Return the time left as in `about 2 min left`, by the pace of this attempt; empty if unknown."""
        left_s = self.left_s()
        return "" if left_s is None else f"about {duration(left_s)} left"

    def left_s(self) -> float | None:
        """Return the seconds left, by the pace of this attempt; None if unknown or if nothing is left."""
        done_now = self.done - self._done_before
        if done_now <= 0 or self.done >= self.total:
            return None
        if done_now < min(_FIRST_UNITS, _FIRST_SHARE * (self.total - self._done_before)):
            return None
        return (self.total - self.done) * (time.monotonic() - self._began) / done_now

    def facts(self) -> list[str]:
        """Return facts of the stage as in `tokens per s 310`; the text is not sanitized yet."""
        return [
            f"{name.replace('_', ' ')} {value:,.1f}"
            if isinstance(value, float)
            else f"{name.replace('_', ' ')} {value}"
            for name, value in self._facts.items()
        ]
