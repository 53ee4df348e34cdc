"""An environment whose steps do nothing, for measurements of the service around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from treadle.agent.contract import ModelTurn
from treadle.environments.custom.base import Environment


class Noop(Environment):
    """Environment that repeats what it is told."""

    @classmethod
    async def tasks(cls, settings: Any, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the only task."""
        yield {"id": "noop", "question": "Do nothing."}

    async def step(self, turn: ModelTurn) -> str:
        """Return the text of the turn."""
        return turn.text
