"""Tasks of `bfcl-eval` as an environment: its functions as tools, its user turns as messages, its API classes as state.

A desk holds a copy of this file, which its configuration names.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from treadle.agent.contract import ModelTurn, Outcome, Task
from treadle.agent.dialects.base import Dialect
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.settings import ToolResources, ToolSettings
from treadle.agent.tools.source import EpisodeTools, ToolResume, ToolSource
from treadle.api import Done, Environment, Message

_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_NESTED = ("properties", "items")


def json_schema(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON schema for a description in the package's own words: `dict`, `float`, `tuple` and `any`."""
    schema = {key: value for key, value in description.items() if key not in ("type", *_NESTED)}
    # Gold calls write defaults, also null and values that are not among those listed.
    default = description.get("default", "")
    if (kind := description.get("type", "any")) != "any":
        plain = _TYPES.get(kind, kind)
        schema["type"] = [plain, "null"] if default is None else plain
    if "enum" in description and "default" in description:
        schema["enum"] = list(dict.fromkeys([*description["enum"], default]))
    if "properties" in description:
        schema["properties"] = {name: json_schema(one) for name, one in description["properties"].items()}
    if "items" in description:
        schema["items"] = json_schema(description["items"])
    return schema


class Functions(ToolSettings):
    """Functions of the task: those of its API classes run, the others return their call."""

    folder: str
    """Folder that the package is imported from."""

    def source(self, name: str, resources: ToolResources) -> ToolSource:
        if self.folder not in sys.path:
            sys.path.append(self.folder)
        return FunctionSource()


class FunctionSource:
    """Source of the functions of each task."""

    resume: ToolResume = "reenact"
    schemas: Sequence[ToolSchema] = ()

    async def __aenter__(self) -> FunctionSource:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    def facts(self) -> dict[str, str]:
        return {}

    async def episode(self, task: Task, seed: int) -> EpisodeTools:
        return TaskFunctions(json.loads(task.payload["task"]))


class TaskFunctions:
    """Functions of one task."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        self.schemas = [
            ToolSchema(one["name"], one["description"], json_schema(one["parameters"])) for one in task["functions"]
        ]
        self._owners = []
        for name, module in task.get("classes", {}).items():
            self._owners.append(getattr(importlib.import_module(module), name)())
            if hasattr(self._owners[-1], "_load_scenario"):
                self._owners[-1]._load_scenario(copy.deepcopy(task["config"].get(name, {})), long_context=False)

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, deadline: float, context: CallContext
    ) -> ToolOutcome:
        owner = next((one for one in reversed(self._owners) if hasattr(one, name)), None)
        if owner is None:
            return ToolOutcome("ok", json.dumps([name, arguments]))
        try:
            value = getattr(owner, name)(**arguments)
        except Exception as error:  # noqa: BLE001 - as the package does
            return ToolOutcome("ok", f"Error during execution: {error}")
        return ToolOutcome("ok", _as_text(value))

    async def outcome(self) -> Outcome | None:
        return None

    async def close(self) -> None: ...


def _as_text(value: Any) -> str:
    """Return a value as the package writes it."""
    with contextlib.suppress(TypeError):
        return json.dumps(value) if isinstance(value, dict) else str(value)
    return str(value)  # numbers of mpmath


class Conversation(Environment):
    """User turns of a task, one after each turn of the model without a call."""

    dialect: ClassVar[Dialect] = FunctionsDialect()

    async def reset(self, task: Task) -> list[dict[str, str]]:
        # JSON text, which keeps the order of keys.
        given = json.loads(task.payload["task"])
        self.turns = list(given["turns"])
        return [{"role": "system", "content": given["id"]}, {"role": "user", "content": self.turns.pop(0)}]

    async def step(self, turn: ModelTurn) -> list[Message] | Message | Done:
        if turn.calls:
            return await self.run_calls(turn)
        return Message(self.turns.pop(0)) if self.turns else Done(reward=1.0)
