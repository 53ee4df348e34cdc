"""Give up a rollout that does not end by itself because its environment or its model hangs.

The time limits of agents end a rollout in good order. This limit ends what ignores them; it uses the work clock, so a
stopped process or a server that is waited for does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from treadle.core.errors import ToolError
from treadle.core.work_clock import WorkClock, timed_work

T = TypeVar("T")

_GRACE_S = 60.0
"""Seconds that the limit exceeds the time of the agent by, so that a rollout can end in good order."""


class RolloutHangs(ToolError):
    """Error for a rollout that was given up; another attempt may help."""

    retryable = True


def wall_limit(wall_limit_s: float, rollout_time_s: float) -> float:
    """Return the limit in seconds of a rollout: `wall_limit_s`, or more if the agent may take longer."""
    return max(wall_limit_s, rollout_time_s + _GRACE_S)


async def within(clock: WorkClock, left_s: float, work: Coroutine[Any, Any, T], *, limit_s: float) -> T:
    """Await work for at most `left_s` seconds of a clock; then cancel it and raise RolloutHangs, naming the limit."""
    limit = clock.limit(clock.time() + left_s if left_s < math.inf else None)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise RolloutHangs(
            f"it did not end within {limit_s:g} s of work (the longer of wall_limit_s and rollout_time_s + "
            f"{_GRACE_S:g}), so it was cancelled"
        ) from None


async def timed_rollout(
    roll_out: Callable[[float], Coroutine[Any, Any, T]], *, rollout_time_s: float, wall_limit_s: float
) -> T:
    """Return what a rollout with a work clock of its own gives; raise RolloutHangs if it ignores its deadline.

    `roll_out` gets the deadline: `rollout_time_s` from now.
    """
    with timed_work() as clock:
        limit_s = wall_limit(wall_limit_s, rollout_time_s)
        return await within(clock, limit_s, roll_out(clock.time() + rollout_time_s), limit_s=limit_s)
