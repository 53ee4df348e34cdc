"""Score and reward a group as the plan says; all engines use this, in training and in validation."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from treadle.agent.contract import Task
from treadle.core.answers.symbolic import SymbolicChecker
from treadle.core.errors import ConfigError
from treadle.core.store.keyed_store import KeyedStore
from treadle.environments.mixture import Environments, find_environment
from treadle.environments.registry import traits_of
from treadle.environments.scorers.answer import AnswerTools
from treadle.environments.scorers.scoring import OpenScorers
from treadle.rl.credit.credited import CreditedItems, credit_items
from treadle.rl.engine.verdicts import verdicts_of
from treadle.rl.groups.group import Group
from treadle.rl.groups.live import LIVE, LiveRollouts
from treadle.rl.rewards.base import RewardGroup
from treadle.rl.rewards.rewarded import RewardedItem, reward_items
from treadle.rl.training.plan import RlPlan


class GroupScorer:
    """Scorer of groups, with the plan's rules and the scorers of the stage `scores`. Thread-safe.

    Attributes:
        live: Writer of the files that show what this process does, and the servers that the rules use.
    """

    def __init__(
        self, plan: RlPlan, scorers: OpenScorers, environments: Environments, live: LiveRollouts | None = None
    ) -> None:
        """Use the open scorers of the run."""
        self.live = live or LiveRollouts()
        self._plan = plan
        self._scorers = scorers
        self._environments = environments

    def rewards(self, group: Group, task: Task, step: int) -> list[RewardedItem]:
        """Return the rewards of all trajectories of a group by the plan's reward rule.

        `task` must have its gold answers and payload. `step` counts from 1; 0 is a validation. Raises EngineError if
        the rule fails, and as `verdicts_of` does. Call it outside event loops.
        """
        environment = find_environment(self._environments, task.environment)
        verdicts = verdicts_of(group, task, self._scorers, environment.type)
        known = RewardGroup(
            task=task,
            items=group.items,
            predictions=verdicts.predictions,
            scores=verdicts.scores,
            has_answers=verdicts.has_answers,
            dialect=environment.turn_dialect,
            phase=self._plan.phase,
            step=step,
            num_steps=self._plan.num_steps,
        )
        options = self._plan.options
        penalises = options.overlong == "buffer" and step > 0
        limit = options.max_response_tokens if penalises else None
        return reward_items(options.reward, known, overlong_limit=limit)

    def credited(self, group: Group, task: Task, rewards: Sequence[RewardedItem], step: int) -> CreditedItems:
        """Return the advantage of each turn of each trajectory by the plan's credit rule.

        Raises EngineError if the rule fails. Call it outside event loops.
        """
        rule, num_steps = self._plan.options.credit, self._plan.num_steps
        return credit_items(rule, group, task, rewards, step=step, num_steps=num_steps)


@contextlib.contextmanager
def open_scorer(plan: RlPlan, environments: Environments, *, training: Path | None = None) -> Iterator[GroupScorer]:
    """Yield the plan's scorer, with computer algebra in confined processes if the plan uses it.

    Rules and graders keep their files in `training`, the training's folder; what the process does is shown in it.
    Raises ConfigError if computer algebra is not installed.
    """
    require_algebra(plan)
    own = {name: one for name, one in environments.items() if not traits_of(one).has_answers}
    with contextlib.ExitStack() as stack:
        limits, checker = plan.algebra, None
        if limits is not None:
            checker = stack.enter_context(SymbolicChecker(limit_s=limits.limit_s, memory_mib=limits.memory_mib))
        rule, credit = plan.options.reward, plan.options.credit
        stack.enter_context(rule.open(training / "reward" if training is not None else None))
        stack.enter_context(credit.open(training / "credit" if training is not None else None))
        store = partial(KeyedStore.in_folder, training / "scorers") if training is not None else None
        folder = training / LIVE if training is not None else None
        live = stack.enter_context(LiveRollouts(folder, lambda: [*rule.servers(), *credit.servers()]))
        scorers = stack.enter_context(OpenScorers(plan.scorers, own, AnswerTools(checker), store))
        yield GroupScorer(plan, scorers, environments, live)


def require_algebra(plan: RlPlan) -> None:
    """Raise ConfigError if the plan uses computer algebra and this engine's environment does not have it."""
    if plan.algebra is not None and importlib.util.find_spec("math_verify") is None:
        engine = plan.options.engine
        fix = f"run `treadle env install {engine.environment}`" if engine.environment else "install it"
        raise ConfigError(
            f"this phase checks math answers by computer algebra, but the environment of {engine.type} has no "
            f"math-verify; {fix}, or set scores.symbolic = false"
        )
