"""Let an environment say how good a rollout is: the one rule for the stage `scores` and for reinforcement."""

from __future__ import annotations

from treadle.agent.contract import Outcome, Task
from treadle.core.answers.score import ENVIRONMENT, OUTCOME, WORKSPACE_TESTS, Score
from treadle.environments.registry import environment_type
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.stored_rollout import StoredRollout

SUCCESS_REWARD = 0.5
"""Reward above which a rollout is right, if its environment does not say."""

_WITHOUT_OUTCOME = {
    WORKSPACE_TESTS: "no hidden tests ran at the end of the rollout; its environment needs a tool of type workspace",
    OUTCOME: "no tool gave an outcome at the end of the rollout; its environment needs a class with a method `outcome`",
}

_LARGEST_REWARD = 1e9
"""Largest absolute reward: sums of squares of larger ones are not exact enough to compare."""


async def environment_score(settings: EnvironmentSettings, task: Task, rollout: StoredRollout) -> Score:
    """Return the environment's verdict on a rollout: `score` is the reward, `correct` the success.

    Without a reward, a success is 1 and a failure 0; with neither, or a reward that is not a number or beyond 1e9,
    `score` is None and `error` says so. A rollout is right if its outcome is a success, or else if its reward is above
    0.5. Raises what the environment's code raises.
    """
    return _verdict(
        await environment_type(settings).score(settings, task, rollout),
        ENVIRONMENT,
        "the environment gave no reward; let `score` return one for every rollout",
    )


def outcome_score(outcome: Outcome | None, rule: str) -> Score:
    """Return the verdict that the outcome of a rollout holds, by a rule of `BY_OUTCOME`; an error if it has none."""
    return _verdict(outcome, rule, _WITHOUT_OUTCOME[rule])


def _verdict(outcome: Outcome | None, scorer: str, missing: str) -> Score:
    reward = outcome.reward if outcome is not None else None
    success = outcome.success if outcome is not None else None
    if reward is None and success is None:
        return no_verdict(missing, scorer)
    if reward is not None and not abs(reward) <= _LARGEST_REWARD:
        return no_verdict(f"the environment gave {reward:g} as reward; scale it", scorer)
    score = float(success is True) if reward is None else reward
    correct = score > SUCCESS_REWARD if success is None else success
    return Score(float(correct), float(correct), float(correct), score, correct, scorer)


def no_verdict(error: str, scorer: str = ENVIRONMENT) -> Score:
    """Return the score of a rollout of which the environment did not say how good it is."""
    return Score(0.0, 0.0, 0.0, None, None, scorer, error)
