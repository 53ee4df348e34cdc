"""Clocks of tests: one that jumps to the next timer, one that a test sets forward, one that waits for something."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

import pytest

from treadle.core import steady_loop

T = TypeVar("T")


class _Impatient(selectors.DefaultSelector):
    """Returns ready events, and otherwise advances the clock instead of waiting."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everything waits for nothing")
        if not ready and timeout is not None:
            self.now_s += max(timeout, 0.0)
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, selector: _Impatient) -> None:
        super().__init__(selector)
        self._clock = selector

    def time(self) -> float:
        return self._clock.now_s


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run something that waits for timers alone; its loop's time begins at 0."""
    with asyncio.Runner(loop_factory=lambda: _Loop(_Impatient())) as runner:
        return runner.run(work)


class ForwardClock:
    """Clock of the running loop that a test sets forward: its limits are long, and pass only when it says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the loop's clock for the length of the test."""
        self._ahead_s = 0.0
        loop = asyncio.get_running_loop()
        time = loop.time
        monkeypatch.setattr(loop, "time", lambda: time() + self._ahead_s)

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self._ahead_s += seconds

    async def pass_until_done(self, work: asyncio.Future[Any]) -> None:
        """Let time pass, second by second, until work that gets no answer has ended."""
        while not work.done():
            self.pass_(1.0)
            await asyncio.sleep(0)


class HourlyClock:
    """Stands still until a condition holds; from then on it is an hour later whenever it is read.

    Put an instance in the place of the class `SteadyClock`.
    """

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition
        self._now_s = 0.0

    def __call__(self, max_step_s: float) -> HourlyClock:
        return self

    def time(self) -> float:
        self._now_s += 3600.0 * self._condition()
        return self._now_s


def limit_from(monkeypatch: pytest.MonkeyPatch, module: Any, condition: Callable[[], bool]) -> None:
    """Let the time limits of a module that calls `steady_loop.wait_for_first` begin once a condition holds."""

    async def wait_for_first(futures: Collection[asyncio.Future[Any]], limit_s: float) -> float:
        await until(condition)
        return await steady_loop.wait_for_first(futures, limit_s)

    monkeypatch.setattr(module, "wait_for_first", wait_for_first)


async def until(condition: Callable[[], bool]) -> None:
    """Run the event loop until a condition holds."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.002)
