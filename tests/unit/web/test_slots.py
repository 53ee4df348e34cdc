"""The time of a page, by a clock that the test turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import pytest

from treadle.web.slots import PageTime, Slots


class Clock:
    """Replaces the loop's own clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.now = self.start = loop.time()
        monkeypatch.setattr(loop, "time", lambda: self.now)


async def test_page_timeout_runs_only_while_fetching(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    deadline = clock.start + 1000
    async with asyncio.timeout_at(deadline) as limit:
        time = PageTime(limit, seconds=20, deadline=deadline)
        with time.running():
            assert limit.when() == clock.start + 20
            clock.now += 8
        assert limit.when() == deadline and time.can_retry
        clock.now += 500
        with time.running():
            assert limit.when() == pytest.approx(clock.now + 12)
            clock.now += 3
        assert limit.when() == deadline and not time.can_retry
        with time.running():
            assert limit.when() == pytest.approx(clock.now + 9)


async def test_running_page_has_its_full_timeout_and_waiting_ends_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    deadline = clock.start + 10
    async with asyncio.timeout_at(deadline) as limit:
        time = PageTime(limit, seconds=20, deadline=deadline)
        with time.running():
            assert limit.when() == clock.start + 20
            clock.now += 8
            with time.waiting():
                assert limit.when() == deadline and time.remaining_s == pytest.approx(12)
                clock.now += 1
            assert limit.when() == pytest.approx(clock.now + 12)
            clock.now += 5
        assert limit.when() == deadline and time.remaining_s == pytest.approx(7) and not time.is_exhausted


@pytest.mark.parametrize("waits", [False, True])
async def test_page_timeout_is_distinguished_from_waiting_too_long(waits: bool) -> None:
    now = asyncio.get_running_loop().time()
    limit = asyncio.timeout_at(now)
    time = PageTime(limit, seconds=0 if not waits else 60, deadline=now)
    with pytest.raises(TimeoutError):
        async with limit:
            with time.running(), time.waiting() if waits else nullcontext():
                await asyncio.Event().wait()
    assert time.is_exhausted is not waits


async def test_hosts_without_waiters_are_forgotten() -> None:
    slots = Slots(2, 1)
    async with _held(slots, "a"), _held(slots, "b"):
        waiting = asyncio.create_task(_enter(slots, "a"))
        await asyncio.sleep(0)
        assert len(slots) == 2
        waiting.cancel()
        await asyncio.wait([waiting])
    assert len(slots) == 0
    async with _held(slots, "a"), _held(slots, "b"):
        pass


async def _enter(slots: Slots, host: str) -> None:
    async with _held(slots, host):
        pass


@asynccontextmanager
async def _held(slots: Slots, host: str) -> AsyncIterator[None]:
    release = await slots.take(host)
    try:
        yield
    finally:
        release()
