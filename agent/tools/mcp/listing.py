"""Check the list of tools that an MCP server reports, and name what changed in it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from treadle.agent.tools.mcp.results import is_plain, label, shown
from treadle.agent.tools.schema import NAME_PATTERN, ToolSchema
from treadle.core.config import digest_json
from treadle.core.errors import ToolError

if TYPE_CHECKING:
    from mcp_types import Tool

    from treadle.agent.tools.mcp.settings import McpServerSettings

_log = logging.getLogger(__name__)

MAX_TOOLS = 256
MAX_DESCRIPTION_CHARS = 4000
MAX_SCHEMA_BYTES = 32 * 1024
MAX_SCHEMA_DEPTH = 32
_TABLES = ("properties", "$defs", "definitions", "dependentSchemas")
_TEXTS = ("description", "title", "$comment")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class ToolList(Mapping[str, ToolSchema]):
    """Tools of a server: name for the model -> schema.

    Attributes:
        server_names: Name for the model -> name at the server.
    """

    def __init__(self, tools: Mapping[str, tuple[str, ToolSchema]]) -> None:
        self.server_names = {name: at_server for name, (at_server, _) in tools.items()}
        self._schemas = {name: schema for name, (_, schema) in tools.items()}

    def __getitem__(self, name: str) -> ToolSchema:
        return self._schemas[name]

    def __iter__(self) -> Any:
        return iter(self._schemas)

    def __len__(self) -> int:
        return len(self._schemas)

    def data(self) -> list[dict[str, Any]]:
        """Return the list as JSON-able data, for the record of the run."""
        return [schema.as_openai()["function"] for schema in self._schemas.values()]

    def digest(self) -> str:
        """Return the hex SHA-256 of `data`."""
        return digest_json(self.data())


def tool_list(entry: str, tools: Sequence[Tool], settings: McpServerSettings) -> tuple[ToolList, list[str]]:
    """Return the tools to offer, and one line for each that cannot be offered.

    Args:
        entry: Name of the entry of `environment.tools`.
        tools: Everything that the server lists.
        settings: Which of them to offer, and names for the model.
    """
    found: dict[str, tuple[str, ToolSchema]] = {}
    problems = []
    wanted = settings.tools
    missing = [name for name in (wanted or ()) if name not in {tool.name for tool in tools}]
    problems += [f"the server has no tool {label(name)!r} (key `tools`)" for name in missing]
    offered = [tool for tool in tools if wanted is None or tool.name in wanted]
    if len(offered) > MAX_TOOLS:
        problems.append(f"the server lists {len(offered)} tools, more than {MAX_TOOLS}; choose with `tools`")
    for tool in offered[:MAX_TOOLS]:
        name = settings.names.get(tool.name, f"{entry}_{tool.name}")
        problem = _name_problem(tool.name, name) or schema_problem(tool.input_schema)
        if not problem and name in found:
            problem = f"two tools would be named {name!r}; rename one with `names`, or choose with `tools`"
        if problem:
            problems.append(f"tool {label(tool.name)!r}: {problem}")
            continue
        description = shown(tool.description or tool.title or "", MAX_DESCRIPTION_CHARS)
        found[name] = tool.name, ToolSchema(name, description, _without_patterns(_with_clean_texts(tool.input_schema)))
    return ToolList(found), problems


def _name_problem(at_server: str, name: str) -> str:
    if NAME_PATTERN.fullmatch(name):
        return ""
    return (
        f"the model cannot be given the name {label(name)!r} (1 to 64 of A-Z a-z 0-9 _ . -); write "
        f'names = {{ {label(at_server)!r} = "..." }}, or choose other tools with `tools`'
    )


def schema_problem(schema: Any) -> str:
    """Return why the schema of a tool's arguments cannot be used; empty if it can."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        return "its schema is not that of an object"
    try:
        size = len(orjson.dumps(schema))
    except (TypeError, ValueError, RecursionError):
        return "its schema is not plain JSON"
    if size > MAX_SCHEMA_BYTES:
        return f"its schema has {size} bytes, more than {MAX_SCHEMA_BYTES}"
    if (problem := _content_problem(schema)) is not None:
        return problem
    try:
        checker = validator_for(schema)
        checker.check_schema(schema)
        checker(_without_patterns(schema), registry=Registry()).is_valid({})
    except SchemaError as error:
        return f"its schema is invalid: {label(error.message)}"
    except (Unresolvable, RecursionError):
        return "its schema has a reference that leads nowhere or to itself"
    return ""


def _content_problem(value: Any, depth: int = 0) -> str | None:
    """Return why a part of a schema cannot be used; None if it can."""
    if depth > MAX_SCHEMA_DEPTH:
        return f"its schema is nested more than {MAX_SCHEMA_DEPTH} levels deep"
    if isinstance(value, str):
        return None if is_plain(value) else "its schema contains control characters or control tokens"
    if isinstance(value, list):
        return _first(_content_problem(one, depth + 1) for one in value)
    if not isinstance(value, dict):
        return None
    for key in _REFERENCES:
        if isinstance(target := value.get(key), str) and not target.startswith("#"):
            return f"its schema refers to {label(target)}; references outside of a schema are not followed"
    texts = [one for key, one in value.items() if not (key in _TEXTS and isinstance(one, str))]
    return _first(_content_problem(one, depth + 1) for one in (*value, *texts))


def _first(problems: Iterable[str | None]) -> str | None:
    return next(filter(None, problems), None)


def _with_clean_texts(value: Any) -> Any:
    """Return a schema with cleaned descriptions, titles and comments; all other texts were checked and stay."""
    if isinstance(value, dict):
        return {
            key: shown(one, MAX_DESCRIPTION_CHARS) if key in _TEXTS and isinstance(one, str) else _with_clean_texts(one)
            for key, one in value.items()
        }
    return [_with_clean_texts(one) for one in value] if isinstance(value, list) else value


def _without_patterns(schema: Any, *, is_schema: bool = True) -> Any:
    """Return a schema without regular expressions: one from a server could take forever on the arguments of a model.

    `is_schema` is False for a table of properties, whose keys are names.
    """
    if isinstance(schema, list):
        return [_without_patterns(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: one for key, one in schema.items() if not (is_schema and key in ("pattern", "patternProperties"))}
    return {key: _without_patterns(one, is_schema=not (is_schema and key in _TABLES)) for key, one in kept.items()}


def changes(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> str:
    """Return what differs between two lists (`ToolList.data`), in one line; empty if nothing does."""
    old = {tool["name"]: tool for tool in before}
    new = {tool["name"]: tool for tool in after}
    both = old.keys() & new.keys()
    words = {
        "added": new.keys() - old.keys(),
        "removed": old.keys() - new.keys(),
        "other schema": {name for name in both if old[name]["parameters"] != new[name]["parameters"]},
        "other description": {name for name in both if old[name]["description"] != new[name]["description"]},
    }
    return "; ".join(f"{word}: {', '.join(sorted(names))}" for word, names in words.items() if names)


def refuse(entry: str, problems: Sequence[str]) -> None:
    """Raise ToolError if there are problems."""
    if problems:
        raise ToolError(f"environment.tools.{entry}: {'; '.join(problems)}")


def warn_of_changes(entry: str, before: Sequence[Mapping[str, Any]], after: Sequence[Any], since: str) -> None:
    """Log what differs between two lists; `since` is a phrase for the time at which the first one was read."""
    if changed := changes(before, after):
        _log.warning("environment.tools.%s: the MCP server's tools changed %s: %s", entry, since, changed)
