"""Load the flywheel's operators (arXiv 2601.06860) by name."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from importlib.metadata import entry_points

from treadle.core.errors import ConfigError
from treadle.datagen.operators.base import Operator

SHIPPED = {
    "rerollout": "treadle.datagen.operators.rerollout:Rerollout",
    "redundant_mod": "treadle.datagen.operators.redundant_modification:RedundantModification",
    "global_refine": "treadle.datagen.operators.global_refinement:GlobalRefinement",
    "self_correct": "treadle.datagen.operators.self_correction:SelfCorrection",
    "hint_step": "treadle.datagen.operators.hint_after_step:HintAfterStep",
    "hint_tail": "treadle.datagen.operators.hint_at_tail:HintAtTail",
    "reflect": "treadle.datagen.operators.reflection:Reflection",
}
"""Short name -> class; the name is the operator's `name` and is stored in the rows."""

ENTRY_POINT_GROUP = "treadle.operators"
"""Entry point group of operators; an entry point's name is the operator's name in the configuration."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
PREFILLED_ROLES = ("policy", "critic", "refiner")
"""Roles for whose replies an operator may give the beginning (prefill)."""
_RESERVED_NAMES = ("initial", "locate_flaw")
"""Names that no operator may have: rows use them for initial rollouts and for the critic's search for a flawed step."""


def load_operators(names: Sequence[str]) -> list[Operator]:
    """Return the operators in the order of their names; raise ConfigError for an unknown or repeated one."""
    operators = [_load(name) for name in names]
    taken = [operator.name for operator in operators]
    if twice := {name for name in taken if taken.count(name) > 1}:
        raise ConfigError(f"pools.operators lists {min(twice)!r} twice")
    return operators


def operator_versions(names: Sequence[str]) -> dict[str, int]:
    """Return the version of each operator by name, for fingerprints."""
    return {operator.name: operator.version for operator in load_operators(names)}


def _load(name: str) -> Operator:
    place = SHIPPED.get(name) or _entry_point(name) or name
    module, colon, attribute = place.partition(":")
    if not colon:
        raise ConfigError(
            f"pools.operators: unknown operator {name!r}; known: {', '.join(SHIPPED)}, or module:Class for a custom one"
        )
    try:
        operator: Operator = getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # any error that a user's module raises on import
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            what += "; put its folder on PYTHONPATH"
        raise ConfigError(f"pools.operators: {name!r} cannot be loaded: {what}") from error
    for attribute, kind in (("name", str), ("version", int), ("branch", str)):
        if not isinstance(getattr(operator, attribute, None), kind):
            raise ConfigError(f"pools.operators: {name!r} has no {attribute} ({kind.__name__})")
    if not isinstance(roles := getattr(operator, "needs_prefill", ()), tuple) or set(roles) - set(PREFILLED_ROLES):
        raise ConfigError(
            f"pools.operators: {name!r} has needs_prefill = {roles!r}, which must be a tuple of some of "
            f"{', '.join(PREFILLED_ROLES)}"
        )
    if (
        not _NAME.fullmatch(operator.name)
        or operator.name in _RESERVED_NAMES
        or operator.branch not in ("correct", "incorrect")
    ):
        raise ConfigError(
            f"pools.operators: {name!r} has the name {operator.name!r} and the branch {operator.branch!r}; "
            f"a name must be a lower-case identifier (not {' or '.join(_RESERVED_NAMES)}), a branch `correct` or "
            "`incorrect`"
        )
    return operator


def needs_prefill(operator: Operator) -> tuple[str, ...]:
    """Return the roles that must continue a begun text for an operator, which need not derive from `Operator`."""
    roles: tuple[str, ...] = getattr(operator, "needs_prefill", ())
    return roles


def edits(operator: Operator) -> bool:
    """Return whether an operator, which need not derive from `Operator`, edits or continues its parent."""
    return bool(getattr(operator, "edits", True))


def _entry_point(name: str) -> str | None:
    found = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    return found.get(name)
