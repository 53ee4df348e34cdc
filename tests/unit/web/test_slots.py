"""The time of a page, by a clock that the test turns."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest

from treadle.web.slots import PageTime, Slots


class Clock:
    """Replaces the loop's own clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.now = self.start = loop.time()
        monkeypatch.setattr(loop, "time", lambda: self.now)


async def test_the_time_of_a_page_runs_only_where_it_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    deadline = clock.start + 1000
    async with asyncio.timeout_at(deadline) as limit:
        time = PageTime(limit, seconds=20, deadline=deadline)
        with time.running():
            assert limit.when() == clock.start + 20
            clock.now += 8
        assert limit.when() == deadline and time.half_is_left
        clock.now += 500
        with time.running():
            assert limit.when() == pytest.approx(clock.now + 12)
            clock.now += 3
        assert limit.when() == deadline and not time.half_is_left
        with time.running():
            assert limit.when() == pytest.approx(clock.now + 9)


async def test_what_runs_has_all_of_its_time_and_what_waits_ends_with_the_deadline(
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
                assert limit.when() == deadline and time.left_s == pytest.approx(12)
                clock.now += 1
            assert limit.when() == pytest.approx(clock.now + 12)
            clock.now += 5
        assert limit.when() == deadline and time.left_s == pytest.approx(7) and not time.is_over


@pytest.mark.parametrize("waits", [False, True])
async def test_it_is_told_whether_a_page_took_too_long_or_waited_too_long(waits: bool) -> None:
    now = asyncio.get_running_loop().time()
    limit = asyncio.timeout_at(now)
    time = PageTime(limit, seconds=0 if not waits else 60, deadline=now)
    with pytest.raises(TimeoutError):
        async with limit:
            with time.running(), time.waiting() if waits else nullcontext():
                await asyncio.Event().wait()
    assert time.is_over is not waits


async def test_nothing_is_kept_of_hosts_that_nobody_waits_for() -> None:
    slots = Slots(2, 1)
    async with slots.one("a"), slots.one("b"):
        waiting = asyncio.create_task(_enter(slots, "a"))
        await asyncio.sleep(0)
        assert len(slots) == 2
        waiting.cancel()
        await asyncio.wait([waiting])
    assert len(slots) == 0
    async with slots.one("a"), slots.one("b"):
        pass


async def _enter(slots: Slots, host: str) -> None:
    async with slots.one(host):
        pass
