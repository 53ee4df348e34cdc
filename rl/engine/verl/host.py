"""Roll out groups for the sessions of one verl agent-loop worker, which share the plan and the environments.

verl calls one coroutine per trajectory. The sessions of a group meet here, and the group is rolled out and rewarded by
the code that all engines use. Nothing here imports verl. Documented in docs/guides/verl.md.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from treadle.agent.model_types import ChatCodec
from treadle.core.chat import ChatTokenizer
from treadle.core.seeds import derive_seed
from treadle.rl.engine.rows import Payloads, job_environments, plan_of
from treadle.rl.engine.scorer import GroupScorer, open_scorer
from treadle.rl.engine.verl.barrier import GroupBarrier, GroupFailed
from treadle.rl.engine.verl.folder import VerlFolder
from treadle.rl.engine.verl.sample import Sample
from treadle.rl.engine.verl.served_model import VerlModel
from treadle.rl.environment import OpenEnvironment, open_environments
from treadle.rl.groups.attempts import require_groups
from treadle.rl.groups.dump import rollout_row
from treadle.rl.groups.group import Group, GroupJob, GroupTrajectory
from treadle.rl.rewards.rewarded import RewardedItem
from treadle.rl.training.plan import RlPlan


@dataclass(frozen=True, slots=True)
class RewardedTrajectory:
    """One trajectory with its reward, and the oldest and newest weights (verl's update count) that sampled it.

    `advantages` has one number per turn; None if verl computes advantages from the rewards.
    """

    made: GroupTrajectory
    reward: RewardedItem
    min_version: int
    max_version: int
    advantages: list[float] | None = None


class LoopHost:
    """Host of all sessions of one worker process. Use it on one event loop."""

    def __init__(
        self,
        plan: RlPlan,
        environments: Mapping[str, OpenEnvironment],
        codec: ChatCodec,
        vocab_size: int,
        folder: VerlFolder,
        scorer: GroupScorer,
        payloads: Payloads,
    ) -> None:
        """Host a training in these environments (name -> environment); `vocab_size` is that of the policy."""
        self._plan = plan
        self._environments = environments
        self._codec = codec
        self._vocab_size = vocab_size
        self._folder = folder
        self._scorer = scorer
        self._payloads = payloads
        self._barrier: GroupBarrier[RewardedTrajectory] = GroupBarrier(plan.options.stall_timeout_s / 2)

    @property
    def end_id(self) -> int:
        """Token id that ends a turn."""
        return min(self._codec.eos_ids)

    @property
    def part_names(self) -> list[str]:
        """Names of the parts of the rewards, as the options declare them."""
        return list(self._plan.options.reward_parts)

    @property
    def credits_turns(self) -> bool:
        """True if verl gets a score for each token, made from the advantages of turns, instead of a reward."""
        return self._plan.options.credits_turns

    async def join(
        self, sample: Sample, session: int, size: int, client: Any, sampling: Mapping[str, Any]
    ) -> RewardedTrajectory:
        """Join a group of `size` as one session and return its trajectory.

        `sampling` is verl's own sampling parameters. Raises GroupFailed in every session of the group.
        """

        async def make() -> list[RewardedTrajectory]:
            return await self._make(sample, size, client, sampling)

        try:
            return await self._barrier.join((sample.group_id, sample.step), session, size, make)
        except (GroupFailed, asyncio.CancelledError) as error:
            why = str(error) or "its sessions were cancelled"
            self._folder.fail_group(sample.step, sample.group_id, why, validation=sample.validates)
            raise

    async def _make(
        self, sample: Sample, size: int, client: Any, sampling: Mapping[str, Any]
    ) -> list[RewardedTrajectory]:
        options, environment = self._plan.options, self._environments[sample.question.environment]
        model = VerlModel(client, sample.group_id, sampling, self._codec)
        engine = environment.engine(
            model,
            self._codec,
            options.sampling,
            max_response_tokens=options.max_response_tokens,
            max_model_len=options.max_prompt_tokens + options.max_response_tokens,
        )
        branching = options.branching
        if sample.validates:
            branching = replace(branching, initial_rollouts=size)
        rollouts = environment.groups(
            engine,
            branching,
            vocab_size=self._vocab_size,
            max_prompt_tokens=options.max_prompt_tokens,
            wall_limit_s=options.wall_limit_s,
            live=self._scorer.live,
        )
        self._scorer.live.begin(0 if sample.validates else sample.step)
        seed = derive_seed(self._plan.seed, sample.split, sample.step, sample.index)
        task = self._payloads.added_to(sample.question)
        (group,) = await require_groups(
            rollouts,
            [GroupJob(sample.group_id, task, size, seed)],
            attempts=options.attempts,
        )
        # Computer algebra and credit may take seconds, and other groups are rolled out on this event loop.
        rewards = await asyncio.to_thread(self._rewards, sample, group)
        rewards, advantages = await asyncio.to_thread(self._credited, sample, group, rewards)
        self._store(sample, group, rewards)
        oldest, newest = model.versions(sample.step)
        return [
            RewardedTrajectory(made, reward, oldest, newest, own)
            for made, reward, own in zip(group.trajectories, rewards, advantages, strict=True)
        ]

    def _rewards(self, sample: Sample, group: Group) -> list[RewardedItem]:
        return self._scorer.rewards(group, group.question, 0 if sample.validates else sample.step)

    def _credited(
        self, sample: Sample, group: Group, rewards: list[RewardedItem]
    ) -> tuple[list[RewardedItem], Sequence[list[float] | None]]:
        """Return the rewards with the credit rule's parts added, and each trajectory's advantages by turn.

        If the rule is not applied, return the rewards unchanged, and None in place of advantages.
        """
        options = self._plan.options
        # verl's dynamic sampling drops groups with equal rewards, so the credit rule, which may cost money, is skipped.
        dropped = options.dynamic_sampling and len({one.reward for one in rewards if one.scored}) < 2
        if sample.validates or dropped or not options.credits_turns:
            return rewards, [None] * len(rewards)
        made = self._scorer.credited(group, group.question, rewards, sample.step)
        return made.rewards, made.advantages

    def _store(self, sample: Sample, group: Group, rewards: Sequence[RewardedItem]) -> None:
        lines = [
            {"row": rollout_row(sample.step, group, made, reward), "reward": asdict(reward)}
            for made, reward in zip(group.trajectories, rewards, strict=True)
        ]
        self._folder.write_group(sample.step, sample.group_id, lines, validation=sample.validates)


_hosts: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Path, asyncio.Task[LoopHost]]] = (
    weakref.WeakKeyDictionary()
)
_holding_tasks: set[asyncio.Task[None]] = set()


async def host_of(job: Path) -> LoopHost:
    """Return this process's host of a training; its environments stay open until the process ends.

    If opening them fails, the error is raised in every session and written to the training's folder.
    """
    loop = asyncio.get_running_loop()
    hosts = _hosts.setdefault(loop, {})
    if job not in hosts:
        hosts[job] = loop.create_task(_open_host(job))
    return await asyncio.shield(hosts[job])


async def _open_host(path: Path) -> LoopHost:
    job = json.loads(path.read_text(encoding="utf-8"))
    folder = VerlFolder.of_job(job)
    try:
        plan = plan_of(job)
        environments, scorer = await _open_for_process(job, plan)
        codec = await asyncio.to_thread(ChatTokenizer.load, Path(job["model"]))
        return LoopHost(plan, environments, codec, codec.vocab_size, folder, scorer, Payloads.of_job(job))
    except Exception as error:
        folder.environment_failure.write_text(f"{type(error).__name__}: {error}"[:2000], encoding="utf-8")
        raise


async def _open_for_process(job: Mapping[str, Any], plan: RlPlan) -> tuple[Mapping[str, OpenEnvironment], GroupScorer]:
    """Open the environments and the scorer in a task that keeps them open as long as the event loop runs."""
    settings = job_environments(job)
    interpreter = Path(job["interpreter"]) if job.get("interpreter") else None
    opened: asyncio.Future[tuple[Mapping[str, OpenEnvironment], GroupScorer]]
    opened = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        """Open the tools and wait forever; cancel scopes must be opened and closed by the same task."""
        try:
            with open_scorer(plan, settings, training=Path(job["events"]).parent) as scorer:
                async with open_environments(settings, interpreter=interpreter) as environments:
                    opened.set_result((environments, scorer))
                    await asyncio.Event().wait()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    _holding_tasks.add(asyncio.create_task(hold()))
    return await opened
