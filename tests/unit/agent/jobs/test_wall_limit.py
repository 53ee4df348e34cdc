"""The wall limit of rollouts: what ignores its deadline is cancelled and released, and stays pending."""

from __future__ import annotations

import asyncio

import pytest
from support.servers import own_clock

from treadle.agent.jobs.runner import leaves_job_pending
from treadle.agent.jobs.wall_limit import RolloutHangs, wall_limit, within
from treadle.core.work_clock import timed_work


def test_work_that_hangs_is_cancelled_and_released_and_its_job_stays_pending() -> None:
    released: list[float] = []

    async def rollout() -> None:
        try:
            await asyncio.sleep(10**6)
        finally:
            released.append(asyncio.get_running_loop().time())

    async def work() -> None:
        with timed_work() as clock:
            # Infrastructure that is waited for does not count.
            clock.begin_hold(asyncio.get_running_loop().time())
            asyncio.get_running_loop().call_later(300.0, clock.end_hold)
            await within(clock, 1800.0, rollout(), limit_s=1800.0)

    with pytest.raises(RolloutHangs, match="within 1800 s of work .the longer of wall_limit_s") as hung:
        own_clock.run(work())
    assert released == [2100.0]
    assert hung.value.retryable and leaves_job_pending(hung.value)


def test_limit_never_ends_a_rollout_before_its_own_time() -> None:
    assert (wall_limit(1800.0, 1200.0), wall_limit(1800.0, 3600.0)) == (1800.0, 3660.0)


def test_timeout_of_the_work_itself_is_no_hang() -> None:
    async def work() -> None:
        with timed_work() as clock:
            await within(clock, 10.0, _times_out(), limit_s=10.0)

    with pytest.raises(TimeoutError):
        own_clock.run(work())


async def _times_out() -> None:
    raise TimeoutError("its own")
