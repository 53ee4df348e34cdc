"""Define the recipe of ET-Agent: a flywheel of data, fine-tuning, a curriculum of reinforcement, and evaluation."""

from __future__ import annotations

from typing import ClassVar

from treadle.stages.recipes.base import Recipe, Step


class Calibrate(Recipe):
    """Make pools and fine-tuning rows, fine-tune, reinforce in phases, roll out models and compare them."""

    steps: ClassVar[tuple[Step, ...]] = (
        Step(("questions",)),
        Step(("rollouts", "scores"), each="row_policy"),
        Step(("pools", "conversion", "sft_rows", "sft")),
        Step(("rollouts", "scores", "selection", "rl"), each="phase"),
        Step(("rollouts", "scores"), each="model"),
        Step(("report",)),
    )
    goals: ClassVar[tuple[str, ...]] = ("selection", "rl")
