"""Let an environment say how good a rollout is: the one rule for the stage `scores` and for reinforcement."""

from __future__ import annotations

from treadle.agent.contract import Task
from treadle.core.answers.score import ENVIRONMENT, Score
from treadle.environments.registry import environment_type
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.stored_rollout import StoredRollout

SUCCESS_REWARD = 0.5
"""Reward above which a rollout is right, if its environment does not say."""

_LARGEST_REWARD = 1e9
"""Largest absolute reward: sums of squares of larger ones are not exact enough to compare."""


async def environment_score(settings: EnvironmentSettings, task: Task, rollout: StoredRollout) -> Score:
    """Return the environment's verdict on a rollout: `score` is the reward, `correct` the success.

    Without a reward, a success is 1 and a failure 0; with neither, or a reward that is not a number or beyond 1e9,
    `score` is None and `error` says so. A rollout is right if its outcome is a success, or else if its reward is above
    0.5. Raises what the environment's code raises.
    """
    outcome = await environment_type(settings).score(settings, task, rollout)
    reward = outcome.reward if outcome is not None else None
    success = outcome.success if outcome is not None else None
    if reward is None and success is None:
        return no_verdict("the environment gave no reward; let `score` return one for every rollout")
    if reward is not None and not abs(reward) <= _LARGEST_REWARD:
        return no_verdict(f"the environment gave {reward:g} as reward; scale it")
    score = float(success is True) if reward is None else reward
    correct = score > SUCCESS_REWARD if success is None else success
    return Score(float(correct), float(correct), float(correct), score, correct, ENVIRONMENT)


def no_verdict(error: str) -> Score:
    """Return the score of a rollout of which the environment did not say how good it is."""
    return Score(0.0, 0.0, 0.0, None, None, ENVIRONMENT, error)
