"""Count the requests and tokens of each role, also those of a rollout that raised an error or was cancelled."""

from __future__ import annotations

from dataclasses import dataclass, field

from treadle.agent.call_cache import CallCache
from treadle.agent.contract import Observation
from treadle.agent.trajectory import Trajectory
from treadle.core.llm.types import Completion


@dataclass(slots=True)
class RoleUsage:
    """Requests and tokens that a role used."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, prompt_tokens: int, completion_tokens: int, calls: int = 1) -> None:
        """Add the usage of a model's completions."""
        self.calls += calls
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens


def count_rollout(usage: dict[str, RoleUsage], trajectory: Trajectory, num_calls_before: int = 0) -> None:
    """Count the usage of a rollout: of the policy, and of the summarizer in the rollout's calls.

    The first `num_calls_before` calls were copied from a prefix and are not counted.
    """
    spent = trajectory.usage
    usage.setdefault("policy", RoleUsage()).add(spent.prompt_tokens, spent.completion_tokens, spent.num_requests)
    for call in trajectory.calls[num_calls_before:]:
        if call.prompt_tokens or call.completion_tokens:
            usage.setdefault("summarizer", RoleUsage()).add(call.prompt_tokens, call.completion_tokens)


@dataclass(frozen=True, slots=True)
class TrackedCache:
    """A rollout's cache that records, in order, which stored units (such as model replies) were read or added."""

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
            kind = unit.rpartition("/")[2].partition("-")[0]
            if kind == "tool":
                for call in Observation.from_json(value).calls:
                    if call.prompt_tokens or call.completion_tokens:
                        usage.setdefault("summarizer", RoleUsage()).add(call.prompt_tokens, call.completion_tokens)
            elif kind == "llm":  # others hold schemas of tools and the outcome
                answer = Completion.from_json(value)
                usage.setdefault("policy", RoleUsage()).add(answer.prompt_tokens, answer.completion_tokens)
