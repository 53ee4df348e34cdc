"""Let an environment rate rollouts of its tasks."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import PrivateAttr

from treadle.agent.contract import Task
from treadle.core.answers.score import Score
from treadle.core.errors import ConfigError
from treadle.environments.registry import environment_type, traits_of
from treadle.environments.scorers.base import Scale, Scorer
from treadle.environments.scorers.outcome import outcome_score
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.stored_rollout import StoredRollout

ENVIRONMENT = "environment"
"""Type of this scorer, which decides about tasks without gold answers."""


class EnvironmentScorer(Scorer):
    """Ask the method `score` of the run's environment."""

    SCALE: ClassVar[Scale] = "reward"
    TIME_LIMIT_S: ClassVar[float | None] = None  # The environment has a limit of its own.

    type: str = ENVIRONMENT
    """The environment's own reward."""
    _environment: EnvironmentSettings | None = PrivateAttr(default=None)

    @classmethod
    def missing(cls, environment: EnvironmentSettings) -> str | None:
        """See `Scorer`."""
        return "an environment that scores its own tasks" if traits_of(environment).has_answers else None

    def of(self, environment: EnvironmentSettings) -> Self:
        """Return a copy of this scorer that uses an environment."""
        scorer = self.model_copy()
        scorer._environment = environment
        return scorer

    async def score(self, task: Task, rollout: StoredRollout) -> Score:
        """See `outcome_score`. Raises any error of the environment's code."""
        settings = self._environment
        if settings is None:
            raise ConfigError("the scorer environment is for environments that score their own tasks")
        return outcome_score(
            await environment_type(settings).score(settings, task, rollout),
            self.type,
            "the environment gave no reward; let `score` return one for every rollout",
        )
