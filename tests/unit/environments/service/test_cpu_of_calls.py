"""Tests of the processor time that a call in the service's own process is said to have taken."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time

import pytest

from treadle.environments.service.backends import measured


async def test_garbage_collection_is_not_of_the_call_that_it_happens_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection of the objects of all instances takes longer than a call may."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: float(next(ticks)))
    told: list[float] = []

    async def collect() -> None:
        gc.collect()
        await asyncio.sleep(0)

    gc.disable()
    try:
        await measured(collect(), told.append)
    finally:
        gc.enable()
    # Two steps, 3 and 1 long by the clock, which the collection read twice.
    assert told == [3.0]
