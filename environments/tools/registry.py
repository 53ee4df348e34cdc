"""Find types of tools by name: shipped ones, entry points, functions and classes in a file or a module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import SerializeAsAny, WrapValidator
from typing_extensions import TypeAliasType

from treadle.agent.tools.functions import settings_of
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.settings import ToolSettings
from treadle.core.errors import ConfigError
from treadle.core.registry import Registry


def check_names(schemas: Mapping[str, Sequence[ToolSchema]], taken: Iterable[str] = ()) -> None:
    """Raise ValueError if tools of two entries in `schemas` have the same name, or a tool has a name in `taken`."""
    owners = {name: f"environment.{name}" for name in taken}
    for entry, tools in schemas.items():
        for schema in tools:
            if (other := owners.setdefault(schema.name, entry)) != entry:
                raise ValueError(f"{other} and {entry} both have a tool named {schema.name!r}; rename one of them")


def _settings_of(found: Any, place: str) -> type[ToolSettings]:
    """Return the settings class that was found, or the one for a function or class of a user."""
    if isinstance(found, type) and issubclass(found, ToolSettings):
        if found.source is ToolSettings.source:
            raise ConfigError(f"environment.tools: {found.__name__} has no method source(name, resources)")
        settings: type[ToolSettings] = found
        return settings
    return settings_of(found)


TOOLS = Registry(
    base=ToolSettings,
    key="environment.tools",
    group="treadle.tools",
    example="my_tools.py:weather",
    shipped={
        "http": "treadle.agent.tools.http:HttpToolSettings",
        "mcp": "treadle.agent.tools.mcp.entry:McpSettings",
        "workspace": "treadle.agent.tools.workspace.settings:WorkspaceSettings",
    },
    settings_of=_settings_of,
)
"""Types of tools."""

AnyTool = TypeAliasType("AnyTool", Annotated[SerializeAsAny[ToolSettings], WrapValidator(TOOLS.validate), TOOLS])
"""Settings of a tool of any type."""
