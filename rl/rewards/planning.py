"""Reward right answers, and with small weights the agent's plans and calls (arXiv 2510.25320, 2508.13167).

The terms never make a wrong answer score above a right one of its group. Documented in docs/behaviour/rewards.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pydantic import Field, model_validator

from treadle.rl.rewards.base import GroupItem, Reward, RewardGroup, RewardRule


class PlanningReward(RewardRule):
    """The score, plus weighted terms for plans, turns and repeated calls of the environment `planning`.

    With all weights at 0 it is `outcome`. The sum of the weights is below 1.
    """

    PARTS: ClassVar[Mapping[str, str]] = {
        "valid_plan": "1 if the agent wrote a plan and each of its plans can be followed, else 0",
        "in_order": "share of calls that waited for what they depend on; 0 without a plan that can be followed",
        "late_turns": "1 - 1 / turns: 0 with a single turn",
        "repeated": "share of calls that were refused as repetitions",
    }

    type: str = "planning"
    """Type of the rule."""
    plan_weight: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Weight of `valid_plan`, which is added."""
    order_weight: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Weight of `in_order`, which is added."""
    turn_penalty: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Weight of `late_turns`, which is subtracted from right answers only."""
    repeat_penalty: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Weight of `repeated`, which is subtracted."""

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        total = self.plan_weight + self.order_weight + self.turn_penalty + self.repeat_penalty
        if total >= 1:
            raise ValueError(
                f"the weights of rl.reward have the sum {total:g}; below 1, a wrong answer can never score above a "
                "right one"
            )
        return self

    def rewards(self, group: RewardGroup) -> list[Reward]:
        """See `RewardRule`. Rollouts whose environment does not report plans get their score as reward."""
        pairs = list(zip(group.items, group.scores, strict=True))
        made = [self._reward(item, score.score, bool(score.correct)) for item, score in pairs]
        right = [
            one.total for one, score in zip(made, group.scores, strict=True) if score.correct and one.total is not None
        ]
        if not right:
            return made
        # Scores between 0 and 1 may differ by less than the terms add up to, so wrong answers are capped explicitly.
        lowest = min(right)
        return [
            one if score.correct or one.total is None else replace(one, total=min(one.total, lowest))
            for one, score in zip(made, group.scores, strict=True)
        ]

    def _reward(self, item: GroupItem, score: float | None, is_right: bool) -> Reward:
        terms = PlanningTerms.of(item)
        if score is None or terms is None:
            return Reward(score)
        late = terms.late_turns if is_right else 0.0
        total = (
            score
            + self.plan_weight * terms.valid_plan
            + self.order_weight * terms.in_order
            - self.turn_penalty * late
            - self.repeat_penalty * terms.repeated
        )
        return Reward(total, {name: getattr(terms, name) for name in self.PARTS})


@dataclass(frozen=True, slots=True)
class PlanningTerms:
    """Terms of a trajectory, each within [0, 1]; the parts of `PlanningReward` describe them."""

    valid_plan: float
    in_order: float
    late_turns: float
    repeated: float

    @classmethod
    def of(cls, item: GroupItem) -> PlanningTerms | None:
        """Return the terms of a trajectory; None if its environment does not report on plans."""
        parts = item.parts
        if "plans" not in parts:
            return None
        is_valid = parts["plans"] > 0 and not parts.get("bad_plans", 0.0)
        repeated = parts.get("duplicate_calls", 0.0)
        calls = item.tool_calls + repeated
        in_order = 1.0 - min(1.0, parts.get("early_calls", 0.0) / max(1.0, calls))
        return cls(
            float(is_valid),
            in_order if is_valid else 0.0,
            1.0 - 1.0 / max(1, item.num_turns),
            repeated / calls if calls else 0.0,
        )
