"""Define the recipes of the demo and the benchmark: fine-tune a model on a tutor's dialogues, then run SWEET-RL."""

from __future__ import annotations

from typing import ClassVar

from treadle.stages.recipes.base import Recipe, Step
from treadle.stages.recipes.sweet import Sweet, SweetBaselines

TUTOR, START = "tutor", "start"
"""Names of models: the tutor, whose dialogues are learned, and the model that is fine-tuned on them."""

_TAUGHT = (
    Step(("questions",)),
    Step(("rollouts", "scores"), qualifier=TUTOR),
    Step(
        ("sft_rows",),
        qualifier=START,
        reads={"sft_rows.rollouts": (f"rollouts@{TUTOR}",), "sft_rows.scores": (f"scores@{TUTOR}",)},
    ),
    Step(("sft",), qualifier=START, reads={"sft.sft_rows": (f"sft_rows@{START}",)}),
)


def _after_start(recipe: type[Recipe]) -> tuple[Step, ...]:
    """Return the steps of a recipe, beginning with the first step that makes rollouts."""
    first = next(place for place, step in enumerate(recipe.steps) if "rollouts" in step.stages)
    return recipe.steps[first:]


class TaughtSweet(Recipe):
    """Fine-tune a model on right dialogues of a tutor, then train this model by SWEET-RL."""

    steps: ClassVar[tuple[Step, ...]] = (*_TAUGHT, *_after_start(Sweet))


class TaughtSweetBaselines(Recipe):
    """Fine-tune a model on right dialogues of a tutor, then train this model by SWEET-RL and by each baseline."""

    steps: ClassVar[tuple[Step, ...]] = (*_TAUGHT, *_after_start(SweetBaselines))
