"""Groups of rollouts by the policy in training, scored: what a step and a validation begin with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from treadle.agent.config import EnvironmentSettings
from treadle.agent.rollout import derive_seed
from treadle.core.answers.math_equal import Checker
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ConfigError, EndpointUnavailable, ToolError
from treadle.core.llm.config import Sampling
from treadle.rl.batching import Attendance, BatchedModel, Generate
from treadle.rl.branching import Branching
from treadle.rl.engine.errors import BadEnvironment
from treadle.rl.engine.rows import Row
from treadle.rl.environment import ResidentEnvironment
from treadle.rl.groups import Group, GroupJob, GroupRollouts, require_groups
from treadle.rl.plan import RlPlan
from treadle.rl.rewards import Reward, group_rewards, open_checker


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with the rewards of its trajectories, by sessions."""

    group: Group
    rewards: list[Reward]


class GroupSource:
    """Makes groups in the run's environment, which stays open for the whole training."""

    def __init__(
        self, plan: RlPlan, environment: ResidentEnvironment, rollouts: GroupRollouts, checker: Checker | None
    ) -> None:
        self._plan = plan
        self._environment = environment
        self._rollouts = rollouts
        self._checker = checker

    def step(self, step: int, rows: Sequence[Row], first: int = 0) -> list[ScoredGroup]:
        """The groups of a step (from 1), in the order of its rows; `first` is the place of the first of them in it.

        What is drawn depends on the plan's seed alone.
        """
        size = self._plan.options.group_size
        jobs = [_job(row, f"{step}-{place}", size, self._plan.seed, step) for place, row in enumerate(rows, first)]
        return self._make(self._rollouts, jobs, rows, self._plan.sigmas.at(step))

    def validate(self, rows: Sequence[Row]) -> list[Reward]:
        """Rewards of one greedy trajectory per row, without factors of efficiency."""
        sampling = self._rollouts.engine.sampling.model_copy(update={"temperature": 0.0})
        engine = replace(self._rollouts.engine, sampling=sampling)
        rollouts = replace(self._rollouts, engine=engine, branching=Branching(1))
        jobs = [_job(row, str(place), 1, self._plan.seed, 0) for place, row in enumerate(rows)]
        return [scored.rewards[0] for scored in self._make(rollouts, jobs, rows, (0.0, 0.0))]

    def _make(
        self, rollouts: GroupRollouts, jobs: Sequence[GroupJob], rows: Sequence[Row], sigmas: tuple[float, float]
    ) -> list[ScoredGroup]:
        groups = self._environment.run(require_groups(rollouts, jobs))
        return [ScoredGroup(group, self._score(group, row, sigmas)) for group, row in zip(groups, rows, strict=True)]

    def _score(self, group: Group, row: Row, sigmas: tuple[float, float]) -> list[Reward]:
        question = row.question
        return group_rewards(
            group.items,
            row.answers,
            question.rule,
            *sigmas,
            self._plan.options.reward,
            choices=question.choices,
            checker=self._checker,
        )


@contextlib.contextmanager
def open_source(
    plan: RlPlan,
    job: dict[str, Any],
    settings: EnvironmentSettings,
    generate: Generate,
    codec: ChatTokenizer,
    *,
    max_model_len: int | None,
    max_batch: int | None,
) -> Iterator[GroupSource]:
    """Open the environment and let the policy, which `generate` stands for, roll out in it.

    Raises BadEnvironment where a tool cannot be opened.
    """
    options = plan.options
    sampling = Sampling(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        max_tokens=options.max_new_tokens or options.max_response_tokens,
    )
    attendance = Attendance()
    with (
        open_checker(options.symbolic) as checker,
        _resident(job, settings) as environment,
        BatchedModel(generate, attendance, max_batch=max_batch) as model,
    ):
        engine = environment.open.engine(
            model, codec, sampling, max_response_tokens=options.max_response_tokens, max_model_len=max_model_len
        )
        rollouts = environment.open.groups(
            engine, Branching.from_options(options), vocab_size=codec.vocab_size, attendance=attendance
        )
        yield GroupSource(plan, environment, rollouts, checker)


@contextlib.contextmanager
def _resident(job: dict[str, Any], settings: EnvironmentSettings) -> Iterator[ResidentEnvironment]:
    environment = ResidentEnvironment(
        settings,
        digest=job["environment_digest"],
        interpreter=Path(job["interpreter"]) if job.get("interpreter") else None,
    )
    try:
        environment.__enter__()
    except (ConfigError, ToolError, EndpointUnavailable) as error:
        raise BadEnvironment(str(error)) from error
    try:
        yield environment
    finally:
        environment.__exit__(None, None, None)


def _job(row: Row, group_id: str, size: int, *seeds: int) -> GroupJob:
    return GroupJob(group_id, row.question, size, derive_seed(*seeds, row.question.key))
