"""Roll out groups: all trajectories of one question, as a step of reinforcement learning needs them.

Each trajectory is a rollout of `treadle.agent.rollout`, with the same protocol, tools and limits. If trajectories may
branch (`treadle.rl.groups.branching`), those of a group advance one turn at a time together. A group therefore depends
only on its seed and the model's answers, never on tool latency. Normative: docs/behaviour/group-rollouts.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from treadle.agent.call_cache import NullCache
from treadle.agent.contract import EpisodeOptions, Ledger, Task
from treadle.agent.rollout import RolloutEngine
from treadle.agent.tools.outcome import NOT_ON_RECORD
from treadle.agent.trajectory import Trajectory
from treadle.core.errors import ConfigError, EngineError, ModelError, ToolError
from treadle.core.seeds import derive_seed
from treadle.core.untrusted.sanitize import one_line
from treadle.environments.types import EnvironmentRuntime
from treadle.rl.groups.batching import BatchMembership
from treadle.rl.groups.branching import Branching, uniform
from treadle.rl.groups.samples import GroupSample, group_samples
from treadle.rl.groups.session import GroupSession, Recorder, TimedEpisode
from treadle.rl.rewards.base import GroupItem

_log = logging.getLogger(__name__)

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[object]]

RETRY_PAUSES_S = (0.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
"""Pauses before failed groups are retried: at once for a broken connection, then for five minutes in total for a
restarting service."""


@dataclass(frozen=True, slots=True)
class GroupJob:
    """Request for one group.

    Attributes:
        group_id: Set by the sampler; unique among the groups of a step.
        question: The question that all trajectories answer.
        size: Number of trajectories.
        seed: Seed of the group; the seeds of its trajectories, turns and branches derive from it.
    """

    group_id: str
    question: Task
    size: int
    seed: int


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
    """

    session: int
    samples: Sequence[GroupSample]
    trajectory: Trajectory
    branch_parent: int | None
    branch_depth: int
    seed: int

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids before the first turn, without a hint."""
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


@dataclass(frozen=True, slots=True)
class Group:
    """All trajectories of one question, or the reason why there are none.

    Attributes:
        trajectories: The trajectories by session, exactly as many as requested; empty if the group failed.
        error: Message of the infrastructure error that made the group fail; empty on success. It is never the agent's
            fault, so it does not affect a reward.
        retryable: Whether the error may go away by itself.
    """

    group_id: str
    question: Task
    trajectories: list[GroupTrajectory]
    error: str = ""
    retryable: bool = False

    @property
    def items(self) -> list[GroupItem]:
        """Inputs of the group's rewards, by session."""
        return [_item_of(trajectory) for trajectory in self.trajectories]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRollouts:
    """Runner of group rollouts; it can run any number of groups concurrently.

    Attributes:
        engine: The policy with its tokenizer (text mode is not supported), sampling and limits.
        runtime: Open environment, which makes the episode of each trajectory.
        branching: Rule by which trajectories branch.
        rollout_time_s: Time limit for the calls of one trajectory, including those shared with the one it branched
            from.
        vocab_size: Vocabulary size of the policy; entropies are in units of its logarithm.
        max_samples: Most samples of a trajectory that are trained on; None for all.
        membership: Shared with the `BatchedModel`, if the policy is one.
    """

    engine: RolloutEngine
    runtime: EnvironmentRuntime
    branching: Branching
    rollout_time_s: float
    vocab_size: int
    max_samples: int | None = None
    membership: BatchMembership = field(default_factory=BatchMembership)

    def __post_init__(self) -> None:
        if self.engine.codec is None:
            raise ConfigError("group rollouts need token ids: the policy has no tokenizer here")

    async def roll_out(self, job: GroupJob) -> Group:
        """Roll out one group; mark it as failed on a ModelError or a retryable ToolError.

        Other errors are raised; ConfigError for groups that branch although rollouts have several contexts.
        """
        limits = self.engine.limits
        if job.size > self.branching.initial_rollouts and (limits.trimming or limits.context):
            raise ConfigError("trajectories branch only if each has one context; leave out rl.initial_rollouts")
        self.membership.enter()
        try:
            async with contextlib.AsyncExitStack() as episodes:
                group_run = _GroupRun(self, job, episodes)
                await group_run.play()
                return Group(job.group_id, job.question, await group_run.trajectories())
        except (ModelError, ToolError) as error:
            if isinstance(error, ToolError) and not error.retryable:
                raise
            return Group(job.group_id, job.question, [], str(error) or type(error).__name__, error.retryable)
        finally:
            self.membership.leave()


class GroupRunner(Protocol):
    """What rolls out single groups."""

    async def roll_out(self, job: GroupJob) -> Group:
        """See `GroupRollouts.roll_out`."""
        ...


@dataclass(frozen=True, slots=True)
class MixedRollouts:
    """Runner of groups of several environments, whose rollouts share a model and its batches."""

    by_environment: Mapping[str, GroupRollouts]
    """Runner of each environment, by name; all have the same `membership`."""

    async def roll_out(self, job: GroupJob) -> Group:
        """Roll out one group in its task's environment; see `GroupRollouts.roll_out`."""
        return await self.by_environment[job.question.environment].roll_out(job)


async def roll_out_groups(rollouts: GroupRunner, jobs: Sequence[GroupJob]) -> list[Group]:
    """Roll out all groups concurrently, in the order of `jobs`; failed groups are marked and left to the caller."""
    return await _gather(rollouts.roll_out(job) for job in jobs)


async def require_groups(
    rollouts: GroupRunner, jobs: Sequence[GroupJob], *, sleep: Sleep = asyncio.sleep
) -> list[Group]:
    """Roll out all groups and retry those with a retryable error, until none has failed.

    Tests replace `sleep`. Raises EngineError with the number of failed groups and the first cause.
    """
    groups = await roll_out_groups(rollouts, jobs)
    for pause_s in RETRY_PAUSES_S:
        again = [index for index, group in enumerate(groups) if group.error and group.retryable]
        if not again:
            break
        cause = one_line(groups[again[0]].error)
        _log.warning("%d of %d groups failed, retrying in %g s; first cause: %s", len(again), len(jobs), pause_s, cause)
        await sleep(pause_s)
        for index, group in zip(again, await roll_out_groups(rollouts, [jobs[at] for at in again]), strict=True):
            groups[index] = group
    failed = [group for group in groups if group.error]
    if failed:
        raise EngineError(
            f"{len(failed)} of {len(groups)} groups could not be rolled out; first cause: {failed[0].error}; "
            "fix it and run again to resume"
        )
    return groups


async def _gather(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results; if one fails, cancel the others and wait for their end."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _GroupRun:
    """State of one group while it is rolled out."""

    def __init__(self, rollouts: GroupRollouts, job: GroupJob, episodes: contextlib.AsyncExitStack) -> None:
        """Register the close method of every episode on `episodes`."""
        self._rollouts = rollouts
        self._job = job
        self._episodes = episodes
        self._sessions: list[GroupSession] = []
        self._options: Sequence[EpisodeOptions] = ()

    async def play(self) -> None:
        """Roll out all trajectories, from the question and by branching."""
        size, branching = self._job.size, self._rollouts.branching
        self._options = await self._rollouts.runtime.group_options(self._job.question, size, self._job.seed)
        await self._start_sessions(min(branching.initial_rollouts, size))
        while live := [session for session in self._sessions if session.is_active]:
            if len(self._sessions) == size:
                await self._run_concurrently(live, GroupSession.run_to_end)
                continue
            await self._run_concurrently(live, GroupSession.advance)
            live = [session for session in live if session.is_active]
            await self._branch(live)
            if not live:
                await self._start_sessions(size - len(self._sessions))

    async def _start_sessions(self, number: int) -> None:
        for _ in range(number):
            await self._add(None)

    async def _branch(self, live: Sequence[GroupSession]) -> None:
        """Branch from the unfinished sessions, in their order, until the group is full."""
        branching = self._rollouts.branching
        for session in live:
            session.measure(self._rollouts.vocab_size)
            for attempt in range(min(branching.beam_size - 1, self._job.size - len(self._sessions))):
                draw = uniform(self._job.seed, "branch", session.number, session.num_rounds, attempt)
                if branching.branches(draw, session.rise):
                    await self._add(session)

    async def _add(self, parent: GroupSession | None) -> None:
        rollouts, job = self._rollouts, self._job
        prefix = parent.rollout.prefix() if parent else None
        number = len(self._sessions)
        seed = derive_seed(job.seed, number)
        options = parent.options if parent else self._options[number]
        time_left_s = parent.episode.time_left_s if parent else rollouts.rollout_time_s
        episode = TimedEpisode(rollouts.runtime.episode(), time_left_s)
        self._episodes.push_async_callback(episode.close)
        inherited = parent.recorder.logprobs(prefix.ids, prefix.origins) if parent and prefix else ()
        recorder = Recorder(rollouts.engine.model, episode, inherited)
        rollout = await rollouts.engine.with_turns_from(recorder).begin(
            episode, job.question, seed=seed, deadline=math.inf, cache=NullCache(), prefix=prefix, options=options
        )
        session = GroupSession(
            number=number,
            parent=parent.number if parent else None,
            depth=parent.depth + 1 if parent else 0,
            seed=seed,
            episode=episode,
            options=options,
            recorder=recorder,
            rollout=rollout,
            baseline=parent.baseline if parent else None,
        )
        self._sessions.append(session)

    async def _run_concurrently(
        self, sessions: Sequence[GroupSession], play: Callable[[GroupSession], Awaitable[None]]
    ) -> None:
        """Run sessions concurrently. The last one to end leaves its membership to the group."""
        membership = self._rollouts.membership
        num_others = len(sessions) - 1
        membership.enter(num_others)

        async def play_one(session: GroupSession) -> None:
            nonlocal num_others
            try:
                await play(session)
            finally:
                if num_others:
                    num_others -= 1
                    membership.leave()

        try:
            await _gather(play_one(session) for session in sessions)
        finally:
            membership.leave(num_others)

    async def trajectories(self) -> list[GroupTrajectory]:
        """Return all trajectories; call it when all sessions have ended, before their episodes are closed."""
        made = [await self._trajectory(session) for session in self._sessions]
        if lost := sum(one.is_lost for one in (_item_of(trajectory) for trajectory in made)):
            _log.warning(
                "task %s: the prompts of %d rollouts are too long for a turn, so they have no reward; raise "
                "rl.max_prompt_tokens, or leave the task out",
                self._job.question.key,
                lost,
            )
        return made

    async def _trajectory(self, session: GroupSession) -> GroupTrajectory:
        trajectory = await session.rollout.finish()
        samples = group_samples(trajectory, session.recorder, self._rollouts.engine.limits, self._rollouts.max_samples)
        return GroupTrajectory(
            session=session.number,
            samples=samples,
            trajectory=trajectory,
            branch_parent=session.parent,
            branch_depth=session.depth,
            seed=session.seed,
        )
