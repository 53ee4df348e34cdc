"""Provide an event loop whose clock pauses while its process is stopped.

CLOCK_MONOTONIC continues while a process is stopped (SIGSTOP, a debugger, a frozen container) or starved. By that
clock, all timeouts of the process would have expired when it continues, although no server and no program was slow.
Here each step between two readings of the clock counts at most `MAX_STEP_S`, and the loop reads it every `TICK_S`,
whatever it waits for. While a machine is suspended, CLOCK_MONOTONIC pauses by itself.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

TICK_S = 0.25
MAX_STEP_S = 1.0
"""Longest step that counts in full; of a longer one, in which the process was stopped, only `TICK_S` count."""


class _TickingSelector(selectors.DefaultSelector):
    """A selector that waits at most one tick."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(TICK_S if timeout is None else min(timeout, TICK_S))


class SteadyClock:
    """A clock that must be read at least every `max_step_s`; of a longer step only `TICK_S` count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_step_s: float = MAX_STEP_S) -> None:
        """Start the clock; tests replace `clock`."""
        self._clock = clock
        self._max_step_s = max_step_s
        self._last_read_at = clock()
        self._stopped_s = 0.0

    def time(self) -> float:
        """Return the time in seconds, without stops of the process."""
        now = self._clock()
        step_s = now - self._last_read_at
        if step_s > self._max_step_s:
            self._stopped_s += step_s - TICK_S
        self._last_read_at = now
        return now - self._stopped_s


class SteadyLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop with a SteadyClock."""

    def __init__(
        self, selector: selectors.BaseSelector | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create the loop; tests replace `selector` and `clock`."""
        self._steady = SteadyClock(clock)
        super().__init__(selector or _TickingSelector())

    def time(self) -> float:
        """Return the time in seconds, without stops of the process."""
        return self._steady.time()


async def wait_for_first(futures: Collection[asyncio.Future[Any]], limit_s: float) -> float:
    """Wait until one of several futures is done, or for `limit_s`; return the seconds spent.

    Time for which the process was stopped is not counted. Also works on other event loops, whose clock continues while
    the process is stopped.
    """
    loop, spent_s = asyncio.get_running_loop(), 0.0
    while spent_s < limit_s:
        began = loop.time()
        done, _ = await asyncio.wait(
            futures, timeout=min(TICK_S, limit_s - spent_s), return_when=asyncio.FIRST_COMPLETED
        )
        step_s = loop.time() - began
        spent_s += step_s if step_s <= MAX_STEP_S else TICK_S
        if done:
            break
    return spent_s


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`, on a steady loop."""
    with asyncio.Runner(loop_factory=SteadyLoop) as runner:
        return runner.run(work)
