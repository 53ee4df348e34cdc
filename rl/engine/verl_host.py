"""What the sessions of one agent-loop worker of verl share: the plan, the environment, the groups in flight.

verl calls a coroutine per trajectory; here they meet, and one group is rolled out and rewarded by the code that every
engine uses. Of verl only the client of its servers is needed, and of that one method: nothing here imports verl.
Documented in docs/guides/verl.md.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from treadle.agent.config import EnvironmentSettings
from treadle.agent.environment import Question
from treadle.agent.rollout import ChatCodec, derive_seed
from treadle.core.chat import ChatTokenizer
from treadle.core.llm.config import Sampling
from treadle.rl.branching import Branching
from treadle.rl.dump import rollout_row
from treadle.rl.engine.verl_barrier import GroupBarrier, GroupFailed
from treadle.rl.engine.verl_folder import VerlFolder
from treadle.rl.engine.verl_model import Client, VerlModel
from treadle.rl.environment import OpenEnvironment, open_environment
from treadle.rl.groups import Group, GroupJob, GroupTrajectory, require_groups
from treadle.rl.plan import RlPlan
from treadle.rl.rewards import Reward, group_rewards
from treadle.rl.verl_rows import domain_of

VALIDATION = "valid"
"""`extra_info.split` of a question that is only validated."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The columns of one row that verl hands to a session."""

    group_id: str
    step: int
    index: int
    split: str
    question: Question
    answers: tuple[str, ...]

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Sample:
        """From the keyword arguments of an agent loop's `run`; raises DataError for an unknown `data_source`."""
        info = fields["extra_info"]
        rule = domain_of(fields["data_source"])
        question = Question(
            key=str(info["id"]),
            text=info["question"],
            choices=tuple(info.get("choices") or ()),
            dataset=info.get("source") or "",
            domain=info.get("domain") or rule,
            format=info.get("format"),
            scorer=rule,
        )
        return cls(
            group_id=str(fields["uid"]),
            step=int(fields["global_steps"]),
            index=int(info["index"]),
            split=info["split"],
            question=question,
            answers=tuple(fields["reward_model"]["ground_truth"]),
        )

    @property
    def validates(self) -> bool:
        """Whether it is answered greedily, alone, and not trained on."""
        return self.split == VALIDATION


@dataclass(frozen=True, slots=True)
class Rewarded:
    """One trajectory with its reward, and the weights that it was sampled with (verl's count of updates)."""

    made: GroupTrajectory
    reward: Reward
    min_version: int
    max_version: int


class RewardFunction(Protocol):
    """Rewards of a group at a step, by sessions."""

    def __call__(self, sample: Sample, group: Group) -> Sequence[Reward]:
        """As many as the group has trajectories."""
        ...


class LoopHost:
    """The meeting place of all sessions of one worker process. Use on one event loop."""

    def __init__(
        self,
        plan: RlPlan,
        environment: OpenEnvironment,
        codec: ChatCodec,
        vocab_size: int,
        folder: VerlFolder,
        *,
        rewards: RewardFunction | None = None,
    ) -> None:
        """`vocab_size` of the policy; `rewards` in place of the plan's."""
        self._plan = plan
        self._environment = environment
        self._codec = codec
        self._vocab_size = vocab_size
        self._folder = folder
        self._rewards = rewards or self._plan_rewards
        self._barrier: GroupBarrier[Rewarded] = GroupBarrier(plan.options.stall_timeout_s / 2)

    @property
    def end_id(self) -> int:
        """An id that ends a turn."""
        return min(self._codec.eos_ids)

    async def attend(
        self, sample: Sample, session: int, size: int, client: Client, sampling: Mapping[str, Any]
    ) -> Rewarded:
        """Take part in a group of `size` as one session; returns its trajectory.

        `sampling` are verl's own sampling parameters. Raises GroupFailed, in every session of the group.
        """

        async def make() -> list[Rewarded]:
            return await self._make(sample, size, client, sampling)

        try:
            return await self._barrier.attend((sample.group_id, sample.step), session, size, make)
        except (GroupFailed, asyncio.CancelledError) as error:
            why = str(error) or "its sessions were cancelled"
            self._folder.fail_group(sample.step, sample.group_id, why, validation=sample.validates)
            raise

    async def _make(self, sample: Sample, size: int, client: Client, sampling: Mapping[str, Any]) -> list[Rewarded]:
        options = self._plan.options
        model = VerlModel(client, sample.group_id, sampling, self._codec)
        engine = self._environment.engine(
            model,
            self._codec,
            Sampling(
                temperature=options.temperature,
                top_p=options.top_p,
                top_k=options.top_k,
                max_tokens=options.max_new_tokens or options.max_response_tokens,
            ),
            max_response_tokens=options.max_response_tokens,
            max_model_len=options.max_prompt_tokens + options.max_response_tokens,
        )
        branching = Branching(size) if sample.validates else Branching.from_options(options)
        rollouts = self._environment.groups(engine, branching, vocab_size=self._vocab_size)
        seed = derive_seed(self._plan.seed, sample.split, sample.step, sample.index)
        (group,) = await require_groups(rollouts, [GroupJob(sample.group_id, sample.question, size, seed)])
        rewards = self._rewards(sample, group)
        self._store(sample, group, rewards)
        oldest, newest = model.versions(sample.step)
        return [
            Rewarded(made, reward, oldest, newest) for made, reward in zip(group.trajectories, rewards, strict=True)
        ]

    def _plan_rewards(self, sample: Sample, group: Group) -> list[Reward]:
        # A validation looks at correctness and format; nothing is compared within a group of one.
        sigmas = (0.0, 0.0) if sample.validates else self._plan.sigmas.at(sample.step)
        return group_rewards(
            group.items,
            sample.answers,
            sample.question.rule,
            *sigmas,
            self._plan.options.reward,
            choices=sample.question.choices,
            protocol=self._environment.settings.protocol,
        )

    def _store(self, sample: Sample, group: Group, rewards: Sequence[Reward]) -> None:
        lines = [
            {"row": rollout_row(sample.step, group, made, reward), "reward": reward.as_json()}
            for made, reward in zip(group.trajectories, rewards, strict=True)
        ]
        self._folder.write_group(sample.step, sample.group_id, lines, validation=sample.validates)


_hosts: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Path, asyncio.Task[LoopHost]]] = (
    weakref.WeakKeyDictionary()
)
_holders: set[asyncio.Task[None]] = set()


async def host_of(job: Path) -> LoopHost:
    """The host of a training in this process, its environment open for as long as the process lives.

    Raises, in every session, what kept it from being made; the training's folder tells of it.
    """
    loop = asyncio.get_running_loop()
    hosts = _hosts.setdefault(loop, {})
    if job not in hosts:
        hosts[job] = loop.create_task(_open_host(job))
    return await asyncio.shield(hosts[job])


async def _open_host(path: Path) -> LoopHost:
    job = json.loads(path.read_text(encoding="utf-8"))
    folder = VerlFolder.of_job(job)
    interpreter = job.get("interpreter")
    opened: asyncio.Future[OpenEnvironment] = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        """Tools are opened and would be closed by one task, as cancel scopes want it."""
        try:
            async with open_environment(
                EnvironmentSettings.model_validate(job["environment"]),
                digest=job["environment_digest"],
                interpreter=Path(interpreter) if interpreter else None,
            ) as environment:
                opened.set_result(environment)
                await asyncio.Event().wait()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    holder = asyncio.create_task(hold())
    _holders.add(holder)
    try:
        environment = await opened
        codec = await asyncio.to_thread(ChatTokenizer.load, Path(job["model"]))
        return LoopHost(RlPlan.from_json(json.dumps(job["plan"])), environment, codec, codec.vocab_size, folder)
    except Exception as error:
        folder.environment_failure.write_text(f"{type(error).__name__}: {error}"[:2000], encoding="utf-8")
        raise
