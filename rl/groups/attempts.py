"""Roll out the groups of a step in a bounded number of attempts; at last, go on without the rollouts that fail.

Each attempt has new episodes and the same seeds. Normative: docs/behaviour/group-rollouts.md, part "Infrastructure and
time".
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from treadle.core.errors import EngineError
from treadle.core.seeds import derive_seed
from treadle.core.untrusted.sanitize import one_line
from treadle.rl.groups.group import Group, GroupJob, lost_trajectory
from treadle.rl.groups.rollout import GroupRunner, roll_out_groups

_log = logging.getLogger(__name__)

Sleep = Callable[[float], Awaitable[object]]

DEFAULT_ATTEMPTS = 8
MIN_SURVIVING_SHARE = 0.5
"""Smallest share of the rollouts of a training step that must be left when attempts are exhausted."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 160.0


def retry_pauses_s(attempts: int) -> list[float]:
    """Return the pauses in seconds between attempts: none after a broken connection, then longer for a restart.

    Eight attempts wait for five minutes in total.
    """
    growing = [min(_FIRST_PAUSE_S * 2**number, _LONGEST_PAUSE_S) for number in range(attempts - 2)]
    return [0.0, *growing][: attempts - 1]


async def require_groups(
    rollouts: GroupRunner,
    jobs: Sequence[GroupJob],
    *,
    attempts: int = DEFAULT_ATTEMPTS,
    min_share: float = 1.0,
    sleep: Sleep = asyncio.sleep,
) -> list[Group]:
    """Roll out all groups and retry those with a retryable error, in at most `attempts` attempts.

    With `min_share` below 1, the last attempt loses single rollouts instead of groups: a group of which fewer than two
    are left is lost as a whole, and lost trajectories have no reward. Tests replace `sleep`. Raises EngineError with
    the first cause if a smaller share of the rollouts than `min_share` is left.
    """
    groups = await roll_out_groups(rollouts, [replace(job, keeps_rest=min_share < 1 and attempts == 1) for job in jobs])
    for number, pause_s in enumerate(retry_pauses_s(attempts), 2):
        again = [index for index, group in enumerate(groups) if group.error and group.retryable]
        if not again:
            break
        cause = one_line(groups[again[0]].error)
        _log.warning("%d of %d groups failed, retrying in %g s; first cause: %s", len(again), len(jobs), pause_s, cause)
        await sleep(pause_s)
        keeps_rest = min_share < 1 and number == attempts
        made = await roll_out_groups(rollouts, [replace(jobs[at], keeps_rest=keeps_rest) for at in again])
        for index, group in zip(again, made, strict=True):
            groups[index] = group
    if min_share < 1:
        # A request that is refused each time, such as that of one odd context, costs its rollout, not its group.
        refused = [at for at, group in enumerate(groups) if group.error and not group.retryable and jobs[at].size > 1]
        made = await roll_out_groups(rollouts, [replace(jobs[at], keeps_rest=True) for at in refused])
        for index, group in zip(refused, made, strict=True):
            groups[index] = group
    return _surviving(groups, jobs, min_share)


def _surviving(groups: Sequence[Group], jobs: Sequence[GroupJob], min_share: float) -> list[Group]:
    """Return the groups, failed ones with lost trajectories; raise EngineError if too few rollouts are left."""
    failed = [group for group in groups if group.error]
    kept = [_without_error(group, job) for group, job in zip(groups, jobs, strict=True)]
    rollouts = [made for group in kept for made in group.trajectories]
    lost = Counter[str](made.lost_to for made in rollouts if made.lost_to)
    first = next((cause for group in groups if (cause := one_line(group.error or group.lost_cause))), "")
    if failed and (min_share == 1 or len(failed) == len(groups)):
        raise EngineError(
            f"{len(failed)} of {len(groups)} groups could not be rolled out; first cause: {first}; "
            "fix it and run again to resume"
        )
    num_left = sum(made.item.was_played for made in rollouts)
    if min_share < 1 and num_left < min_share * len(rollouts):
        causes = _counts(lost, num_too_long=len(rollouts) - num_left - lost.total())
        raise EngineError(
            f"only {num_left} of {len(rollouts)} rollouts of a step are left, less than {min_share:.0%} (lost to "
            f"{causes}); {f'first cause: {first}; ' if first else ''}fix it and run again to resume"
        )
    if num_left < len(rollouts):
        _log.warning(
            "%d of %d rollouts are left out (lost to %s); first cause: %s",
            len(rollouts) - num_left,
            len(rollouts),
            _counts(lost, num_too_long=len(rollouts) - num_left - lost.total()),
            first or "their prompts leave no room for a turn",
        )
    return kept


def _counts(lost: Counter[str], *, num_too_long: int = 0) -> str:
    counts = {**lost, "too long prompts": num_too_long}
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items()) if number)


def _without_error(group: Group, job: GroupJob) -> Group:
    """Return a failed group with a lost trajectory in each place; others as they are."""
    if not group.error:
        return group
    seeds = [derive_seed(job.seed, number) for number in range(job.size)]
    lost = [lost_trajectory(number, seed, [], group.lost_to) for number, seed in enumerate(seeds)]
    return Group(job.group_id, job.question, lost, lost_cause=group.error)
