"""Groups: all trajectories of one question, as a step of reinforcement learning needs them.

Each is a rollout of `treadle.agent.rollout`: the same protocol, tools and limits as everywhere. Trajectories may branch
(`treadle.rl.branching`); those of a group then take their turns together, so that a group depends on its seed and
the model's answers alone, never on which tool was quicker. Normative: docs/behaviour/group-rollouts.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from treadle.agent.environment import Environment, Ledger, Question
from treadle.agent.memory import Forgetful
from treadle.agent.rollout import Model, Rollout, RolloutEngine, Trajectory, derive_seed
from treadle.agent.transcript import ORIGIN_SAMPLED
from treadle.core.errors import ConfigError, EngineError, ModelError, ToolError
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.rl.batching import Attendance
from treadle.rl.branching import Branching, turn_entropy, uniform
from treadle.rl.rewards import GroupItem

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupJob:
    """One group that is asked for.

    Attributes:
        group_id: Given by the sampler; unique among the groups of a step.
        question: What all of its trajectories answer.
        size: Number of trajectories.
        seed: Of the group; those of its trajectories, turns and branches derive from it.
    """

    group_id: str
    question: Question
    size: int
    seed: int


@dataclass(frozen=True, slots=True)
class GroupTrajectory:
    """One trajectory of a group, ready to be trained on.

    Attributes:
        session: Its number in the group, from 0 in the order of creation.
        prompt_ids: Ids before the assistant's turn.
        completion_ids: The assistant's turn, results included, at most `max_trajectory_tokens`. Where the model ended
            its last turn without call or answer, its end-of-turn id is the last one.
        env_mask: For each of them 1 if the model sampled it, else 0.
        logprobs: For each of them its log-probability when it was sampled; 0.0 where the mask is 0, or if unknown.
        trajectory: What happened.
        branch_parent: Session of the trajectory that it branched from; None if it began with the question.
        branch_depth: Number of branchings between it and the question.
        seed: Of its turns.
    """

    session: int
    prompt_ids: list[int]
    completion_ids: list[int]
    env_mask: list[int]
    logprobs: list[float]
    trajectory: Trajectory
    branch_parent: int | None
    branch_depth: int
    seed: int


@dataclass(frozen=True, slots=True)
class Group:
    """All trajectories of one question, or the reason why there are none.

    Attributes:
        trajectories: By their sessions, exactly as many as asked for; none if the group failed.
        error: What kept it from being finished, in words; empty if nothing did. It is infrastructure, never the
            agent, and so no reason for a reward.
        retryable: Whether that may pass by itself.
    """

    group_id: str
    question: Question
    trajectories: list[GroupTrajectory]
    error: str = ""
    retryable: bool = False

    @property
    def items(self) -> list[GroupItem]:
        """What the group's rewards are made from, by sessions."""
        return [_item_of(trajectory) for trajectory in self.trajectories]


def _item_of(made: GroupTrajectory) -> GroupItem:
    ledger = Ledger(made.trajectory.calls)
    return GroupItem(
        segments=tuple(made.trajectory.segments),
        tool_calls=ledger.executed.total(),
        tool_failures=ledger.failed,
        model_tokens=sum(made.env_mask),
        total_tokens=len(made.completion_ids),
        status=made.trajectory.status,
        session=made.session,
        branch_parent=made.branch_parent,
        branch_depth=made.branch_depth,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRollouts:
    """Makes groups, any number of them at once.

    Attributes:
        engine: The policy, with its tokenizer (text mode will not do), sampling and limits.
        new_environment: Makes the environment of one trajectory.
        branching: How groups come to their size.
        rollout_time_s: Wall time of one trajectory, what it has in common with the one it branched from included.
        vocab_size: Of the policy; the unit of entropies.
        attendance: Shared with a `BatchedModel`, where the policy is one.
    """

    engine: RolloutEngine
    new_environment: Callable[[], Environment]
    branching: Branching
    rollout_time_s: float
    vocab_size: int
    attendance: Attendance = field(default_factory=Attendance)

    def __post_init__(self) -> None:
        if self.engine.codec is None:
            raise ConfigError("group rollouts need token ids: the policy has no tokenizer here")

    async def roll_out(self, job: GroupJob) -> Group:
        """One group. It is marked as failed where a model or a tool could not be asked; other errors are raised."""
        self.attendance.enter()
        making = _Making(self, job)
        try:
            await making.play()
        except (ModelError, ToolError) as error:
            if isinstance(error, ToolError) and not error.retryable:
                raise
            _log.warning("group %s failed: %s", job.group_id, error)
            return Group(job.group_id, job.question, [], str(error) or type(error).__name__, error.retryable)
        finally:
            await making.close()
            self.attendance.leave()
        return Group(job.group_id, job.question, making.trajectories())


async def roll_out_groups(rollouts: GroupRollouts, jobs: Sequence[GroupJob]) -> list[Group]:
    """Groups in the order of `jobs`, all at once; those that failed are marked, and the caller decides what then."""
    tasks = [asyncio.create_task(rollouts.roll_out(job)) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def require_groups(rollouts: GroupRollouts, jobs: Sequence[GroupJob], *, retries: int = 1) -> list[Group]:
    """The same, but failed groups are tried again where their cause may pass, and none is left that failed.

    Raises EngineError with their number and the first cause.
    """
    groups = await roll_out_groups(rollouts, jobs)
    for _ in range(retries):
        again = [index for index, group in enumerate(groups) if group.error and group.retryable]
        for index, group in zip(again, await roll_out_groups(rollouts, [jobs[at] for at in again]), strict=True):
            groups[index] = group
    failed = [group for group in groups if group.error]
    if failed:
        raise EngineError(
            f"{len(failed)} of {len(groups)} groups could not be rolled out; first cause: {failed[0].error}; "
            "when it is mended, run again to go on"
        )
    return groups


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Recorder:
    """The model of one trajectory, which notes what was sampled where; rollouts elsewhere have no use for that."""

    def __init__(self, model: Model, inherited: Sequence[float]) -> None:
        """`inherited` are log-probabilities of the ids that the trajectory began with, if it branched off."""
        self._model = model
        self._inherited = inherited
        self._num_prompt_ids: int | None = None
        self._answers: list[tuple[int, Completion]] = []

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """One completion."""
        if self._num_prompt_ids is None:
            self._num_prompt_ids = len(request.prompt) - len(self._inherited)
        start = len(request.prompt) - self._num_prompt_ids
        completion = await self._model.complete(request, session=session, deadline=deadline)
        self._answers.append((start, completion))
        return completion

    @property
    def last(self) -> Completion | None:
        """The newest answer."""
        return self._answers[-1][1] if self._answers else None

    def logprobs(self, ids: Sequence[int], origins: Sequence[int]) -> list[float]:
        """For each id of the assistant's turn its log-probability, 0.0 where it was not sampled."""
        values = [*self._inherited, *[0.0] * (len(ids) - len(self._inherited))]
        for start, completion in self._answers:
            for offset, logprob in enumerate(completion.logprobs or ()):
                if start + offset < len(ids) and origins[start + offset] == ORIGIN_SAMPLED:
                    values[start + offset] = logprob
        return values

    def end_of_turn(self, num_kept: int, eos_ids: Collection[int]) -> tuple[int, float] | None:
        """The end-of-turn id that follows the `num_kept` ids of the assistant's turn, if the model sampled one."""
        if not self._answers:
            return None
        start, completion = self._answers[-1]
        ids, at = completion.token_ids or (), num_kept - start
        if at >= len(ids) or ids[at] not in eos_ids:
            return None
        return ids[at], completion.logprobs[at] if completion.logprobs else 0.0


@dataclass(slots=True, kw_only=True)
class _Session:
    """One trajectory in the making. `baseline` is the entropy of its first turn, or of that of its parent."""

    number: int
    parent: int | None
    depth: int
    seed: int
    deadline: float
    environment: Environment
    recorder: _Recorder
    rollout: Rollout
    baseline: float | None
    rise: float = 0.0
    num_rounds: int = 0
    goes_on: bool = True

    async def advance(self) -> None:
        """Take one turn."""
        self.goes_on = await self.rollout.advance()
        self.num_rounds += 1

    async def play_out(self) -> None:
        """Take all turns that are left."""
        while self.goes_on:
            await self.advance()

    def measure(self, vocab_size: int) -> None:
        """Note by how much the entropy of the newest turn is above the baseline."""
        assert self.recorder.last is not None
        entropy = turn_entropy(self.recorder.last, vocab_size)
        if self.baseline is None:
            self.baseline = entropy
        self.rise = entropy - self.baseline


class _Making:
    """One group in the making."""

    def __init__(self, rollouts: GroupRollouts, job: GroupJob) -> None:
        self._rollouts = rollouts
        self._job = job
        self._sessions: list[_Session] = []

    async def play(self) -> None:
        """Make all trajectories, from the question and from each other."""
        size, branching = self._job.size, self._rollouts.branching
        await self._begin(min(branching.initial_rollouts, size))
        while live := [session for session in self._sessions if session.goes_on]:
            if len(self._sessions) == size:
                await self._together(live, _Session.play_out)
                continue
            await self._together(live, _Session.advance)
            live = [session for session in live if session.goes_on]
            await self._branch(live)
            if not live:
                await self._begin(branching.num_back_filled(size - len(self._sessions)))

    async def close(self) -> None:
        """Close all environments."""
        for session in self._sessions:
            await session.environment.close()

    async def _begin(self, number: int) -> None:
        deadline = asyncio.get_running_loop().time() + self._rollouts.rollout_time_s
        for _ in range(number):
            await self._add(None, deadline)

    async def _branch(self, live: Sequence[_Session]) -> None:
        """Let those that go on branch, in their order, until the group has its size."""
        branching = self._rollouts.branching
        for session in live:
            session.measure(self._rollouts.vocab_size)
            for attempt in range(min(branching.beam_size - 1, self._job.size - len(self._sessions))):
                draw = uniform(self._job.seed, "branch", session.number, session.num_rounds, attempt)
                if branching.branches(draw, session.rise):
                    await self._add(session, session.deadline)

    async def _add(self, parent: _Session | None, deadline: float) -> None:
        rollouts, job = self._rollouts, self._job
        prefix = parent.rollout.prefix() if parent else None
        recorder = _Recorder(
            rollouts.engine.model, parent.recorder.logprobs(prefix.ids, prefix.origins) if parent and prefix else ()
        )
        number = len(self._sessions)
        seed = derive_seed(job.seed, number)
        environment = rollouts.new_environment()
        try:
            rollout = await replace(rollouts.engine, model=recorder).begin(
                environment, job.question, seed=seed, deadline=deadline, memory=Forgetful(), prefix=prefix
            )
        except BaseException:
            await environment.close()
            raise
        session = _Session(
            number=number,
            parent=parent.number if parent else None,
            depth=parent.depth + 1 if parent else 0,
            seed=seed,
            deadline=deadline,
            environment=environment,
            recorder=recorder,
            rollout=rollout,
            baseline=parent.baseline if parent else None,
        )
        self._sessions.append(session)

    async def _together(self, sessions: Sequence[_Session], play: Callable[[_Session], Awaitable[None]]) -> None:
        """Let sessions play at once. The last one to end leaves its attendance to the group, which goes on then."""
        attendance = self._rollouts.attendance
        num_others = len(sessions) - 1
        attendance.enter(num_others)

        async def play_one(session: _Session) -> None:
            nonlocal num_others
            try:
                await play(session)
            finally:
                if num_others:
                    num_others -= 1
                    attendance.leave()

        tasks = [asyncio.create_task(play_one(session)) for session in sessions]
        try:
            await asyncio.gather(*tasks)
        finally:
            await _end(tasks)
            attendance.leave(num_others)

    def trajectories(self) -> list[GroupTrajectory]:
        """All of them, when they have ended."""
        return [self._trajectory(session) for session in self._sessions]

    def _trajectory(self, session: _Session) -> GroupTrajectory:
        engine = self._rollouts.engine
        trajectory = session.rollout.finish()
        ids, mask = list(trajectory.output_ids), [int(origin == ORIGIN_SAMPLED) for origin in trajectory.token_origin]
        logprobs = session.recorder.logprobs(ids, trajectory.token_origin)
        assert engine.codec is not None
        end = session.recorder.end_of_turn(len(ids), engine.codec.eos_ids)
        if trajectory.status == "no_answer" and end is not None:
            # That it ended here was the model's decision: nothing but this id can unlearn it.
            ids.append(end[0])
            mask.append(1)
            logprobs.append(end[1])
        most = engine.limits.max_trajectory_tokens
        return GroupTrajectory(
            session=session.number,
            prompt_ids=trajectory.prompt_ids,
            completion_ids=ids[:most],
            env_mask=mask[:most],
            logprobs=logprobs[:most],
            trajectory=trajectory,
            branch_parent=session.parent,
            branch_depth=session.depth,
            seed=session.seed,
        )
