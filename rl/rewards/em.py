"""Reward answers by exact match, by the rule of the scorer `em`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from treadle.core.answers.exact_match import Expected, is_exact_match
from treadle.rl.rewards.base import Reward, RewardGroup, RewardRule
from treadle.rl.rewards.outcome import outcome_rewards


class EmReward(RewardRule):
    """1 for an answer that matches the gold answers exactly, else 0, regardless of the scorer of the evaluation.

    Tasks that an environment or a tool scores get that score.
    """

    PARTS: ClassVar[Mapping[str, str]] = {"em": "1 if the answer matches exactly, else 0"}

    COMPARES_GROUP: ClassVar[bool] = False

    type: str = "em"
    """Type of the rule."""
    expected: Expected = "any"
    """What the gold answers are: ways to write one answer (`any`), or items of a list (`set`); see the scorer `em`."""

    def rewards(self, group: RewardGroup) -> list[Reward]:
        """See `RewardRule`. A rollout that gave no answer gets 0."""
        if not group.has_answers:
            return outcome_rewards(group)
        answers = group.task.answers
        matches = [
            float(item.gave_answer and is_exact_match(prediction, answers, self.expected))
            for item, prediction in zip(group.items, group.predictions, strict=True)
        ]
        return [Reward(match, {"em": match}) for match in matches]
