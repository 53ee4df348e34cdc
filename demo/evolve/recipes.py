"""Define the recipe of the demo and the benchmark: fine-tune a model on a tutor's rollouts, then run AgentEvolver."""

from __future__ import annotations

from typing import ClassVar

from treadle.demo.programs.recipes import TUTOR
from treadle.stages.recipes.base import Recipe, Step
from treadle.stages.recipes.evolve import AgentEvolver

_ORIGINALS = ("questions@seed",)
_TAUGHT = (
    Step(
        ("rollouts", "scores"),
        qualifier=TUTOR,
        reads={"rollouts.questions": _ORIGINALS, "scores.questions": _ORIGINALS},
    ),
    Step(
        ("sft_rows", "sft"),
        reads={
            "sft_rows.questions": _ORIGINALS,
            "sft_rows.rollouts": (f"rollouts@{TUTOR}",),
            "sft_rows.scores": (f"scores@{TUTOR}",),
        },
    ),
)


def _with_taught_start(recipe: type[Recipe]) -> tuple[Step, ...]:
    """Return the steps of a recipe, in which `_TAUGHT` replaces the first step that fine-tunes."""
    place = next(place for place, step in enumerate(recipe.steps) if "sft" in step.stages)
    return (*recipe.steps[:place], *_TAUGHT, *recipe.steps[place + 1 :])


class TaughtAgentEvolver(Recipe):
    """Make tasks by exploring, fine-tune a model on right rollouts of a tutor, and train this model by AgentEvolver."""

    steps: ClassVar[tuple[Step, ...]] = _with_taught_start(AgentEvolver)
    goals: ClassVar[tuple[str, ...]] = AgentEvolver.goals
