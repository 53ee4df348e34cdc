"""Find selection methods by name: shipped ones, entry points, classes in a file or a module."""

from __future__ import annotations

from typing import Annotated

from pydantic import SerializeAsAny, WrapValidator
from typing_extensions import TypeAliasType

from treadle.core.registry import Registry
from treadle.rl.selection.methods.base import SelectionMethod

METHODS = Registry(
    base=SelectionMethod,
    key="selection.method",
    group="treadle.selection_methods",
    example="my_selection.py:Hardest",
    shipped={
        "pareto": "treadle.rl.selection.methods.pareto:Pareto",
        "random": "treadle.rl.selection.methods.random:Random",
    },
    methods={"rank": "rank(candidates, limit, seed)"},
)
"""Selection methods."""

AnySelectionMethod = TypeAliasType(
    "AnySelectionMethod", Annotated[SerializeAsAny[SelectionMethod], WrapValidator(METHODS.validate), METHODS]
)
"""Settings of a selection method of any type."""
