"""An event loop with a virtual clock: if nothing is ready, the clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

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
