"""Find types of reward rules by name: shipped ones, entry points, classes in a file or a module."""

from __future__ import annotations

from typing import Annotated

from pydantic import SerializeAsAny, WrapValidator
from typing_extensions import TypeAliasType

from treadle.core.registry import Registry
from treadle.rl.rewards.base import RewardRule

REWARDS = Registry(
    base=RewardRule,
    key="rl.reward",
    group="treadle.rewards",
    example="my_rewards.py:Short",
    shipped={
        "efficiency": "treadle.rl.rewards.efficiency:EfficiencyReward",
        "em": "treadle.rl.rewards.em:EmReward",
        "judge": "treadle.rl.rewards.judge:JudgeReward",
        "outcome": "treadle.rl.rewards.outcome:OutcomeReward",
        "planning": "treadle.rl.rewards.planning:PlanningReward",
    },
    methods={"rewards": "rewards(group)"},
)
"""Types of reward rules."""

AnyReward = TypeAliasType("AnyReward", Annotated[SerializeAsAny[RewardRule], WrapValidator(REWARDS.validate), REWARDS])
"""Settings of a reward rule of any type."""
