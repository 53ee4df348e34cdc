"""Measure the time of a piece of work, without the time that infrastructure holds it up.

A deadline limits the time of an agent. Delays in its servers, in our own process or in a queue must not decide how the
agent ends, so deadlines of rollouts, questions and judgements are times of a `WorkClock`, not of the event loop. Code
that waits for infrastructure holds the clock. Code that detects lost time afterwards gives it back. The clock of the
current work is in the task's context. `core/steady_loop.py` handles stops of our own process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from treadle.core.untrusted.sanitize import one_line

_log = logging.getLogger(__name__)

_MAX_SPANS = 64
CONFIRM_PAUSE_S = 0.05
"""Least seconds between two confirmations of one limit."""


class WorkClock:
    """A clock of the event loop that excludes time for which the work was held up; all tasks of the work share one."""

    def __init__(self) -> None:
        self._held_s = 0.0
        """Seconds for which the clock was held or time was excluded, without the current hold."""
        self._num_holds = 0
        self._held_since = 0.0
        self._began = asyncio.get_running_loop().time()
        """Time of the event loop at which the work began; no earlier time is excluded."""
        self._spans: list[tuple[float, float]] = []
        """Longest excluded spans, disjoint and in order, in the event loop's time."""
        self._unplaced_s = 0.0
        """Excluded seconds whose spans are not kept, as far as they fit between the kept spans."""
        self._limits: set[TimeLimit] = set()

    def time(self) -> float:
        """Return the time in seconds; it equals the loop's time for work that was never held up."""
        return (self._held_since if self._num_holds else asyncio.get_running_loop().time()) - self._held_s

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the clock during a block; holds may overlap."""
        self.begin_hold(asyncio.get_running_loop().time())
        try:
            yield
        finally:
            self.end_hold()

    def begin_hold(self, since: float) -> None:
        """Hold the clock from a time of the event loop on, which may be in the past."""
        self.exclude(since)
        self._num_holds += 1
        if self._num_holds == 1:
            self._held_since = asyncio.get_running_loop().time()
            self._arrange_limits()

    def end_hold(self) -> None:
        """End one hold of the clock that `begin_hold` began."""
        self._num_holds -= 1
        if not self._num_holds:
            self.exclude(self._held_since)
            self._arrange_limits()

    def exclude(self, since: float, until: float | None = None) -> None:
        """Exclude the time from one time of the event loop up to another, by default now.

        Time that is excluded already is not excluded twice. Of many separate spans only the `_MAX_SPANS` longest are
        kept. Time in the others may be excluded twice, so the clock may be slow by as much as their length, but not by
        more time than passed. It is never fast: lost time is always excluded.
        """
        now = self._held_since if self._num_holds else asyncio.get_running_loop().time()
        first, last = max(since, self._began), now if until is None else min(until, now)
        if first >= last:
            return
        apart = [span for span in self._spans if span[1] < first or span[0] > last]
        touched = [span for span in self._spans if span[1] >= first and span[0] <= last]
        given_s = last - first - sum(min(end, last) - max(start, first) for start, end in touched)
        # Unplaced time must fit between the spans. What no longer fits there has just been excluded a second time.
        free_s = now - self._began - (self._held_s - self._unplaced_s) - given_s
        counted_s = max(0.0, self._unplaced_s - max(0.0, free_s))
        self._unplaced_s -= counted_s
        self._held_s += given_s - counted_s
        bounds = [first, last, *(bound for span in touched for bound in span)]
        self._spans = sorted([*apart, (min(bounds), max(bounds))])
        if len(self._spans) > _MAX_SPANS:
            shortest = min(self._spans, key=lambda span: span[1] - span[0])
            self._spans.remove(shortest)
            self._unplaced_s += shortest[1] - shortest[0]
        if not self._num_holds:
            self._arrange_limits()

    def limit(self, when: float | None, confirm: Callable[[], Awaitable[bool]] | None = None) -> TimeLimit:
        """Return an async context manager that ends its block with TimeoutError at a time of this clock.

        At that time `confirm` is awaited, while the block continues. If it returns False, the block goes on until the
        clock, which may have been held meanwhile, shows that time again, at least for `CONFIRM_PAUSE_S`. If it raises,
        the block ends.
        """
        return TimeLimit(self, when, confirm)

    def loop_time(self, when: float) -> float | None:
        """Convert a time of this clock to the event loop's time; return None while the clock is held."""
        return None if self._num_holds else when + self._held_s

    def _arrange_limits(self) -> None:
        for limit in self._limits:
            limit.arrange()


class TimeLimit:
    """A timeout that moves with its clock; see `WorkClock.limit`."""

    def __init__(
        self, clock: WorkClock, when: float | None, confirm: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        self.clock = clock
        self.when = when
        self._confirm = confirm
        self._timer: asyncio.TimerHandle | None = None
        self._confirmation: asyncio.Task[None] | None = None
        self._confirms_from = float("-inf")
        self._scope = asyncio.timeout(None)
        self._ends_now = False

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        self.clock._limits.add(self)
        self.arrange()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clock._limits.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._confirmation is not None:
            self._confirmation.cancel()
        await self._scope.__aexit__(kind, error, trace)

    def arrange(self) -> None:
        """Set the timer to the clock's current state."""
        if self._ends_now or self._scope.expired():
            return
        due = None if self.when is None else self.clock.loop_time(self.when)
        if self._confirm is None:
            self._scope.reschedule(due)
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None and self._confirmation is None:
            self._timer = asyncio.get_running_loop().call_at(max(due, self._confirms_from), self._begin_confirmation)

    def _begin_confirmation(self) -> None:
        self._timer = None
        self._confirmation = asyncio.get_running_loop().create_task(self._end_if_confirmed())

    async def _end_if_confirmed(self) -> None:
        assert self._confirm is not None
        try:
            ends = await self._confirm()
        except Exception as error:  # noqa: BLE001 - no limit may be endless
            words = type(error).__name__, one_line(str(error))
            _log.warning("a time limit could not be checked, it ends the work: %s: %s", *words)
            ends = True
        self._confirmation = None
        self._confirms_from = asyncio.get_running_loop().time() + CONFIRM_PAUSE_S
        if ends:
            self.end_now()
        elif self in self.clock._limits:
            self.arrange()

    def expired(self) -> bool:
        """Return whether the block was ended, or is being ended."""
        return self._ends_now or self._scope.expired()

    def end_now(self) -> None:
        """End the limited block now, as if its time were up, even while its work clock is held."""
        if not self.expired():
            self._ends_now = True
            self._scope.reschedule(asyncio.get_running_loop().time())


_current: ContextVar[WorkClock] = ContextVar("work_clock")


@contextmanager
def timed_work() -> Iterator[WorkClock]:
    """Give a block, and the tasks that it starts, a clock of its own."""
    with use_clock(WorkClock()) as clock:
        yield clock


@contextmanager
def use_clock(clock: WorkClock) -> Iterator[WorkClock]:
    """Use a clock in a block and in the tasks that it starts."""
    token = _current.set(clock)
    try:
        yield clock
    finally:
        _current.reset(token)


def work_clock() -> WorkClock:
    """Return the clock of the current work, or a new one if there is none."""
    return _current.get(None) or WorkClock()
