"""Find recipes by name."""

from __future__ import annotations

from typing import Annotated

from pydantic import SerializeAsAny, WrapValidator

from treadle.core.registry import Registry
from treadle.stages.recipes.base import Recipe

RECIPES = Registry(
    base=Recipe,
    key="flow.recipe",
    group="treadle.recipes",
    example="my_recipes.py:Mine",
    shipped={"calibrate": "treadle.stages.recipes.calibrate:Calibrate"},
)
"""Recipes by name."""

AnyRecipe = Annotated[SerializeAsAny[Recipe], WrapValidator(RECIPES.validate), RECIPES]
"""Settings of a recipe of any type."""
