"""Define the recipe of AgentEvolver (arXiv 2511.10395)."""

from __future__ import annotations

from typing import ClassVar

from treadle.stages.recipes.base import Recipe, Step


class AgentEvolver(Recipe):
    """Make tasks by exploring the environment, summarise rollouts as experience, and train with both.

    `sft` is an optional start from pools or texts. Credit for single steps is a rule of `rl`.
    """

    steps: ClassVar[tuple[Step, ...]] = (
        Step(("questions",), qualifier="seed"),
        Step(("exploration",)),
        Step(("questions",)),
        Step(("sft_rows", "sft")),
        Step(("rollouts", "scores"), each="row_policy"),
        Step(("experience",)),
        Step(("rollouts", "scores", "selection", "rl"), each="phase"),
        Step(("rollouts", "scores"), each="model"),
        Step(("report",)),
    )
    goals: ClassVar[tuple[str, ...]] = ("selection", "rl")
