"""Find recipes by name."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import SerializeAsAny, WrapValidator
from typing_extensions import TypeAliasType

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry
from treadle.stages.recipes.base import Each, Recipe, Step
from treadle.stages.registry import stage_entry


def _recipe(found: Any, place: str) -> type[Recipe]:
    """Return `found` as a recipe class; raise ConfigError if it is none, or if its steps cannot be run."""
    if not (isinstance(found, type) and issubclass(found, Recipe)):
        raise ConfigError(f"flow.recipe.type: {place} is not derived from treadle.api.Recipe")
    recipe: type[Recipe] = found
    steps = recipe.steps
    if not isinstance(steps, tuple) or not steps or not all(isinstance(step, Step) for step in steps):
        raise ConfigError(f"flow.recipe.type: {place}.steps must be a tuple of treadle.api.Step")
    for number, step in enumerate(steps):
        where = f"flow.recipe.type: {place}.steps[{number}]"
        if not isinstance(step.stages, tuple):
            raise ConfigError(f'{where}: write its stages as a tuple, such as ("report",)')
        if step.each not in get_args(Each):
            raise ConfigError(f"{where}: each = {step.each!r} is not one of {', '.join(get_args(Each))}")
        try:
            consumed = {f"{name}.{read}" for name in step.stages for read in stage_entry(name).stage.consumes}
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if odd := [read for read in step.reads if read not in consumed]:
            raise ConfigError(
                f"{where}: reads has {odd[0]!r}, which its stages do not read; they read {', '.join(sorted(consumed))}"
            )
    return recipe


RECIPES = Registry(
    base=Recipe,
    key="flow.recipe",
    group="treadle.recipes",
    example="my_recipes.py:Mine",
    shipped={
        "calibrate": "treadle.stages.recipes.calibrate:Calibrate",
        "agent-evolver": "treadle.stages.recipes.evolve:AgentEvolver",
        "sweet": "treadle.stages.recipes.sweet:Sweet",
        "sweet-baselines": "treadle.stages.recipes.sweet:SweetBaselines",
        "multi-turn-dpo": "treadle.stages.recipes.sweet:MultiTurnDpo",
    },
    settings_of=_recipe,
)
"""Recipes by name."""

AnyRecipe = TypeAliasType("AnyRecipe", Annotated[SerializeAsAny[Recipe], WrapValidator(RECIPES.validate), RECIPES])
"""Settings of a recipe of any type."""
