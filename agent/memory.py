"""Memories of rollouts and of what is asked beside them, over the journal of a stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from treadle.agent.rollout import Memory
from treadle.core.stage import JournalView


@dataclass(frozen=True, slots=True)
class JournalMemory:
    """The units of one owner in the stage's journal."""

    journal: JournalView
    owner: str

    def get(self, unit: str) -> bytes | None:
        """A recorded unit, or None."""
        return self.journal.get(self.owner, unit)

    def append(self, unit: str, value: bytes) -> None:
        """Record a unit; survives SIGKILL on return."""
        self.journal.append(self.owner, unit, value)


@dataclass(frozen=True, slots=True)
class Scoped:
    """A memory whose units begin with a name of their own."""

    memory: Memory
    scope: str

    def get(self, unit: str) -> bytes | None:
        """A remembered unit, or None."""
        return self.memory.get(f"{self.scope}/{unit}")

    def append(self, unit: str, value: bytes) -> None:
        """Remember a unit."""
        self.memory.append(f"{self.scope}/{unit}", value)


@dataclass(frozen=True, slots=True)
class Counted:
    """A memory that counts the tokens of each answer which an earlier attempt left in it, once.

    `count` is given the unit, prompt tokens and sampled tokens.
    """

    memory: Memory
    count: Callable[[str, int, int], None]
    known: set[str] = field(default_factory=set)

    def get(self, unit: str) -> bytes | None:
        """A remembered unit, or None."""
        value = self.memory.get(unit)
        if value is not None and unit not in self.known:
            self.known.add(unit)
            self.count(unit, *_tokens_of(value))
        return value

    def append(self, unit: str, value: bytes) -> None:
        """Remember a unit."""
        self.known.add(unit)
        self.memory.append(unit, value)


def _tokens_of(value: bytes) -> tuple[int, int]:
    """Prompt and sampled tokens of a completion, or of the models that the calls of an observation asked; else 0."""
    data = orjson.loads(value)
    if not isinstance(data, dict):
        return 0, 0
    answers = data.get("calls", [data] if "endpoint" in data else [])
    prompt, completion = (sum(int(answer[name]) for answer in answers) for name in _TOKENS)
    return prompt, completion


_TOKENS = ("prompt_tokens", "completion_tokens")
