"""Roll out the groups of a step in a bounded number of attempts; after the last one, leave out failed rollouts.

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
    """Return the pauses in seconds between attempts.

    The first is 0, enough for a broken connection. Later ones grow, to wait for the restart of a service: about five
    minutes in total for eight attempts.
    """
    growing = [min(_FIRST_PAUSE_S * 2**number, _LONGEST_PAUSE_S) for number in range(attempts - 2)]
    return [0.0, *growing][: attempts - 1]


async def require_groups(
    rollouts: GroupRunner,
    jobs: Sequence[GroupJob],
    *,
    attempts: int = DEFAULT_ATTEMPTS,
    keeps_rest: bool = False,
    sleep: Sleep = asyncio.sleep,
) -> list[Group]:
    """Roll out all groups and retry those with a retryable error, in at most `attempts` attempts.

    With `keeps_rest`, the last attempt loses single rollouts instead of groups; a group with fewer than two rollouts
    left is lost as a whole. Lost trajectories have no reward, and `check_step` checks that enough are left. Without
    `keeps_rest`, raises EngineError with the first cause if a group failed. Tests replace `sleep`.
    """
    groups = await roll_out_groups(rollouts, [replace(job, keeps_rest=keeps_rest and attempts == 1) for job in jobs])
    for number, pause_s in enumerate(retry_pauses_s(attempts), 2):
        again = [index for index, group in enumerate(groups) if group.error and group.retryable]
        if not again:
            break
        cause = one_line(groups[again[0]].error)
        _log.warning("%d of %d groups failed, retrying in %g s; first cause: %s", len(again), len(jobs), pause_s, cause)
        await sleep(pause_s)
        is_last = number == attempts
        made = await roll_out_groups(rollouts, [replace(jobs[at], keeps_rest=keeps_rest and is_last) for at in again])
        for index, group in zip(again, made, strict=True):
            groups[index] = group
    if keeps_rest:
        # A request that is refused each time, such as for its content, must cost its rollout only, not its group.
        refused = [at for at, group in enumerate(groups) if group.error and not group.retryable and jobs[at].size > 1]
        made = await roll_out_groups(rollouts, [replace(jobs[at], keeps_rest=True) for at in refused])
        for index, group in zip(refused, made, strict=True):
            groups[index] = group
    failed = [group for group in groups if group.error]
    if failed and not keeps_rest:
        raise EngineError(
            f"{len(failed)} of {len(groups)} groups could not be rolled out; first cause: {one_line(failed[0].error)}; "
            "fix it and run again to resume"
        )
    return [_without_error(group, job) for group, job in zip(groups, jobs, strict=True)]


def check_step(groups: Sequence[Group]) -> None:
    """Warn about rollouts that are left out of a training step; `groups` are those of all devices.

    Raises EngineError with the first cause if fewer than `MIN_SURVIVING_SHARE` of the rollouts are left.
    """
    rollouts = [made for group in groups for made in group.trajectories]
    num_left = sum(made.item.was_played for made in rollouts)
    if num_left == len(rollouts):
        return
    lost = Counter[str](made.lost_to for made in rollouts if made.lost_to)
    causes = _counts(lost, num_too_long=len(rollouts) - num_left - lost.total())
    first = next((cause for group in groups if (cause := one_line(group.lost_cause))), "the prompts leave no room")
    if num_left < MIN_SURVIVING_SHARE * len(rollouts):
        raise EngineError(
            f"only {num_left} of {len(rollouts)} rollouts of a step are left, less than {MIN_SURVIVING_SHARE:.0%} "
            f"(lost to {causes}); first cause: {first}; fix it and run again to resume"
        )
    missing = len(rollouts) - num_left
    _log.warning("%d of %d rollouts are left out (lost to %s); first cause: %s", missing, len(rollouts), causes, first)


def _counts(lost: Counter[str], *, num_too_long: int) -> str:
    counts = {**lost, "too long prompts": num_too_long}
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items()) if number)


def _without_error(group: Group, job: GroupJob) -> Group:
    """Return a failed group with lost trajectories instead of its error; return other groups unchanged."""
    if not group.error:
        return group
    seeds = [derive_seed(job.seed, number) for number in range(job.size)]
    lost = [lost_trajectory(number, seed, [], group.lost_to) for number, seed in enumerate(seeds)]
    return Group(job.group_id, job.question, lost, lost_cause=group.error)
