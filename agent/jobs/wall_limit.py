"""Give up a rollout that does not end by itself because its environment or its model hangs.

A rollout normally ends itself at its agent's time limit. If it does not, the longer limit here cancels it. Both use the
work clock, which does not run while the process is stopped or waits for infrastructure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from treadle.core.errors import ToolError
from treadle.core.work_clock import WorkClock, timed_work

T = TypeVar("T")

_GRACE_S = 60.0
"""Least seconds between the agent's time limit and this one, so that a rollout can end itself first."""


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
    """Run a rollout with a work clock of its own and return its result; raise RolloutHangs if it exceeds the limit.

    `roll_out` is called with its deadline, `rollout_time_s` from now. The limit is longer: see `wall_limit`.
    """
    with timed_work() as clock:
        limit_s = wall_limit(wall_limit_s, rollout_time_s)
        return await within(clock, limit_s, roll_out(clock.time() + rollout_time_s), limit_s=limit_s)
