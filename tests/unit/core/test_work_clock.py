"""Clocks of work: what infrastructure holds up does not count, and stops of the process do not either."""

from __future__ import annotations

import asyncio
import selectors

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers import own_clock

from treadle.core.steady_loop import MAX_STEP_S, TICK_S, SteadyClock, SteadyLoop, wait_for_first
from treadle.core.work_clock import CONFIRM_PAUSE_S, WorkClock, timed_work, work_clock


def test_overlapping_holds_count_once() -> None:
    async def work() -> float:
        clock = WorkClock()

        async def held(after_s: float, for_s: float) -> None:
            await asyncio.sleep(after_s)
            with clock.hold():
                await asyncio.sleep(for_s)

        await asyncio.gather(held(1, 4), held(2, 5), held(10, 1), asyncio.sleep(20))
        return clock.time()

    assert own_clock.run(work()) == pytest.approx(20 - 6 - 1)


def test_time_is_refunded_afterwards_but_not_twice() -> None:
    async def work() -> list[float]:
        clock = WorkClock()
        await asyncio.sleep(10)
        clock.exclude(4.0)
        first = clock.time()
        clock.exclude(4.0)
        await asyncio.sleep(1)
        # It was held from 4 to 10 already.
        clock.exclude(2.0)
        return [first, clock.time()]

    assert own_clock.run(work()) == pytest.approx([4.0, 2.0])


@given(st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 20)), max_size=100))
def test_each_refunded_moment_counts_once(spans: list[tuple[int, int | None]]) -> None:
    async def work() -> float:
        clock = WorkClock()
        await asyncio.sleep(20)
        for since, until in spans:
            clock.exclude(float(since), until)
        return clock.time()

    given = {second for since, until in spans for second in range(since, 20 if until is None else until)}
    assert own_clock.run(work()) == pytest.approx(20 - len(given))


@given(st.permutations(range(200)), st.integers(0, 200), st.integers(0, 400))
def test_beyond_the_kept_spans_overlapping_refunds_are_bounded(seconds: list[int], num_spans: int, since: int) -> None:
    async def work() -> list[float]:
        clock, times = WorkClock(), []
        await asyncio.sleep(400)
        for second in seconds[:num_spans]:
            clock.exclude(2.0 * second, 2.0 * second + 1)
        times.append(clock.time())
        clock.exclude(float(since))
        times.append(clock.time())
        return times

    before, after = own_clock.run(work())
    whole = len({2 * second for second in seconds[:num_spans]} | set(range(since, 400)))
    assert before == pytest.approx(400 - num_spans)
    twice = 400 - whole - after
    assert -1e-6 <= twice <= max(0, num_spans - 64) + 1e-6 and after >= -1e-6
    if since == 0:
        assert after == pytest.approx(0)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=60, max_size=120))
def test_clock_is_never_fast_nor_before_its_start(spans: list[tuple[int, int]]) -> None:
    async def work() -> None:
        clock, given = WorkClock(), set[int]()
        await asyncio.sleep(400)
        before = clock.time()
        for since, length in spans:
            # Most are so short that many of them are separate.
            until = since + (1 if length < 290 else length - 280)
            clock.exclude(float(since), float(until))
            given |= set(range(since, min(until, 400)))
            assert -1e-6 <= clock.time() <= min(before, 400 - len(given)) + 1e-6
            before = clock.time()

    own_clock.run(work())


def test_failed_attempt_is_refunded_in_full_after_many_short_holds() -> None:
    async def work() -> list[float]:
        clock = WorkClock()
        await asyncio.sleep(5)
        began, times = asyncio.get_running_loop().time(), []
        for _ in range(200):
            with clock.hold():
                await asyncio.sleep(1e-6)
            await asyncio.sleep(0.02)
        clock.exclude(began + 1.0)
        times.append(clock.time())
        clock.exclude(began)
        clock.exclude(began)
        times.append(clock.time())
        return times

    late, whole = own_clock.run(work())
    assert late == pytest.approx(6.0, abs=200e-6) and whole == pytest.approx(5.0, abs=200e-6)


def test_long_work_is_refunded_in_full_at_most_once() -> None:
    async def work() -> list[float]:
        clock = WorkClock()
        for _ in range(200):
            await asyncio.sleep(1)
            with clock.hold():
                await asyncio.sleep(1)
        before = clock.time()
        clock.exclude(0.0)
        after = clock.time()
        await asyncio.sleep(1)
        clock.exclude(400.0)
        return [before, after, clock.time()]

    assert own_clock.run(work()) == pytest.approx([200, 0, 0])


def test_limit_moves_with_its_clock_and_a_held_one_can_be_ended() -> None:
    async def work() -> list[float]:
        loop, ended = asyncio.get_running_loop(), []
        clock = WorkClock()

        async def limited(when: float) -> None:
            try:
                async with clock.limit(when):
                    await asyncio.sleep(1000)
            except TimeoutError:
                ended.append(loop.time())

        async def hold() -> None:
            await asyncio.sleep(1)
            with clock.hold():
                await asyncio.sleep(30)

        await asyncio.gather(limited(5.0), limited(0.5), hold())
        limit = clock.limit(None)
        loop.call_later(2, limit.end_now)
        with clock.hold():
            try:
                async with limit:
                    await asyncio.sleep(1000)
            except TimeoutError:
                ended.append(loop.time())
        return ended

    assert own_clock.run(work()) == pytest.approx([0.5, 35.0, 37.0])


def test_limit_with_a_failing_confirmation_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def confirm() -> bool:
        raise ValueError("broken\nfor good")

    async def work() -> float:
        clock = WorkClock()
        with pytest.raises(TimeoutError):
            async with clock.limit(2.0, confirm):
                await asyncio.sleep(1000)
        return clock.time()

    assert own_clock.run(work()) == pytest.approx(2.0)
    assert [record.getMessage() for record in caplog.records] == [
        "a time limit could not be checked, it ends the work: ValueError: broken for good"
    ]


def test_unconfirmed_limit_is_checked_again_after_a_pause() -> None:
    async def work() -> list[float]:
        clock, asked_at = WorkClock(), list[float]()

        async def confirm() -> bool:
            asked_at.append(clock.time())
            return len(asked_at) == 4

        async def hold_briefly() -> None:
            await asyncio.sleep(2.01)
            with clock.hold():
                pass

        task = asyncio.create_task(hold_briefly())
        with pytest.raises(TimeoutError):
            async with clock.limit(2.0, confirm):
                await asyncio.sleep(1000)
        await task
        return asked_at

    assert own_clock.run(work()) == pytest.approx([2.0 + number * CONFIRM_PAUSE_S for number in range(4)])


def test_tasks_of_one_work_item_share_its_clock() -> None:
    async def work() -> None:
        assert work_clock() is not work_clock()
        with timed_work() as clock:
            (own,) = await asyncio.gather(asyncio.create_task(_current()))
            assert own is clock
            with timed_work() as inner:
                assert work_clock() is inner
            assert work_clock() is clock

    async def _current() -> WorkClock:
        return work_clock()

    own_clock.run(work())


class _Stopped(selectors.DefaultSelector):
    """A selector whose process is suspended for a while in one of its waits."""

    now_s = 0.0
    stops = {3: 100.0, 5: 0.9, 9: 7.0}
    num_waits = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            self.num_waits += 1
            self.now_s += min(TICK_S if timeout is None else timeout, TICK_S) + self.stops.get(self.num_waits, 0.0)
        return ready


def test_suspended_process_takes_no_event_loop_time() -> None:
    selector = _Stopped()

    async def work() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with asyncio.timeout(5.0):
            await asyncio.sleep(4.5)
        return loop.time() - started, selector.now_s

    with asyncio.Runner(loop_factory=lambda: SteadyLoop(selector, lambda: selector.now_s)) as runner:
        in_the_loop, outside = runner.run(work())
    assert 4.5 <= in_the_loop <= 4.5 + MAX_STEP_S
    assert outside > 4.5 + 100.0


def test_long_step_of_a_steady_clock_counts_as_one_tick() -> None:
    now_s = 100.0
    clock = SteadyClock(lambda: now_s, max_step_s=10.0)
    began, counted = clock.time(), []
    for step_s in (5.0, 9.0, 600.0, 3.0):
        now_s += step_s
        counted.append(clock.time() - began)
    assert counted == [5.0, 14.0, 14.0 + TICK_S, 17.0 + TICK_S]


async def test_waiting_for_the_first_of_several_ends_with_it_or_with_its_limit() -> None:
    loop = asyncio.get_running_loop()
    never, soon = loop.create_future(), loop.create_future()
    assert await wait_for_first({never}, 0.01) >= 0.01
    loop.call_soon(soon.set_result, None)
    assert await wait_for_first({never, soon}, 3600.0) < 60.0
