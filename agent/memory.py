"""Memories of rollouts and of what is asked beside them: what was answered before is not asked again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import orjson

from treadle.agent.environment import CallRecord, Observation
from treadle.core.llm.types import Completion

if TYPE_CHECKING:  # an engine's environment plays rollouts without what stages need
    from treadle.core.stage import JournalView


class Memory(Protocol):
    """Durable memory of one rollout, by the names of its units."""

    def get(self, unit: str) -> bytes | None:
        """A remembered unit, or None."""
        ...

    def append(self, unit: str, value: bytes) -> None:
        """Remember a unit."""
        ...


class Forgetful:
    """A memory for rollouts that need not survive anything."""

    def get(self, unit: str) -> bytes | None:
        """Always None."""
        return None

    def append(self, unit: str, value: bytes) -> None:
        """Does nothing."""


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


def answer_unit(turn: int) -> str:
    """Name of the unit that holds the model's answer in a turn, from 0."""
    return f"llm-{turn}"


def call_unit(turn: int) -> str:
    """Name of the unit that holds the reaction to a turn, from 0."""
    return f"tool-{turn}"


def remembered_answers(memory: Memory) -> Iterator[Completion]:
    """The model's answers in the memory of a rollout that began at its start, in the order of its turns."""
    turn = 0
    while (known := memory.get(answer_unit(turn))) is not None:
        yield Completion.from_json(known)
        turn += 1


def remembered_calls(memory: Memory, num_turns: int) -> Iterator[CallRecord]:
    """The calls in the same memory, of its first turns."""
    for turn in range(num_turns):
        if (known := memory.get(call_unit(turn))) is not None:
            yield from Observation.from_json(known).calls


def _tokens_of(value: bytes) -> tuple[int, int]:
    """Prompt and sampled tokens of a completion, or of the models that the calls of an observation asked; else 0."""
    data = orjson.loads(value)
    if not isinstance(data, dict):
        return 0, 0
    answers = data.get("calls", [data] if "endpoint" in data else [])
    prompt, completion = (sum(int(answer[name]) for answer in answers) for name in _TOKENS)
    return prompt, completion


_TOKENS = ("prompt_tokens", "completion_tokens")
