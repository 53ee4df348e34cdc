"""Find types of tools by name: shipped ones, entry points, functions and classes in a file or a module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import (
    GetJsonSchemaHandler,
    SerializeAsAny,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from treadle.agent.tools.functions import settings_of
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.settings import ToolSettings
from treadle.core.config import unknown_keys
from treadle.core.errors import ConfigError
from treadle.core.plugins import entry_point_places, find_code_file, from_file, from_module
from treadle.core.untrusted.input_files import file_sha256

SHIPPED: dict[str, str] = {
    "http": "treadle.agent.tools.http:HttpToolSettings",
    "mcp": "treadle.agent.tools.mcp.entry:McpSettings",
    "workspace": "treadle.agent.tools.workspace.settings:WorkspaceSettings",
}
"""Name -> class of the settings of the type."""

ENTRY_POINT_GROUP = "treadle.tools"
"""Group of entry points; the name of an entry point is the name of the type in the configuration."""


def parse_tool(data: Any) -> ToolSettings:
    """Return the settings of an entry of `environment.tools`. Raises ValueError."""
    if isinstance(data, ToolSettings):
        return data
    if not isinstance(data, Mapping):
        raise ValueError('a tool is a table with a key `type`, such as { type = "my_tools.py:weather" }')
    name = data.get("type")
    if not isinstance(name, str):
        raise ValueError(f"a tool needs a key `type`; known: {', '.join(_known())}, or my_tools.py:weather")
    given = dict(data)
    file = find_code_file(name, given.get("code_file"), "environment.tools.*")
    if file is not None:
        given |= {"code_file": file, "code_sha256": file_sha256(file)}
    else:
        if given.get("code_file"):
            raise ValueError(f"code_file belongs to a type in a file, and type = {name!r} is none; leave it out")
        given.pop("code_sha256", None)  # of a dump; types that read files fill it in again
    try:
        if file is not None:
            found = from_file(file, name.rpartition(":")[2], "environment.tools")
        else:
            place = SHIPPED.get(name) or entry_point_places(ENTRY_POINT_GROUP).get(name) or name
            module, colon, attribute = place.partition(":")
            if not colon:
                raise ValueError(
                    f"type = {name!r} is unknown; known: {', '.join(_known())}; or name a function or class as "
                    "my_tools.py:weather or package.module:weather"
                )
            found = from_module(module, attribute, "environment.tools")
        settings = _settings_of(found)
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("environment.tools: ")) from None
    try:
        return settings.model_validate(given)
    except ValidationError as error:
        # Only here the type, and so its keys, are known.
        if unknown := unknown_keys(settings, error):
            raise ValueError(unknown) from None
        raise


def check_names(schemas: Mapping[str, Sequence[ToolSchema]], taken: Iterable[str] = ()) -> None:
    """Raise ValueError if two tools have one name. `schemas` has the tools of each entry, `taken` names of others."""
    owners = {name: f"environment.{name}" for name in taken}
    for entry, tools in schemas.items():
        for schema in tools:
            if (other := owners.setdefault(schema.name, entry)) != entry:
                raise ValueError(f"{other} and {entry} both have a tool named {schema.name!r}; rename one of them")


def shipped_tools() -> list[type[ToolSettings]]:
    """Return the settings of all shipped types, for the reference."""
    return [from_module(*place.split(":"), "environment.tools") for place in SHIPPED.values()]


def _settings_of(found: Any) -> type[ToolSettings]:
    """Return the settings class that was found, or the one for a function or class of a user."""
    if isinstance(found, type) and issubclass(found, ToolSettings):
        if found.source is ToolSettings.source:
            raise ConfigError(f"environment.tools: {found.__name__} has no method source(name, resources)")
        settings: type[ToolSettings] = found
        return settings
    return settings_of(found)


def _known() -> list[str]:
    return sorted({*SHIPPED, *entry_point_places(ENTRY_POINT_GROUP)})


def _parse(data: Any, handler: ValidatorFunctionWrapHandler) -> ToolSettings:
    return parse_tool(data)


class _SchemaOfTools:
    """JSON schema of a tool: the keys of every tool, and any others; Prefect's form shows it."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        own = dict(handler.resolve_ref_schema(handler(ToolSettings.__pydantic_core_schema__)))
        return own | {"additionalProperties": True}


AnyTool = Annotated[SerializeAsAny[ToolSettings], WrapValidator(_parse), _SchemaOfTools()]
"""Settings of a tool of any type."""
