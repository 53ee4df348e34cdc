"""Name the cached units of a rollout, and read them back."""

from __future__ import annotations

import re
from collections.abc import Iterator

from treadle.agent.call_cache import CallCache
from treadle.agent.contract import CallRecord, Observation
from treadle.core.llm.types import Completion

OUTCOME_UNIT = "outcome"
"""Unit with the outcome of the episode."""


def answer_unit(turn: int) -> str:
    """Return the name of the unit with the model's answer in a turn, counted from 0."""
    return f"llm-{turn}"


def context_unit(turn: int) -> str:
    """Return the name of the unit with the numbers of the segments that stay in a context trimmed before a turn."""
    return f"context-{turn}"


def call_unit(turn: int) -> str:
    """Return the name of the unit with the environment's reaction to a turn, counted from 0."""
    return f"tool-{turn}"


def asked_unit(role: str, number: int) -> str:
    """Return the name of the unit with the answer of the model in `role` to request `number` of the episode."""
    return f"ask/{role}-{number}"


def asked_role(unit: str) -> str | None:
    """Return the role in a name made by `asked_unit`, with or without a prefix `restart-<n>/`; None for other names."""
    found = _ASKED.search(unit)
    return found[1] if found else None


_ASKED = re.compile(r"^(?:restart-\d+/)?ask/(.+)-\d+$")


def cached_completions(cache: CallCache) -> Iterator[Completion]:
    """Yield the cached model answers of a rollout that began at turn 0, in the order of its turns."""
    turn = 0
    while (known := cache.get(answer_unit(turn))) is not None:
        yield Completion.from_json(known)
        turn += 1


def cached_calls(cache: CallCache, num_turns: int) -> Iterator[CallRecord]:
    """Yield the cached calls of the first `num_turns` turns of a rollout that began at turn 0."""
    for turn in range(num_turns):
        if (known := cache.get(call_unit(turn))) is not None:
            yield from Observation.from_json(known).calls
