"""Score a group as the plan says; all engines use this, in training and in validation."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
from collections.abc import Iterator

from treadle.agent.contract import Task
from treadle.agent.jobs.runner import cause_of
from treadle.core.answers.math_equal import Checker
from treadle.core.answers.score import BY_OUTCOME, Score
from treadle.core.answers.symbolic import SymbolicChecker
from treadle.core.errors import ConfigError, EngineError, ToolError
from treadle.environments.registry import traits_of
from treadle.environments.scoring import environment_score, no_verdict, outcome_score
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.stored_rollout import StoredRollout
from treadle.rl.groups.rollout import Group, GroupTrajectory
from treadle.rl.rewards import Reward, group_rewards, outcome_rewards
from treadle.rl.training.plan import RlPlan

_log = logging.getLogger(__name__)


class GroupScorer:
    """Scorer of groups, with the plan's reward options and the answer rule of the stage `scores`. Thread-safe."""

    def __init__(self, plan: RlPlan, checker: Checker | None, environment: EnvironmentSettings) -> None:
        """Use `checker` for computer algebra; None if the plan does not use it."""
        self._plan = plan
        self._checker = checker
        self._environment = environment
        self._has_answers = traits_of(environment).has_answers

    def rewards(self, group: Group, task: Task, sigmas: tuple[float, float]) -> list[Reward]:
        """Return the rewards of all trajectories of a task, which has its gold answers and payload.

        If tasks have no gold answers, they are those of the outcomes or of the environment. Raises
        EngineError if algebra gave no verdict, or if the environment's own scoring fails. Call it outside event loops.
        """
        options = self._plan.options.reward
        if task.rule in BY_OUTCOME:
            scores = [outcome_score(made.trajectory.outcome, task.rule) for made in group.trajectories]
            return outcome_rewards(group.items, scores, options)
        if not self._has_answers:
            return outcome_rewards(group.items, asyncio.run(self._environment_scores(group, task)), options)
        return group_rewards(
            group.items,
            task.answers,
            task.rule,
            *sigmas,
            options,
            choices=task.choices,
            checker=self._checker,
            dialect=self._environment.turn_dialect,
        )

    async def _environment_scores(self, group: Group, task: Task) -> list[Score]:
        return await asyncio.gather(*(self._environment_score(made, task) for made in group.trajectories))

    async def _environment_score(self, made: GroupTrajectory, task: Task) -> Score:
        try:
            return await environment_score(self._environment, task, StoredRollout.of(made.trajectory))
        except ToolError as error:
            # One rollout without a verdict must not end a training.
            _log.warning("a rollout of task %s has no reward: %s", task.key, error)
            return no_verdict(str(error))
        except Exception as error:  # any error that a user's scorer raises
            raise EngineError(
                f"the rollouts of task {task.key} could not be scored: {self._environment.type}.score raised "
                f"{cause_of(error)}"
            ) from error


@contextlib.contextmanager
def open_scorer(plan: RlPlan, environment: EnvironmentSettings) -> Iterator[GroupScorer]:
    """Yield the plan's scorer, with computer algebra in confined processes if the plan uses it.

    Raises ConfigError if computer algebra is not installed.
    """
    require_algebra(plan)
    if plan.algebra is None:
        yield GroupScorer(plan, None, environment)
        return
    with SymbolicChecker(limit_s=plan.algebra.limit_s, memory_mib=plan.algebra.memory_mib) as checker:
        yield GroupScorer(plan, checker, environment)


def require_algebra(plan: RlPlan) -> None:
    """Raise ConfigError if the plan uses computer algebra and this engine's environment does not have it."""
    if plan.algebra is not None and importlib.util.find_spec("math_verify") is None:
        engine = plan.options.engine
        fix = f"run `treadle env install {engine.environment}`" if engine.environment else "install it"
        raise ConfigError(
            f"this phase checks math answers by computer algebra, but the environment of {engine.type} has no "
            f"math-verify; {fix}, or set scores.symbolic = false"
        )
