"""Track the usage of a rollout that raised an error or was cancelled, and so returned no trajectory."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from treadle.agent.call_cache import CallCache
from treadle.agent.contract import Observation
from treadle.core.llm.types import Completion
from treadle.datagen.pools.pool import RoleUsage


@dataclass(frozen=True, slots=True)
class TrackedCache:
    """A rollout's cache that records which of its units were used, in their order."""

    cache: CallCache
    units: dict[str, None] = field(default_factory=dict)

    def get(self, unit: str) -> bytes | None:
        """Return a stored unit, or None."""
        value = self.cache.get(unit)
        if value is not None:
            self.units[unit] = None
        return value

    def append(self, unit: str, value: bytes) -> None:
        """Store a unit."""
        self.cache.append(unit, value)
        self.units[unit] = None

    def count(self, usage: dict[str, RoleUsage]) -> None:
        """Add the usage of policy and summarizer in the recorded units."""
        for unit in self.units:
            value = self.cache.get(unit)
            if value is None:
                continue
            if "calls" in orjson.loads(value):
                for call in Observation.from_json(value).calls:
                    if call.prompt_tokens or call.completion_tokens:
                        usage.setdefault("summarizer", RoleUsage()).add(call.prompt_tokens, call.completion_tokens)
            else:
                answer = Completion.from_json(value)
                usage.setdefault("policy", RoleUsage()).add(answer.prompt_tokens, answer.completion_tokens)
