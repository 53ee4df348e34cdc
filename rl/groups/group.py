"""Define the request for a group of rollouts, and its result: trajectories, some of which may be lost."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from treadle.agent.contract import Ledger, Task
from treadle.agent.tools.outcome import NOT_ON_RECORD
from treadle.agent.trajectory import Trajectory
from treadle.rl.groups.oversampling import OverSampling, StartedRollout
from treadle.rl.groups.samples import GroupSample
from treadle.rl.rewards.base import FAILED, GroupItem

LostTo = Literal["", "environment", "model", "group"]
"""Cause of a lost rollout: its environment failed, its model failed, or too few rollouts of its group were left; empty
for a rollout that was not lost."""


@dataclass(frozen=True, slots=True)
class GroupJob:
    """Request for one group.

    Attributes:
        group_id: Set by the sampler; unique among the groups of a step.
        question: The question that all trajectories answer.
        size: Number of trajectories.
        seed: Seed of the group; the seeds of its trajectories, turns and branches derive from it.
        keeps_rest: Whether an infrastructure error leaves out its trajectory, instead of failing the group.
    """

    group_id: str
    question: Task
    size: int
    seed: int
    keeps_rest: bool = False


@dataclass(frozen=True, slots=True)
class GroupTrajectory:
    """One trajectory of a group, ready for training.

    Attributes:
        session: Number in the group, from 0 in the order of creation.
        samples: Token sequences of the trajectory, at least one, with tool results, messages and end-of-turn ids.
        trajectory: The rollout's trajectory.
        branch_parent: `session` of the trajectory that it branched from; None if it started from the question.
        branch_depth: Number of branchings between the question and this trajectory.
        seed: Seed of the trajectory's turns.
        lost_to: Cause if the trajectory was lost: then it is a placeholder without completion ids; else empty.
        hint: Text that was added to the prompt; empty if there was none.
    """

    session: int
    samples: Sequence[GroupSample]
    trajectory: Trajectory
    branch_parent: int | None
    branch_depth: int
    seed: int
    lost_to: LostTo = ""
    hint: str = ""

    @property
    def hint_cut(self) -> bool:
        """True if the policy saw a hint that is missing in the training prompts."""
        return any(one.hint_cut for one in self.samples)

    @property
    def item(self) -> GroupItem:
        """The trajectory as reward rules see it."""
        return _item_of(self)

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids before the first turn, without a hint that is cut."""
        return self.samples[0].prompt_ids

    @property
    def completion_ids(self) -> list[int]:
        """Token ids after the prompts, over all samples."""
        return [id_ for one in self.samples for id_ in one.completion_ids]

    @property
    def env_mask(self) -> list[int]:
        """For each of `completion_ids`: 1 if the model sampled it, else 0."""
        return [mask for one in self.samples for mask in one.env_mask]

    @property
    def total_tokens(self) -> int:
        """Number of tokens after the first prompt, including tool results."""
        return len(self.completion_ids) if len(self.samples) == 1 else self.trajectory.num_output_tokens

    @property
    def logprobs(self) -> list[float]:
        """Log-probability of each of `completion_ids` at sampling; 0.0 if its mask is 0 or the value is unknown."""
        return [value for one in self.samples for value in one.logprobs]

    @property
    def turn_starts(self) -> list[int]:
        """Number of `completion_ids` before each turn of the model."""
        ends = itertools.accumulate((len(one.completion_ids) for one in self.samples), initial=0)
        return [end + start for one, end in zip(self.samples, ends, strict=False) for start in one.turn_starts]


def lost_trajectory(session: int, seed: int, prompt_ids: Sequence[int], lost_to: LostTo) -> GroupTrajectory:
    """Return a placeholder for a lost trajectory in batches: its status is `failed`, so it has no reward."""
    nothing = Trajectory(FAILED, "", [], [], [], 0)
    # Trainers need a prompt; without a mask, any id will do.
    samples = (GroupSample(list(prompt_ids) or [0], [], [], [], []),)
    return GroupTrajectory(session, samples, nothing, None, 0, seed, lost_to)


@dataclass(frozen=True, slots=True)
class Group:
    """All trajectories of one question, or the reason why there are none.

    Attributes:
        trajectories: The trajectories by session, exactly as many as requested; empty if the group failed.
        error: Message of the infrastructure error that made the group fail; empty on success. It is never the agent's
            fault, so it does not affect a reward.
        retryable: Whether another attempt may succeed.
        lost_to: Whether the model or the environment made the group fail; empty on success.
        lost_cause: Message of the first error by which a trajectory was lost; empty if no trajectory was lost.
        started: All rollouts of an over-sampled group, by session, including those that are not trained on.
        is_audit: Whether all rollouts of an over-sampled group ran to their end, to measure the bias of other groups.
    """

    group_id: str
    question: Task
    trajectories: list[GroupTrajectory]
    error: str = ""
    retryable: bool = False
    lost_to: LostTo = ""
    lost_cause: str = ""
    started: tuple[StartedRollout, ...] = ()
    is_audit: bool = False

    @property
    def items(self) -> list[GroupItem]:
        """The trajectories as reward rules see them, by session."""
        return [trajectory.item for trajectory in self.trajectories]


def _item_of(made: GroupTrajectory) -> GroupItem:
    ledger = Ledger(made.trajectory.calls)
    return GroupItem(
        segments=tuple(made.trajectory.segments),
        tool_calls=ledger.executed.total(),
        tool_failures=ledger.failed.total(),
        web_misses=sum(NOT_ON_RECORD in call.note for call in made.trajectory.calls),
        model_tokens=sum(made.env_mask),
        total_tokens=made.total_tokens,
        status=made.trajectory.status,
        num_turns=len(made.turn_starts),
        turn_rewards=tuple(made.trajectory.turn_rewards),
        parts=dict(made.trajectory.outcome.parts) if made.trajectory.outcome is not None else {},
    )


@dataclass(frozen=True, slots=True)
class OverSampler:
    """Rule of over-sampling, with a function that rewards a group of one rollout, or returns None without a reward."""

    rule: OverSampling
    reward_of: Callable[[Group], Awaitable[float | None]]
