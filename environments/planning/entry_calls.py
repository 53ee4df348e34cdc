"""Read the text of a tag that calls an entry of `environment.tools`: arguments as JSON, or a single plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from treadle.agent.tools.schema import ToolSchema


def read_entry_call(text: str, schemas: Sequence[ToolSchema]) -> tuple[str, dict[str, Any]]:
    """Return tool and arguments of a call. Raises ValueError, for the model, if they do not fit.

    An entry with one tool takes its arguments as a JSON object, or the plain text if it has one required argument; one
    with several takes `{"name": …, "arguments": {…}}`.
    """
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        data = text
    if isinstance(data, dict) and data.keys() == {"name", "arguments"}:
        schema = next((one for one in schemas if one.name == data["name"]), None)
        if schema is None:
            raise ValueError(f"there is no tool {data['name']!r}; tools: {_names(schemas)}")
        arguments = data["arguments"]
    elif len(schemas) == 1:
        schema, arguments = schemas[0], data
        required = schema.parameters.get("required", [])
        if not isinstance(data, dict) and len(required) == 1:
            arguments = {required[0]: text}
    else:
        raise ValueError(f'write {{"name": …, "arguments": {{…}}}}; tools: {_names(schemas)}')
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of {schema.name} must be a JSON object")
    if error := schema.argument_error(arguments):
        raise ValueError(f"the arguments of {schema.name} do not fit: {error}")
    return schema.name, arguments


def _names(schemas: Sequence[ToolSchema]) -> str:
    return ", ".join(one.name for one in schemas) or "none"


def entries_prompt(entries: dict[str, Sequence[ToolSchema]]) -> str:
    """Return the paragraph that tells the model of tools by their schemas; empty without any."""
    lines = []
    for name, schemas in entries.items():
        lines.append(f"- {name}: call it with a JSON object between its tags. Its tools:")
        for one in schemas:
            shown = {"name": one.name, "description": one.description, "parameters": dict(one.parameters)}
            lines.append(f"  {orjson.dumps(shown).decode()}")
        if len(schemas) > 1:
            lines.append('  Write {"name": …, "arguments": {…}}.')
    return "\n".join(["You also have these functions:", *lines]) if lines else ""
