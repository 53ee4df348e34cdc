"""Roll out and score the groups of a training step or of a validation, with the policy in training."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from treadle.agent.contract import Task
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ConfigError, EndpointUnavailable, EngineError, ToolError
from treadle.core.seeds import derive_seed
from treadle.environments.mixture import Environments
from treadle.rl.engine.errors import BadEnvironment
from treadle.rl.engine.scorer import GroupScorer, open_scorer
from treadle.rl.environment import ResidentEnvironments
from treadle.rl.groups.attempts import require_groups
from treadle.rl.groups.batching import BatchedModel, BatchMembership, Generate
from treadle.rl.groups.group import Group, GroupJob, OverSampler
from treadle.rl.groups.rollout import MixedRollouts
from treadle.rl.rewards.rewarded import RewardedItem
from treadle.rl.training.plan import RlPlan

_MAX_CREDITED = 16
"""Maximum number of groups that a credit rule gets at once."""


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with the reward of each trajectory, in the order of the trajectories.

    `advantages` has a list for each trajectory, with the advantage of each of its turns; None if the engine computes
    advantages from the rewards.
    """

    group: Group
    rewards: list[RewardedItem]
    advantages: list[list[float]] | None = None


class GroupSource:
    """Source of groups that are rolled out in their tasks' environments, which stay open for the whole training."""

    def __init__(
        self, plan: RlPlan, environments: ResidentEnvironments, rollouts: MixedRollouts, scorer: GroupScorer
    ) -> None:
        self._plan = plan
        self._environments = environments
        self._rollouts = rollouts
        self._scorer = scorer
        self.hinted: Callable[[MixedRollouts, int], MixedRollouts] | None = None
        """Function that gives rollouts of a step hints; validations get none."""

    def step(self, step: int, rows: Sequence[Task], first: int = 0) -> list[ScoredGroup]:
        """Return the groups of a step (from 1), in the order of its rows, without advantages.

        `first` is the position in the step of the first row. The random numbers depend only on the plan's seed, the
        step and the question.
        """
        size = self._plan.options.group_size
        jobs = [_job(row, f"{step}-{place}", size, self._plan.seed, step) for place, row in enumerate(rows, first)]
        return self._make(self._rollouts_of(step), jobs, rows, step)

    def credited(self, groups: Sequence[ScoredGroup], step: int) -> list[ScoredGroup]:
        """Return groups with the advantages of the plan's credit rule, unless the engine computes them itself.

        The rule gets several groups at once, since it may wait for a model.
        """
        if not self._plan.options.credits_turns:
            return list(groups)

        def credit(one: ScoredGroup) -> ScoredGroup:
            made = self._scorer.credited(one.group, one.group.question, one.rewards, step)
            return replace(one, rewards=made.rewards, advantages=made.advantages)

        with ThreadPoolExecutor(max_workers=_MAX_CREDITED) as threads:
            return list(threads.map(credit, groups))

    def _rollouts_of(self, step: int) -> MixedRollouts:
        """Return the runner of the groups of a step, with hints and over-sampling if the plan has them."""
        rollouts = self._rollouts if self.hinted is None else self.hinted(self._rollouts, step)
        rule = self._plan.options.oversampling
        if rule is None:
            return rollouts

        async def reward_of(group: Group) -> float | None:
            # Computer algebra may take seconds, and other groups are rolled out on this event loop.
            (reward,) = await asyncio.to_thread(self._scorer.rewards, group, group.question, step)
            return reward.reward if reward.scored else None

        sampler = OverSampler(rule, reward_of)
        by_environment = rollouts.by_environment
        return MixedRollouts({name: replace(one, over_sampler=sampler) for name, one in by_environment.items()})

    def validate(self, rows: Sequence[Task]) -> list[RewardedItem]:
        """Return the reward of one greedy trajectory per row; raise EngineError if a prompt leaves no room for one."""
        rollouts = MixedRollouts({name: one.greedy() for name, one in self._rollouts.by_environment.items()})
        jobs = [_job(row, str(place), 1, self._plan.seed, 0) for place, row in enumerate(rows)]
        made = self._make(rollouts, jobs, rows, 0)
        if too_long := [one.group.lost_cause for one in made if not one.group.items[0].was_played]:
            raise EngineError(f"validation: {too_long[0]} ({len(too_long)} of {len(made)} questions)")
        return [scored.rewards[0] for scored in made]

    def _make(
        self, rollouts: MixedRollouts, jobs: Sequence[GroupJob], rows: Sequence[Task], step: int
    ) -> list[ScoredGroup]:
        live = self._scorer.live
        live.begin(step)
        groups = self._environments.run(
            require_groups(rollouts, jobs, attempts=self._plan.options.attempts, keeps_rest=bool(step))
        )
        made = [
            ScoredGroup(group, self._scorer.rewards(group, row, step)) for group, row in zip(groups, rows, strict=True)
        ]
        live.write()  # The update that follows is shown with the numbers of the whole step.
        return made


@contextlib.contextmanager
def open_source(
    plan: RlPlan,
    job: dict[str, Any],
    environments: Environments,
    generate: Generate,
    codec: ChatTokenizer,
    *,
    max_model_len: int | None,
    max_batch: int | None,
) -> Iterator[GroupSource]:
    """Open the environments and yield a source of groups; `generate` produces the policy's completions.

    Raises BadEnvironment if a tool cannot be opened.
    """
    options = plan.options
    membership = BatchMembership()
    training = Path(job["events"]).parent if job.get("events") else None
    with (
        open_scorer(plan, environments, training=training) as scorer,
        _resident(job, environments) as resident,
        BatchedModel(generate, membership, max_batch=max_batch) as model,
    ):
        limits = {"max_response_tokens": options.max_response_tokens, "max_model_len": max_model_len}
        rollouts = {
            name: environment.groups(
                environment.engine(model, codec, options.sampling, **limits),
                options.branching,
                vocab_size=codec.vocab_size,
                max_prompt_tokens=options.max_prompt_tokens,
                membership=membership,
                wall_limit_s=options.wall_limit_s,
                live=scorer.live,
            )
            for name, environment in resident.open.items()
        }
        yield GroupSource(plan, resident, MixedRollouts(rollouts), scorer)


@contextlib.contextmanager
def _resident(job: dict[str, Any], environments: Environments) -> Iterator[ResidentEnvironments]:
    resident = ResidentEnvironments(
        environments, interpreter=Path(job["interpreter"]) if job.get("interpreter") else None
    )
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(resident)
        except (ConfigError, ToolError, EndpointUnavailable) as error:
            raise BadEnvironment(str(error)) from error
        yield resident


def _job(task: Task, group_id: str, size: int, *seeds: int) -> GroupJob:
    return GroupJob(group_id, task, size, derive_seed(*seeds, task.key))
