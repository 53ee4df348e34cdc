"""Roll out groups: all trajectories of one question, as a step of reinforcement learning needs them.

Each trajectory is a rollout of `treadle.agent.rollout`, with the same protocol, tools and limits. If trajectories may
branch (`treadle.rl.groups.branching`), those of a group advance one turn at a time together. A group therefore depends
only on its seed and the model's answers, never on tool latency. Normative: docs/behaviour/group-rollouts.md.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from treadle.agent.call_cache import NullCache
from treadle.agent.contract import EpisodeOptions
from treadle.agent.rollout import RolloutEngine
from treadle.core.errors import ConfigError, ModelError, ToolError
from treadle.core.gather import gather_or_cancel
from treadle.core.seeds import derive_seed
from treadle.environments.types import EnvironmentRuntime
from treadle.rl.groups.batching import BatchMembership
from treadle.rl.groups.branching import Branching, uniform
from treadle.rl.groups.group import Group, GroupJob, GroupTrajectory, LostTo, OverSampler, lost_trajectory
from treadle.rl.groups.live import LiveRollouts, RolloutCounts
from treadle.rl.groups.oversampling import RolloutUse, StartedRollout
from treadle.rl.groups.race import Race
from treadle.rl.groups.samples import group_samples
from treadle.rl.groups.session import GroupSession, Recorder, TimedEpisode


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
        wall_limit_s: Total time in seconds that the environment of one rollout may take, after which the rollout fails;
            at least `rollout_time_s` plus a minute.
        over_sampler: Rule by which a group starts more rollouts than it needs; None for exactly as many. Not with
            branching.
        live: Status display of the groups while they are rolled out.
    """

    engine: RolloutEngine
    runtime: EnvironmentRuntime
    branching: Branching
    rollout_time_s: float
    vocab_size: int
    max_samples: int | None = None
    membership: BatchMembership = field(default_factory=BatchMembership)
    wall_limit_s: float = math.inf
    over_sampler: OverSampler | None = None
    live: LiveRollouts = field(default_factory=LiveRollouts)

    def __post_init__(self) -> None:
        if self.engine.codec is None:
            raise ConfigError("group rollouts need token ids: the policy has no tokenizer here")

    def greedy(self) -> GroupRollouts:
        """Return a runner of groups of one greedy trajectory, without over-sampling."""
        sampling = self.engine.sampling.model_copy(update={"temperature": 0.0})
        return replace(self, engine=replace(self.engine, sampling=sampling), branching=Branching(1), over_sampler=None)

    async def roll_out(self, job: GroupJob) -> Group:
        """Roll out one group; mark it as failed on a ModelError or a retryable ToolError.

        With `keeps_rest`, such an error loses only its own trajectory, as long as two others are left. Other errors are
        raised, and ConfigError if trajectories should branch and may have several contexts.
        """
        limits = self.engine.limits
        if job.size > self.branching.initial_rollouts and (limits.trimming or limits.context):
            raise ConfigError("trajectories branch only if each has one context; leave out rl.initial_rollouts")
        self.membership.enter()
        try:
            async with contextlib.AsyncExitStack() as episodes:
                group_run = _GroupRun(self, job, episodes)
                with self.live.group(job.group_id, group_run.counts):
                    await group_run.play()
                    return await group_run.group()
        except (ModelError, ToolError) as error:
            if _is_permanent(error):
                raise
            return Group(job.group_id, job.question, [], _words(error), error.retryable, lost_to(error))
        finally:
            self.membership.leave()


def lost_to(error: ModelError | ToolError) -> LostTo:
    """Return whether the environment or the model failed."""
    return "environment" if isinstance(error, ToolError) else "model"


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _is_permanent(error: ModelError | ToolError) -> bool:
    """Return whether an error comes from a wrong setup, which ends the training."""
    return isinstance(error, ToolError) and not error.retryable


class GroupRunner(Protocol):
    """Runner of single groups."""

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
    """Roll out all groups concurrently; return them in the order of `jobs`, including those marked as failed."""
    return await gather_or_cancel([rollouts.roll_out(job) for job in jobs])


class _GroupRun:
    """State of one group while it is rolled out."""

    def __init__(self, rollouts: GroupRollouts, job: GroupJob, episodes: contextlib.AsyncExitStack) -> None:
        """Register the close method of every episode on `episodes`."""
        self._rollouts = rollouts
        self._job = job
        self._episodes = episodes
        self._sessions: list[GroupSession] = []
        self._options: Sequence[EpisodeOptions] = ()
        over = rollouts.over_sampler
        self._size = over.rule.num_started if over is not None else job.size
        self._keeps_rest = job.keeps_rest or over is not None
        self._lost: dict[int, ModelError | ToolError] = {}
        """Error of each lost session, by number."""
        self._too_long = ""
        """Message about a prompt that cannot be trained on; empty if there is none."""
        self._num_added = 0
        self._made: dict[int, GroupTrajectory] = {}
        """Finished trajectories, by session."""
        self._race: Race | None = None
        if over is not None:
            is_audit = uniform(job.seed, "audit") <= over.rule.audit_share
            self._race = Race(over.rule, self._reward_of, is_audit=is_audit)
            self._is_audit = is_audit

    def counts(self) -> RolloutCounts:
        """Return the numbers of the group's rollouts by state."""
        ended = [one for one in tuple(self._sessions) if not one.is_active and one.number not in self._lost]
        cancelled = sum(self._race is not None and self._race.was_cancelled(one.number) for one in ended)
        num_started, failed = self._num_added, len(self._lost)
        return RolloutCounts(
            queued=max(0, self._size - num_started),
            running=max(0, num_started - len(ended) - failed),
            finished=len(ended) - cancelled,
            failed=failed,
            cancelled=cancelled,
            tokens=sum(session.recorder.num_sampled for session in tuple(self._sessions)),
        )

    async def play(self) -> None:
        """Roll out all trajectories, from the question and by branching."""
        size, branching = self._size, self._rollouts.branching
        self._options = await self._rollouts.runtime.group_options(self._job.question, size, self._job.seed)
        await self._start_sessions(size if self._race else min(branching.initial_rollouts, size))
        while (live := self._active()) or self._num_added < size:
            if not live:  # They have ended, or all were lost before their first turns.
                await self._start_sessions(size - self._num_added)
            elif self._num_added == size:
                await self._run_concurrently(live, self._run_to_end)
            else:
                await self._run_concurrently(live, self._advance)
                await self._branch(self._active())

    def _active(self) -> list[GroupSession]:
        return [session for session in self._sessions if session.is_active]

    async def _start_sessions(self, number: int) -> None:
        for _ in range(number):
            await self._add(None)

    async def _branch(self, live: Sequence[GroupSession]) -> None:
        """Branch from the unfinished sessions, in their order, until the group is full."""
        branching = self._rollouts.branching
        for session in live:
            session.measure(self._rollouts.vocab_size)
            for attempt in range(min(branching.beam_size - 1, self._size - self._num_added)):
                draw = uniform(self._job.seed, "branch", session.number, session.num_rounds, attempt)
                if branching.branches(draw, session.rise):
                    await self._add(session)

    async def _add(self, parent: GroupSession | None) -> None:
        rollouts, job = self._rollouts, self._job
        prefix = parent.rollout.prefix() if parent else None
        number = self._num_added
        self._num_added += 1
        seed = derive_seed(job.seed, number)
        options = parent.options if parent else self._options[number]
        time_left_s = parent.episode.time_left_s if parent else rollouts.rollout_time_s
        episode = TimedEpisode(rollouts.runtime.episode(), time_left_s, wall_limit_s=rollouts.wall_limit_s)
        self._episodes.push_async_callback(episode.close)
        inherited = parent.recorder.logprobs(prefix.ids, prefix.origins) if parent and prefix else ()
        recorder = Recorder(rollouts.engine.model, episode, inherited)
        begin = rollouts.engine.with_turns_from(recorder).begin
        try:
            rollout = await begin(
                episode, job.question, seed=seed, deadline=math.inf, cache=NullCache(), prefix=prefix, options=options
            )
        except (ModelError, ToolError) as error:
            await self._lose(number, episode, error)
            if self._race is not None:
                self._race.lose()
            return
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
        """Run sessions concurrently, each counted in `membership` until its end.

        The last session to end is not subtracted: it is the one that counts for the group between its turns.
        """
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
            await gather_or_cancel([play_one(session) for session in sessions])
        finally:
            membership.leave(num_others)

    async def _advance(self, session: GroupSession) -> None:
        await self._guarded(session, session.advance)

    async def _run_to_end(self, session: GroupSession) -> None:
        async def play() -> bool:
            return await self._guarded(session, session.run_to_end) and await self._finish(session)

        if self._race is None:
            await self._guarded(session, session.run_to_end)
        else:
            await self._race.run(session.number, play)
            session.is_active = False

    async def _finish(self, session: GroupSession) -> bool:
        """Store the trajectory of a session that has ended; return False if infrastructure failed."""

        async def finish() -> None:
            self._made[session.number] = await self._trajectory(session)

        return session.number in self._made or await self._guarded(session, finish)

    async def _guarded(self, session: GroupSession, work: Callable[[], Awaitable[None]]) -> bool:
        """Run `work` of a session; if infrastructure fails, mark only this session as lost and return False.

        Raises the error if the group's `keeps_rest` is False, or if the setup is wrong.
        """
        try:
            await work()
        except (ModelError, ToolError) as error:
            await self._lose(session.number, session.episode, error)
            session.is_active = False
            return False
        return True

    async def _lose(self, number: int, episode: TimedEpisode, error: ModelError | ToolError) -> None:
        if not self._keeps_rest or _is_permanent(error):
            raise error
        self._lost[number] = error
        await episode.close()

    async def _reward_of(self, number: int) -> float | None:
        """Return the reward of a finished trajectory of an over-sampled group."""
        sampler = self._rollouts.over_sampler
        assert sampler is not None
        alone = Group(self._job.group_id, self._job.question, [self._made[number]])
        return await sampler.reward_of(alone)

    async def group(self) -> Group:
        """Return the group; call it when all sessions have ended, before their episodes are closed.

        Raises the first error if too few trajectories are left.
        """
        for session in self._sessions if self._race is None else ():
            if session.number not in self._lost:
                await self._finish(session)
        job, numbers = self._job, self._race.chosen() if self._race is not None else sorted(self._made)
        kept = {number: self._made[number] for number in numbers}
        if len(kept) < (min(2, job.size) if job.keeps_rest else job.size):
            first = next(iter(self._lost.values()))
            if not job.keeps_rest:
                raise first
            kept = {number: _dropped(one) for number, one in kept.items()}
        prompt_ids = next((one.prompt_ids for one in kept.values()), [])
        missing = [*sorted(self._lost), *range(self._num_added, job.size)]
        for number in missing[: job.size - len(kept)]:
            reason = lost_to(self._lost[number]) if number in self._lost else "group"
            kept[number] = lost_trajectory(number, derive_seed(job.seed, number), prompt_ids, reason)
        trajectories = [kept[number] for number in sorted(kept)]
        group = Group(job.group_id, job.question, trajectories)
        if self._lost or self._too_long:
            cause = _words(next(iter(self._lost.values()))) if self._lost else self._too_long
            group = replace(group, lost_cause=cause)
        if self._race is None:
            return group
        started = tuple(self._started(number, kept, self._race) for number in range(self._num_added))
        return replace(group, started=started, is_audit=self._is_audit)

    def _started(self, number: int, kept: Mapping[int, GroupTrajectory], race: Race) -> StartedRollout:
        """Return the use, tokens, reward and order of finishing of one rollout of an over-sampled group."""
        use: RolloutUse = "unused" if number in race.in_time() else "audit"
        if number in self._lost or (number in kept and kept[number].lost_to):
            use = "lost"
        elif number in kept:
            use = "trained"
        elif race.was_cancelled(number):
            use = "cancelled"
        elif not self._is_audit:
            use = "unused"
        sessions = {session.number: session for session in self._sessions}
        recorder = sessions[number].recorder if number in sessions else None
        tokens, turns = (recorder.num_sampled, recorder.num_turns) if recorder is not None else (0, 0)
        place = race.order.index(number) if number in race.order else None
        return StartedRollout(number, use, tokens, turns, race.rewards.get(number), place)

    async def _trajectory(self, session: GroupSession) -> GroupTrajectory:
        trajectory = await session.rollout.finish()
        samples = group_samples(trajectory, session.recorder, self._rollouts.engine.limits, self._rollouts.max_samples)
        made = GroupTrajectory(
            session=session.number,
            samples=samples,
            trajectory=trajectory,
            branch_parent=session.parent,
            branch_depth=session.depth,
            seed=session.seed,
            hint=session.options.hint,
        )
        if not made.item.was_played:  # The prompt left no room for a turn, so there is no reward.
            length = len(trajectory.samples[0].prompt_ids)
            self._too_long = (
                f"task {self._job.question.key} begins with {length:,} tokens, more than rl.max_prompt_tokens = "
                f"{self._rollouts.engine.limits.max_prompt_tokens}; raise it, or leave the task out"
            )
        return made


def _dropped(one: GroupTrajectory) -> GroupTrajectory:
    """Return a placeholder for a trajectory whose group has too few trajectories left."""
    return lost_trajectory(one.session, one.seed, one.prompt_ids, "group")
