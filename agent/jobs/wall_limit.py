"""Give up a rollout that does not end by itself because its environment or its model hangs.

The time limits of agents end a rollout in good order. This limit ends what ignores them; it uses the work clock, so a
stopped process or a server that is waited for does not count.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from treadle.core.errors import ToolError
from treadle.core.work_clock import WorkClock

T = TypeVar("T")

DEFAULT_WALL_LIMIT_S = 1800.0
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
    limit = clock.limit(clock.time() + left_s)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise RolloutHangs(
            f"the rollout did not end within wall_limit_s = {limit_s:g} s, so it was cancelled"
        ) from None
