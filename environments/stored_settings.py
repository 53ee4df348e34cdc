"""Read the environments in the settings of records and runs, without loading code of their types."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.agent.contract import DEFAULT_ENVIRONMENT
from treadle.environments.mixture import environments_of
from treadle.environments.settings import DEFAULT_TYPE


def type_names(settings: object) -> dict[str, str]:
    """Return the type of each environment in the settings of a record or a run, by its name; the default one first."""
    tables = environments_of(settings if isinstance(settings, Mapping) else {})
    types = {name: table.get("type") if isinstance(table, Mapping) else None for name, table in tables.items()}
    return {name: kind if isinstance(kind, str) else DEFAULT_TYPE for name, kind in types.items()}


def environment_label(name: str, kind: str) -> str:
    """Return how an environment is shown: its type, with its name if it is not the default one."""
    return kind if name == DEFAULT_ENVIRONMENT else f"{name} ({kind})"
