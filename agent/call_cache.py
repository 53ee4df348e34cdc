"""Cache the model answers and tool results of rollouts, so that resumed work does not request them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import orjson

if TYPE_CHECKING:  # RL engines run rollouts without the dependencies of stages
    from treadle.core.runs.stage import JournalView


class CallCache(Protocol):
    """Durable cache of one rollout, with named entries (units)."""

    def get(self, unit: str) -> bytes | None:
        """Return the cached model answer or tool result named `unit`, or None."""
        ...

    def append(self, unit: str, value: bytes) -> None:
        """Store a unit."""
        ...


class NullCache:
    """Cache that stores nothing, for rollouts that are never resumed."""

    def get(self, unit: str) -> bytes | None:
        """Return None."""
        return None

    def append(self, unit: str, value: bytes) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class JournalCache:
    """Cache of one job's model answers and tool results, kept in the stage's journal under the job's key, `owner`."""

    journal: JournalView
    owner: str

    def get(self, unit: str) -> bytes | None:
        """Return a recorded unit, or None."""
        return self.journal.get(self.owner, unit)

    def append(self, unit: str, value: bytes) -> None:
        """Record a unit; once this returns, the unit survives SIGKILL."""
        self.journal.append(self.owner, unit, value)


@dataclass(frozen=True, slots=True)
class ScopedCache:
    """Cache whose units are prefixed with a scope."""

    cache: CallCache
    scope: str

    def get(self, unit: str) -> bytes | None:
        """Return the cached model answer or tool result named `unit` within the scope, or None."""
        return self.cache.get(f"{self.scope}/{unit}")

    def append(self, unit: str, value: bytes) -> None:
        """Store a unit."""
        self.cache.append(f"{self.scope}/{unit}", value)


@dataclass(frozen=True, slots=True)
class CountingCache:
    """Cache that counts the tokens of each unit from an earlier attempt, once, when it is first read.

    `count` is called with the unit, its prompt tokens and its sampled tokens.
    """

    cache: CallCache
    count: Callable[[str, int, int], None]
    known: set[str] = field(default_factory=set)

    def get(self, unit: str) -> bytes | None:
        """Return the cached unit, or None; at the first read, count the tokens of a unit from an earlier attempt."""
        value = self.cache.get(unit)
        if value is not None and unit not in self.known:
            self.known.add(unit)
            self.count(unit, *_tokens_of(value))
        return value

    def append(self, unit: str, value: bytes) -> None:
        """Store a unit."""
        self.known.add(unit)
        self.cache.append(unit, value)


def _tokens_of(value: bytes) -> tuple[int, int]:
    """Return the numbers of prompt and sampled tokens of a cached completion or observation; (0, 0) for other units.

    Those of an observation are the tokens of the models that its calls used.
    """
    data = orjson.loads(value)
    # Scores of rules are cached as lists; they cost no tokens.
    if not isinstance(data, dict):
        return 0, 0
    answers = data.get("calls", [data] if "endpoint" in data else [])
    prompt, completion = (sum(int(answer[name]) for answer in answers) for name in _TOKENS)
    return prompt, completion


_TOKENS = ("prompt_tokens", "completion_tokens")
