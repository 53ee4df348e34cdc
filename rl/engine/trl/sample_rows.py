"""Arrange the samples of a step's trajectories as rows of TRL's batch, padded with rows of weight 0.

A trajectory with several contexts has several samples, all with its advantage. TRL cuts a step into equal micro-batches
on every device. Each update is therefore padded with rows without loss to the same number of rows on all devices; no
row is dropped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from treadle.rl.credit.base import token_advantages
from treadle.rl.credit.outcome import scored_advantages
from treadle.rl.engine.group_source import ScoredGroup
from treadle.rl.groups.samples import GroupSample


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One row of TRL's batch.

    Attributes:
        env_mask: 1 for each completion id with a loss.
        reward: Reward of the trajectory, in the row of its first sample only, so that TRL's logs count each rollout
            once; None in other rows, and for a trajectory without a score.
        advantage: Advantage of the trajectory, or of each completion id if each turn has its own advantage.
        hint_cut: Whether the model saw a hint that is missing in `prompt_ids`.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    env_mask: list[int]
    logprobs: list[float]
    reward: float | None = None
    advantage: float | list[float] = field(default=0.0)
    hint_cut: bool = False


def rows_of_updates(
    made: Sequence[ScoredGroup], num_updates: int, micro_batches: int, agreed: Callable[[int], int]
) -> list[SampleRow]:
    """Return the rows of a device's share of a step, update by update; all updates have the same number of rows.

    `micro_batches` is the number of micro-batches of an update. `agreed` gets a number of this device and returns the
    largest one of all devices.
    """
    by_trajectory = [rows for one in made for rows in _rows_of_group(one)]
    share = len(by_trajectory) // num_updates
    updates = [
        list(itertools.chain(*by_trajectory[start : start + share])) for start in range(0, len(by_trajectory), share)
    ]
    most = agreed(max(map(len, updates)))
    group_size = len(made[0].group.trajectories)
    if most > share:
        # TRL views the rewards of a step as whole groups.
        unit = math.lcm(micro_batches, group_size)
        most = -(-most // unit) * unit
    else:
        most = share
    by_token = any(one.advantages is not None for one in made)
    filler = SampleRow([0], [0], [0], [0.0], advantage=[0.0] if by_token else 0.0)
    return [row for rows in updates for row in [*rows, *[filler] * (most - len(rows))]]


def _rows_of_group(one: ScoredGroup) -> list[list[SampleRow]]:
    """Return the rows of each trajectory of a group: one for each of its samples that is trained on."""
    # Not computed by TRL, which would add 1e-4 to the deviation instead of 1e-6.
    outcomes = scored_advantages(one.rewards)
    found = []
    for number, (trajectory, reward) in enumerate(zip(one.group.trajectories, one.rewards, strict=True)):
        of_turns = None if one.advantages is None else list(one.advantages[number])
        rows: list[SampleRow] = []
        for sample in trajectory.samples:
            advantage: float | list[float] = outcomes[number]
            if of_turns is not None:
                own, of_turns = of_turns[: len(sample.turn_starts)], of_turns[len(sample.turn_starts) :]
                advantage = token_advantages(own, sample.turn_starts, len(sample.completion_ids))
            if sample.is_trained:
                rows.append(_row(sample, None if rows or not reward.scored else reward.reward, advantage))
        found.append(rows)
    return found


def _row(sample: GroupSample, reward: float | None, advantage: float | list[float]) -> SampleRow:
    if not sample.completion_ids:
        # TRL reads the last id of each completion, so an empty one gets one masked id.
        return SampleRow(sample.prompt_ids, [0], [0], [0.0], reward, advantage, sample.hint_cut)
    ids, mask, logprobs = sample.completion_ids, sample.env_mask, sample.logprobs
    return SampleRow(sample.prompt_ids, ids, mask, logprobs, reward, advantage, sample.hint_cut)
