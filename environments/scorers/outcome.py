"""Score rollouts by what the tools reported about the episode at its end."""

from __future__ import annotations

from typing import ClassVar

from treadle.agent.contract import Outcome, Task
from treadle.core.answers.score import Score
from treadle.environments.scorers.base import Reads, Scorer, no_verdict
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.stored_rollout import StoredRollout

SUCCESS_SCORE = 0.5
"""Score above which a rollout is right, if its outcome does not report success or failure."""

LARGEST_SCORE = 1e9
"""Largest absolute score: sums of squares of larger ones are not exact enough to compare."""


class OutcomeScorer(Scorer):
    """Take the outcome that the method `outcome` of the tools gave."""

    READS: ClassVar[Reads] = "outcome"
    TIME_LIMIT_S: ClassVar[float | None] = None
    WITHOUT_OUTCOME: ClassVar[str] = (
        "no tool gave an outcome at the end of the rollout; its environment needs a class with a method `outcome`"
    )

    type: str = "outcome"
    """The outcome that the tools report for the episode."""

    @classmethod
    def missing(cls, environment: EnvironmentSettings) -> str | None:
        """See `Scorer`."""
        tools = [tool for tool in environment.tools.values() if tool.max_calls != 0]
        has_one = any(tool.gives_outcome for tool in tools)
        return None if has_one else "a class with a method `outcome` in environment.tools"

    def verdict(self, outcome: Outcome | None) -> Score:
        """Return the score of a rollout with this outcome; a score with an error if there is no outcome."""
        return outcome_score(outcome, self.type, self.WITHOUT_OUTCOME)

    async def score(self, task: Task, rollout: StoredRollout) -> Score:
        """See `Scorer`."""
        return self.verdict(rollout.outcome)


def outcome_score(outcome: Outcome | None, scorer: str, missing: str) -> Score:
    """Return the verdict in an outcome: `score` is the reward, `correct` the success.

    Without a reward, a success is 1 and a failure 0; with neither, or a reward that is not a number or beyond 1e9,
    `score` is None and `error` says why. A rollout is right if its outcome is a success, or else if its reward is above
    0.5.
    """
    reward = outcome.reward if outcome is not None else None
    success = outcome.success if outcome is not None else None
    if reward is None and success is None:
        return no_verdict(missing, scorer)
    if reward is not None and not abs(reward) <= LARGEST_SCORE:
        return no_verdict(f"the environment gave {reward:g} as reward; scale it", scorer)
    score = float(success is True) if reward is None else reward
    return Score(score, score > SUCCESS_SCORE if success is None else success, scorer)
