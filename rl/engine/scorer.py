"""Score and reward a group as the plan says; all engines use this, in training and in validation."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treadle.agent.contract import DEFAULT_ENVIRONMENT, Outcome, Task
from treadle.agent.jobs.runner import cause_of
from treadle.core.answers.extraction import extract_prediction
from treadle.core.answers.math_equal import Checker
from treadle.core.answers.score import Score
from treadle.core.answers.symbolic import SymbolicChecker
from treadle.core.errors import ConfigError, EngineError, ToolError
from treadle.environments.registry import traits_of
from treadle.environments.scorers.answer import AnswerScorer, AnswerTools
from treadle.environments.scorers.base import no_verdict
from treadle.environments.scorers.environment import ENVIRONMENT
from treadle.environments.scorers.scoring import OpenScorers
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.stored_rollout import StoredRollout
from treadle.rl.credit.base import CreditGroup, turn_advantages
from treadle.rl.groups.rollout import Group, GroupTrajectory
from treadle.rl.rewards.base import FAILED, GroupItem, RewardGroup
from treadle.rl.rewards.rewarded import RewardedItem, reward_items
from treadle.rl.training.plan import RlPlan

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Rollout:
    """Rollout of a group as scorers read it."""

    task: Task
    item: GroupItem
    made: GroupTrajectory

    @property
    def status(self) -> str:
        """How it ended."""
        return self.item.status

    @property
    def prediction(self) -> str:
        """Its answer, as the stage `scores` extracts it."""
        return extract_prediction({"kind": part.kind, "text": part.text} for part in self.item.segments)

    @property
    def outcome(self) -> Outcome | None:
        """What the tools said of the episode."""
        return self.made.trajectory.outcome

    def stored(self) -> StoredRollout:
        """Return all of it."""
        return StoredRollout.of(self.made.trajectory)


def _prediction(rollout: _Rollout) -> str:
    return "" if rollout.status == FAILED else rollout.prediction


class GroupScorer:
    """Scorer of groups, with the plan's rules and the scorers of the stage `scores`. Thread-safe."""

    def __init__(self, plan: RlPlan, scorers: OpenScorers, environment: EnvironmentSettings) -> None:
        """Use the open scorers of the run."""
        self._plan = plan
        self._scorers = scorers
        self._environment = environment

    def rewards(self, group: Group, task: Task, step: int) -> list[RewardedItem]:
        """Return the rewards of all trajectories of a task, which has its gold answers and payload, by the plan's rule.

        `step` counts from 1; 0 is a validation. Raises EngineError if algebra gave no verdict, or if the environment's
        own scoring or the rule fails. Call it outside event loops.
        """
        scorer = self._scorers.scorer_of(task)
        rollouts = [_Rollout(task, item, made) for item, made in zip(group.items, group.trajectories, strict=True)]
        if scorer.name == ENVIRONMENT:
            scores = [self._environment_score(task, result) for result in self._scorers.results(rollouts)]
        else:
            scores = self._scorers.scores(rollouts)
        has_answers = isinstance(scorer.scorer, AnswerScorer)
        if has_answers and (failed := [score for score in scores if score.score is None]):
            raise EngineError(f"an answer of a rollout could not be compared with the gold answers: {failed[0].error}")
        known = RewardGroup(
            task=task,
            items=group.items,
            predictions=[_prediction(rollout) if has_answers else "" for rollout in rollouts],
            scores=scores,
            has_answers=has_answers,
            dialect=self._environment.turn_dialect,
            phase=self._plan.phase,
            step=step,
            num_steps=self._plan.num_steps,
        )
        return reward_items(self._plan.options.reward, known)

    def advantages(self, group: Group, task: Task, rewards: Sequence[RewardedItem], step: int) -> list[list[float]]:
        """Return the advantage of each turn of each trajectory by the plan's credit rule.

        Raises EngineError if the rule fails.
        """
        known = CreditGroup(task=task, items=group.items, rewards=rewards, step=step, num_steps=self._plan.num_steps)
        return turn_advantages(self._plan.options.credit, known)

    def _environment_score(self, task: Task, result: Score | Exception) -> Score:
        if isinstance(result, ToolError):
            # One rollout without a verdict must not end a training.
            _log.warning("a rollout of task %s has no reward: %s", task.key, result)
            return no_verdict(str(result), ENVIRONMENT)
        if isinstance(result, Exception):
            raise EngineError(
                f"the rollouts of task {task.key} could not be scored: {self._environment.type}.score raised "
                f"{cause_of(result)}"
            ) from result
        return result


@contextlib.contextmanager
def open_scorer(plan: RlPlan, environment: EnvironmentSettings) -> Iterator[GroupScorer]:
    """Yield the plan's scorer, with computer algebra in confined processes if the plan uses it.

    Raises ConfigError if computer algebra is not installed.
    """
    require_algebra(plan)
    own = {} if traits_of(environment).has_answers else {DEFAULT_ENVIRONMENT: environment}
    with contextlib.ExitStack() as stack:
        checker: Checker | None = None
        if plan.algebra is not None:
            limits = plan.algebra
            checker = stack.enter_context(SymbolicChecker(limit_s=limits.limit_s, memory_mib=limits.memory_mib))
        scorers = stack.enter_context(OpenScorers(plan.scorers, own, AnswerTools(checker)))
        yield GroupScorer(plan, scorers, environment)


def require_algebra(plan: RlPlan) -> None:
    """Raise ConfigError if the plan uses computer algebra and this engine's environment does not have it."""
    if plan.algebra is not None and importlib.util.find_spec("math_verify") is None:
        engine = plan.options.engine
        fix = f"run `treadle env install {engine.environment}`" if engine.environment else "install it"
        raise ConfigError(
            f"this phase checks math answers by computer algebra, but the environment of {engine.type} has no "
            f"math-verify; {fix}, or set scores.symbolic = false"
        )
