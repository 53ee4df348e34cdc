"""Read the settings of planning agents from the record of a stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from treadle.environments.mixture import environments_of
from treadle.environments.planning.settings import PlanningSettings


def stored_settings(settings: Any, environment: str) -> PlanningSettings | None:
    """Return an environment of type `planning` from the settings of a record; None for other types."""
    table = environments_of(settings if isinstance(settings, Mapping) else {}).get(environment)
    if not isinstance(table, Mapping) or table.get("type") != "planning":
        return None
    try:
        return PlanningSettings.model_validate(table)
    except ValidationError:
        return None  # stored by another version
