"""Roll out groups for the sessions of one verl agent-loop worker, which share the plan and the environment.

verl calls one coroutine per trajectory. The sessions of a group meet here, and the group is rolled out and rewarded by
the code that all engines use. The only part of verl that is used is one method of its server client; nothing here
imports verl. Documented in docs/guides/verl.md.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from treadle.agent.contract import Task
from treadle.agent.model_types import ChatCodec
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import EndpointUnavailable, ModelError
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.seeds import derive_seed
from treadle.rl.engine.rows import Payloads, plan_of, settings_of
from treadle.rl.engine.scorer import GroupScorer, open_scorer
from treadle.rl.engine.verl.barrier import GroupBarrier, GroupFailed
from treadle.rl.engine.verl.folder import VerlFolder
from treadle.rl.environment import OpenEnvironment, open_environment
from treadle.rl.groups.branching import Branching
from treadle.rl.groups.dump import rollout_row
from treadle.rl.groups.rollout import Group, GroupJob, GroupTrajectory, require_groups
from treadle.rl.rewards.rewarded import RewardedItem
from treadle.rl.training.plan import RlPlan
from treadle.rl.verl.rows import UNSCORED, domain_of

VALIDATION = "valid"
"""Value of `extra_info.split` for a validation question."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Columns of one row that verl passes to a session."""

    group_id: str
    step: int
    index: int
    split: str
    question: Task

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Sample:
        """Build a sample from the arguments of an agent loop's `run`; raise DataError for an unknown `data_source`."""
        info = fields["extra_info"]
        rule = domain_of(fields["data_source"])
        question = Task(
            key=str(info["id"]),
            text=info["question"],
            choices=tuple(info.get("choices") or ()),
            dataset=info.get("source") or "",
            domain=info.get("domain") or rule,
            format=info.get("format"),
            scorer=None if rule == UNSCORED else rule,
            answers=tuple(fields["reward_model"]["ground_truth"]),
        )
        return cls(
            group_id=str(fields["uid"]),
            step=int(fields["global_steps"]),
            index=int(info["index"]),
            split=info["split"],
            question=question,
        )

    @property
    def validates(self) -> bool:
        """True for a validation question, which is answered greedily, alone, and not trained on."""
        return self.split == VALIDATION


@dataclass(frozen=True, slots=True)
class RewardedTrajectory:
    """One trajectory with its reward, and the oldest and newest weights (verl's update count) that sampled it."""

    made: GroupTrajectory
    reward: RewardedItem
    min_version: int
    max_version: int


class VerlModel:
    """Model for one group; all requests carry the group's id, so that they share one server's prefix cache."""

    def __init__(self, client: Any, group_id: str, sampling: Mapping[str, Any], codec: ChatCodec) -> None:
        """Use verl's `LLMServerClient`, of which only `generate` is called, and its `sampling` parameters.

        Stop strings, lengths and seeds come from the rollout.
        """
        self._client = client
        self._group_id = group_id
        self._sampling = dict(sampling)
        self._codec = codec
        self._versions: list[int] = []

    def versions(self, unknown: int) -> tuple[int, int]:
        """Return the oldest and newest weights that answered, in verl's count; `unknown` if verl reports none."""
        return min(self._versions, default=unknown), max(self._versions, default=unknown)

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """Return one completion; `deadline` is ignored, because model time does not count as a trajectory's time.

        Raises EndpointUnavailable if a server or Ray timed out or aborted the request, and ModelError.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        if not isinstance(request.prompt, list):
            raise ModelError("verl's servers take token ids only")
        parameters = {
            **self._sampling,
            "stop": list(request.stop),
            "include_stop_str_in_output": True,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
        }
        try:
            output = await self._client.generate(self._group_id, prompt_ids=request.prompt, sampling_params=parameters)
        except TimeoutError as error:
            raise EndpointUnavailable(f"verl's server did not answer: {type(error).__name__}: {error}") from error
        # Ray re-raises any exception of another process.
        except Exception as error:
            raise ModelError(f"verl's server failed: {type(error).__name__}: {error}") from error
        if output.stop_reason == "aborted":
            raise EndpointUnavailable("verl's server aborted the request")
        for name in ("min_global_steps", "max_global_steps"):
            if (version := output.extra_fields.get(name)) is not None:
                self._versions.append(int(version))
        return self._completion(request, list(output.token_ids), output.log_probs, loop.time() - began)

    def _completion(
        self, request: CompletionRequest, ids: list[int], logprobs: Sequence[float] | None, seconds: float
    ) -> Completion:
        # verl reports neither which stop string ended the completion nor whether one did.
        ended = bool(ids) and ids[-1] in self._codec.eos_ids
        text = self._codec.decode(ids[:-1] if ended else ids)
        stop = next((stop for stop in request.stop if text.endswith(stop)), None)
        full = len(ids) >= request.max_tokens and stop is None and not ended
        return Completion(
            text=text,
            token_ids=tuple(ids),
            finish_reason="length" if full else "stop",
            stop_reason=stop,
            prompt_tokens=len(request.prompt),
            completion_tokens=len(ids),
            endpoint="verl",
            seconds=seconds,
            retries=0,
            logprobs=tuple(map(float, logprobs)) if logprobs is not None else None,
        )


class LoopHost:
    """Host of all sessions of one worker process. Use it on one event loop."""

    def __init__(
        self,
        plan: RlPlan,
        environment: OpenEnvironment,
        codec: ChatCodec,
        vocab_size: int,
        folder: VerlFolder,
        scorer: GroupScorer,
        payloads: Payloads,
    ) -> None:
        """Host a training; `vocab_size` is the policy's."""
        self._plan = plan
        self._environment = environment
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
        """Names of the parts of the rewards, as the rule declares them."""
        return list(self._plan.options.reward.PARTS)

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
        options = self._plan.options
        model = VerlModel(client, sample.group_id, sampling, self._codec)
        engine = self._environment.engine(
            model,
            self._codec,
            options.sampling,
            max_response_tokens=options.max_response_tokens,
            max_model_len=options.max_prompt_tokens + options.max_response_tokens,
        )
        branching = Branching(size) if sample.validates else options.branching
        rollouts = self._environment.groups(
            engine, branching, vocab_size=self._vocab_size, max_prompt_tokens=options.max_prompt_tokens
        )
        seed = derive_seed(self._plan.seed, sample.split, sample.step, sample.index)
        task = self._payloads.added_to(sample.question)
        (group,) = await require_groups(rollouts, [GroupJob(sample.group_id, task, size, seed)])
        # Computer algebra may take seconds, and other groups are rolled out on this event loop.
        rewards = await asyncio.to_thread(self._rewards, sample, group)
        self._store(sample, group, rewards)
        oldest, newest = model.versions(sample.step)
        return [
            RewardedTrajectory(made, reward, oldest, newest)
            for made, reward in zip(group.trajectories, rewards, strict=True)
        ]

    def _rewards(self, sample: Sample, group: Group) -> list[RewardedItem]:
        return self._scorer.rewards(group, group.question, 0 if sample.validates else sample.step)

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
    """Return this process's host of a training; its environment stays open until the process ends.

    If opening it fails, the error is raised in every session and written to the training's folder.
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
        environment, scorer = await _open_for_process(job, plan)
        codec = await asyncio.to_thread(ChatTokenizer.load, Path(job["model"]))
        return LoopHost(plan, environment, codec, codec.vocab_size, folder, scorer, Payloads.of_job(job))
    except Exception as error:
        folder.environment_failure.write_text(f"{type(error).__name__}: {error}"[:2000], encoding="utf-8")
        raise


async def _open_for_process(job: Mapping[str, Any], plan: RlPlan) -> tuple[OpenEnvironment, GroupScorer]:
    """Open the environment and the scorer in a task that keeps them open as long as the event loop runs."""
    settings = settings_of(job)
    interpreter = job.get("interpreter")
    opened: asyncio.Future[tuple[OpenEnvironment, GroupScorer]] = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        """Open the tools and wait forever; cancel scopes must be opened and closed by the same task."""
        try:
            with open_scorer(plan, settings) as scorer:
                async with open_environment(
                    settings,
                    digest=job["environment_digest"],
                    interpreter=Path(interpreter) if interpreter else None,
                ) as environment:
                    opened.set_result((environment, scorer))
                    await asyncio.Event().wait()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    _holding_tasks.add(asyncio.create_task(hold()))
    return await opened
