"""Score a group as the plan says; all engines use this, in training and in validation."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Sequence

from treadle.agent.dialect import Dialect
from treadle.agent.environment import Question
from treadle.core.answers.math_equal import Checker
from treadle.core.answers.symbolic import SymbolicChecker
from treadle.core.errors import ConfigError
from treadle.rl.rewards import GroupItem, Reward, group_rewards
from treadle.rl.training.plan import RlPlan


class GroupScorer:
    """Scorer of groups, with the plan's reward options and the answer rule of the stage `scores`. Thread-safe."""

    def __init__(self, plan: RlPlan, checker: Checker | None, dialect: Dialect) -> None:
        """Use `checker` for computer algebra (None if the plan does not use it) and the environment's `dialect`."""
        self._plan = plan
        self._checker = checker
        self._dialect = dialect

    def rewards(
        self, items: Sequence[GroupItem], question: Question, answers: Sequence[str], sigmas: tuple[float, float]
    ) -> list[Reward]:
        """Return the rewards of all trajectories of a question; raise EngineError if algebra gave no verdict."""
        return group_rewards(
            items,
            answers,
            question.rule,
            *sigmas,
            self._plan.options.reward,
            choices=question.choices,
            checker=self._checker,
            dialect=self._dialect,
        )


@contextlib.contextmanager
def open_scorer(plan: RlPlan, dialect: Dialect) -> Iterator[GroupScorer]:
    """Yield the plan's scorer, with computer algebra in confined processes if the plan uses it.

    Raises ConfigError if computer algebra is not installed.
    """
    require_algebra(plan)
    if plan.algebra is None:
        yield GroupScorer(plan, None, dialect)
        return
    with SymbolicChecker(limit_s=plan.algebra.limit_s, memory_mib=plan.algebra.memory_mib) as checker:
        yield GroupScorer(plan, checker, dialect)


def require_algebra(plan: RlPlan) -> None:
    """Raise ConfigError if the plan uses computer algebra and this engine's environment does not have it."""
    if plan.algebra is not None and importlib.util.find_spec("math_verify") is None:
        engine = plan.options.engine
        raise ConfigError(
            f"this phase checks math answers by computer algebra, but the environment of {engine} has no math-verify; "
            f"run `treadle env install {engine}`, or set scores.symbolic = false"
        )
