"""Describe tools to models: name, description and the JSON schema of the arguments."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

NAME_PATTERN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Names of tools; chat services take no others."""

_ERROR_CHARS = 300
MAX_ARGUMENT_DEPTH = 100
"""Deepest nesting of arguments: the check of deeper ones exceeds Python's recursion limit."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """Description of one tool for the model.

    Attributes:
        name: Name by which it is called; it matches `NAME_PATTERN`.
        description: Text for the model.
        parameters: JSON schema of the arguments, an object.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    def __post_init__(self) -> None:
        if not NAME_PATTERN.fullmatch(self.name):
            raise ValueError(f"a tool cannot be named {self.name[:80]!r}: use 1 to 64 of A-Z a-z 0-9 _ . -")

    def as_openai(self) -> dict[str, Any]:
        """Return the form that chat services and chat templates take."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def argument_error(self, arguments: Mapping[str, Any]) -> str:
        """Return what is wrong with the arguments of a call, for the model; empty if they fit the schema.

        A schema that cannot be evaluated, such as one that refers to itself without end, checks nothing: servers send
        schemas, and their errors are not the model's.
        """
        if _is_deeper(arguments, MAX_ARGUMENT_DEPTH):
            return f"they are nested more than {MAX_ARGUMENT_DEPTH} levels deep"
        try:
            error = next(iter(_validator(orjson.dumps(self.parameters)).iter_errors(dict(arguments))), None)
        except Exception:  # noqa: BLE001 - validators raise any error for a schema that is none
            return ""
        if error is None:
            return ""
        place = ".".join(map(str, error.absolute_path))
        said = error.message if len(error.message) <= _ERROR_CHARS else f"{error.message[:_ERROR_CHARS]}..."
        return f"{place}: {said}" if place else said


def _is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, (Mapping, list)):
        return False
    parts = value.values() if isinstance(value, Mapping) else value
    return depth == 0 or any(_is_deeper(part, depth - 1) for part in parts)


@functools.lru_cache(maxsize=256)
def _validator(parameters: bytes) -> Validator:
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = orjson.loads(parameters)
    # Without a registry of its own, a validator fetches references from the network.
    return validator_for(schema)(schema, registry=Registry())
