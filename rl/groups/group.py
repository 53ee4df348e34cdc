"""Hold what is asked of a group of rollouts, and what it gives: its trajectories, and those that were lost."""

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
"""What a rollout was lost to: its environment, its model, or its group, of which too few were left; empty if it was
not lost."""


@dataclass(frozen=True, slots=True)
class GroupJob:
    """Request for one group.

    Attributes:
        group_id: Set by the sampler; unique among the groups of a step.
        question: The question that all trajectories answer.
        size: Number of trajectories.
        seed: Seed of the group; the seeds of its trajectories, turns and branches derive from it.
        keeps_rest: Whether trajectories that infrastructure fails are left out, instead of failing the group.
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
        samples: Its token sequences, at least one; results, messages and end-of-turn ids included.
        trajectory: The rollout's trajectory.
        branch_parent: `session` of the trajectory that it branched from; None if it started from the question.
        branch_depth: Number of branchings between the question and this trajectory.
        seed: Seed of the trajectory's turns.
        lost_to: Whether infrastructure failed it; then it has no ids and takes the place of the missing trajectory.
        hint: Text that was added to its prompt; empty if there was none.
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
        """True if it had a hint that its training prompts lack."""
        return any(one.hint_cut for one in self.samples)

    @property
    def item(self) -> GroupItem:
        """Input of its reward."""
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
        """1 for each of these that the model sampled, else 0."""
        return [mask for one in self.samples for mask in one.env_mask]

    @property
    def total_tokens(self) -> int:
        """Number of tokens after the first prompt, tool results included."""
        return len(self.completion_ids) if len(self.samples) == 1 else self.trajectory.num_output_tokens

    @property
    def logprobs(self) -> list[float]:
        """Log-probability of each of these at sampling; 0.0 if the mask is 0 or the value is unknown."""
        return [value for one in self.samples for value in one.logprobs]

    @property
    def turn_starts(self) -> list[int]:
        """Number of these before each turn of the model."""
        ends = itertools.accumulate((len(one.completion_ids) for one in self.samples), initial=0)
        return [end + start for one, end in zip(self.samples, ends, strict=False) for start in one.turn_starts]


def lost_trajectory(session: int, seed: int, prompt_ids: Sequence[int], lost_to: LostTo) -> GroupTrajectory:
    """Return what takes the place of a lost trajectory in batches: its status is `failed`, so it has no reward."""
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
        retryable: Whether the error may go away by itself.
        lost_to: What the group failed by.
        lost_cause: Message of the first error by which a trajectory was lost; empty if none was.
        started: All rollouts of an over-sampled group, by session, those that are not trained on included.
        is_audit: Whether an over-sampled group ran to its end, to measure the bias of the others.
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
        """Inputs of the group's rewards, by session."""
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
    """Over-sampling of groups, with the function that rewards a group of one rollout; None if it has no reward."""

    rule: OverSampling
    reward_of: Callable[[Group], Awaitable[float | None]]
