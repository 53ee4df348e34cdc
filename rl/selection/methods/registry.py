"""Find selection methods by name: shipped ones, entry points, classes in a file or a module."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import SerializeAsAny, WrapValidator

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry
from treadle.rl.selection.methods.base import SelectionMethod


def _method(found: Any, place: str) -> type[SelectionMethod]:
    """Return the class; raise ConfigError if it is no selection method."""
    if not (isinstance(found, type) and issubclass(found, SelectionMethod)):
        raise ConfigError(f"selection.method.type: {place} is not derived from treadle.api.SelectionMethod")
    if found.rank is SelectionMethod.rank:
        raise ConfigError(f"selection.method.type: {place} has no method rank(candidates, limit, seed)")
    return found


METHODS = Registry(
    base=SelectionMethod,
    key="selection.method",
    group="treadle.selection_methods",
    example="my_selection.py:Hardest",
    shipped={
        "pareto": "treadle.rl.selection.methods.pareto:Pareto",
        "random": "treadle.rl.selection.methods.random:Random",
    },
    settings_of=_method,
)
"""Selection methods."""

AnySelectionMethod = Annotated[SerializeAsAny[SelectionMethod], WrapValidator(METHODS.validate), METHODS]
"""Settings of a selection method of any type."""
