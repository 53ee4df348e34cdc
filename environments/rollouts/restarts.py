"""Begin a rollout again if its episode cannot be resumed; its earlier samples stay in the journal as void."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from treadle.agent.cached_units import cached_calls, cached_completions
from treadle.agent.call_cache import CallCache, ScopedCache
from treadle.agent.contract import CallRecord, EpisodeDiverged
from treadle.agent.trajectory import Trajectory
from treadle.core.errors import ToolError
from treadle.core.llm.types import Completion
from treadle.core.seeds import derive_seed

MAX_RESTARTS = 20
"""Restarts of one rollout after which the environment counts as broken."""


async def roll_out_again(
    roll_out: Callable[[int, CallCache], Awaitable[Trajectory]], seed: int, cache: CallCache
) -> Trajectory:
    """Run a rollout; if its episode diverges from the journal, run it with another seed and another scope of the cache.

    Raises ToolError if it diverges more than `MAX_RESTARTS` times.
    """
    number = _num_restarts(cache)
    while True:
        try:
            trajectory = await roll_out(derive_seed(seed, "restart", number) if number else seed, _scope(cache, number))
        except EpisodeDiverged as error:
            if number == MAX_RESTARTS:
                raise ToolError(f"an episode was begun again {number} times: {error}; check its environment") from None
            cache.append(_marker(number), str(error).encode())
            number += 1
            continue
        if number:
            trajectory.usage.num_restarts = number
            trajectory.usage.voided_tokens = sum(sum(tokens) for tokens in _tokens(_voided(cache, number)))
        return trajectory


def cached_usage(cache: CallCache) -> Iterator[Completion | CallRecord]:
    """Yield the cached answers and calls of a rollout, those from before its restarts included."""
    number = _num_restarts(cache)
    yield from _voided(cache, number)
    yield from _cached(_scope(cache, number))


def _voided(cache: CallCache, number: int) -> Iterator[Completion | CallRecord]:
    for earlier in range(number):
        yield from _cached(_scope(cache, earlier))


def _cached(cache: CallCache) -> Iterator[Completion | CallRecord]:
    answers = list(cached_completions(cache))
    yield from answers
    yield from cached_calls(cache, len(answers))


def _tokens(used: Iterator[Completion | CallRecord]) -> Iterator[tuple[int, int]]:
    return ((one.prompt_tokens, one.completion_tokens) for one in used)


def _num_restarts(cache: CallCache) -> int:
    number = 0
    while cache.get(_marker(number)) is not None:
        number += 1
    return number


def _scope(cache: CallCache, number: int) -> CallCache:
    return ScopedCache(cache, f"restart-{number}") if number else cache


def _marker(number: int) -> str:
    return f"void-{number}"
