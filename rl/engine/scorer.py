"""Score a group as the plan says; all engines use this, in training and in validation."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Sequence

from treadle.agent.contract import Task
from treadle.agent.dialects.tags import require_tags
from treadle.core.answers.math_equal import Checker
from treadle.core.answers.symbolic import SymbolicChecker
from treadle.core.errors import ConfigError
from treadle.environments.registry import traits_of
from treadle.environments.settings import EnvironmentSettings
from treadle.rl.rewards import GroupItem, Reward, group_rewards, outcome_rewards
from treadle.rl.training.plan import RlPlan


class GroupScorer:
    """Scorer of groups, with the plan's reward options and the answer rule of the stage `scores`. Thread-safe."""

    def __init__(self, plan: RlPlan, checker: Checker | None, environment: EnvironmentSettings) -> None:
        """Use `checker` for computer algebra; None if the plan does not use it."""
        self._plan = plan
        self._checker = checker
        self._dialect = environment.dialect
        self._has_answers = traits_of(environment).has_answers

    def rewards(
        self, items: Sequence[GroupItem], question: Task, answers: Sequence[str], sigmas: tuple[float, float]
    ) -> list[Reward]:
        """Return the rewards of all trajectories of a question; raise EngineError if algebra gave no verdict.

        If tasks have no gold answers, they are the rewards that the environment gave.
        """
        if not self._has_answers:
            return outcome_rewards(items, self._plan.options.reward)
        return group_rewards(
            items,
            answers,
            question.rule,
            *sigmas,
            self._plan.options.reward,
            choices=question.choices,
            checker=self._checker,
            dialect=require_tags(self._dialect, "rl.reward"),
        )


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
        raise ConfigError(
            f"this phase checks math answers by computer algebra, but the environment of {engine} has no math-verify; "
            f"run `treadle env install {engine}`, or set scores.symbolic = false"
        )
