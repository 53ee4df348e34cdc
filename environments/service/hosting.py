"""Define the interface of an environment that the service holds, in its own process or in a worker process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from treadle.agent.contract import Task

TaskRow = Mapping[str, Any]
"""A task as a row that `Task.from_row` reads; hidden parts included."""


class HeldInstance(Protocol):
    """One episode that the service holds; its methods are called one at a time."""

    async def start(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Begin the episode; return its first state."""
        ...

    async def step(self, action: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out the model's action; return the next state. Raises RequestUnfit for an impossible action."""
        ...

    async def evaluate(self, messages: Mapping[str, Any], params: Mapping[str, Any]) -> float:
        """Return how good the episode is, from 0 to 1; `messages` are those of the request."""
        ...

    async def get_info(self, messages: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
        """Return a description of the tools."""
        ...

    async def close(self) -> None:
        """Release what the instance holds."""
        ...


class EnvironmentHost(Protocol):
    """An open environment."""

    async def tasks(self, split: str, seed: int, params: Mapping[str, Any]) -> Sequence[TaskRow]:
        """Return the tasks of a split; `params` are the parameters of the request."""
        ...

    def instance(self, task: Task, instance_id: str) -> HeldInstance:
        """Return a new instance for a task; its episode has not begun."""
        ...
