"""Run calls that depend on each other: as soon as their inputs have ended, level by level, or all at once.

The scheduler does not depend on tools, texts or dialects: it gets only the ids that each call waits for.
Papers: arXiv 2510.25320, section 3.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

Scheduling = Literal["tags", "levels", "dataflow"]
"""How the calls of a turn are run: `tags` starts all at once; `levels` runs the levels of the plan one after the other;
`dataflow` starts each call when the calls that it depends on have ended."""

T_Result = TypeVar("T_Result")


@dataclass(frozen=True, slots=True)
class ScheduledResult(Generic[T_Result]):
    """End of one call.

    Attributes:
        value: What the call returned; None if it was not run.
        blocked_by: Ids of the calls that failed and on which it depends, directly or not; such a call was not run.
    """

    value: T_Result | None
    blocked_by: tuple[str, ...] = ()


def waits_for(depends_on: Mapping[str, Sequence[str]], scheduling: Scheduling) -> dict[str, frozenset[str]]:
    """Return the ids that each call waits for.

    `depends_on` maps each id to the ids that it needs, which are keys of the mapping, too, in any order. There must be
    no cycles.
    """
    if scheduling == "tags":
        return dict.fromkeys(depends_on, frozenset())
    if scheduling == "dataflow":
        return {id: frozenset(others) for id, others in depends_on.items()}
    level_of: dict[str, int] = {}
    pending = deque(depends_on)
    while pending:
        id = pending.popleft()
        levels = [level_of.get(other, -1) for other in depends_on[id]]
        if -1 in levels:
            pending.append(id)
        else:
            level_of[id] = 1 + max(levels, default=-1)
    members: dict[int, set[str]] = {}
    for id, level in level_of.items():
        members.setdefault(level, set()).add(id)
    return {id: frozenset(members.get(level_of[id] - 1, ())) for id in depends_on}


async def run_scheduled(
    depends_on: Mapping[str, Sequence[str]],
    run: Callable[[str, Mapping[str, T_Result]], Coroutine[Any, Any, T_Result]],
    *,
    scheduling: Scheduling,
    has_failed: Callable[[T_Result], bool],
    max_parallel: int | None = None,
) -> dict[str, ScheduledResult[T_Result]]:
    """Run calls, at most `max_parallel` at a time, and return their results in the order of `depends_on`.

    `run` gets an id and the results so far. A call that depends on a failed one is not run; with `tags` nothing depends
    on anything. Calls that may not start yet wait in their order. If `run` raises, the calls that do not depend on the
    failed one still run to their end, so that their results are not lost; then the first error is raised. If the
    scheduler itself is cancelled, so are all calls.
    """
    needed = dict.fromkeys(depends_on, ()) if scheduling == "tags" else depends_on
    schedule = _Schedule(needed, waits_for(depends_on, scheduling), has_failed)
    running: dict[asyncio.Task[T_Result], str] = {}
    try:
        while True:
            for id in schedule.startable(None if max_parallel is None else max_parallel - len(running)):
                running[asyncio.ensure_future(run(id, schedule.values))] = id
            if not running:
                break
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in running if task in done]:
                schedule.end(running.pop(task), task)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    if schedule.errors:
        raise schedule.errors[0]
    return {id: schedule.results[id] for id in depends_on}


class _Schedule(Generic[T_Result]):
    """State of the calls of one turn."""

    def __init__(
        self,
        needed: Mapping[str, Sequence[str]],
        waits: Mapping[str, frozenset[str]],
        has_failed: Callable[[T_Result], bool],
    ) -> None:
        self.values: dict[str, T_Result] = {}
        self.results: dict[str, ScheduledResult[T_Result]] = {}
        self.errors: list[BaseException] = []
        self._needed = needed
        self._waiting = {id: set(others) for id, others in waits.items()}
        self._has_failed = has_failed
        self._failed: dict[str, tuple[str, ...]] = {}
        """Id of a failed call -> its id; id of a call that was not run because of failed calls -> their ids."""
        self._pending: set[str] = set()
        """Calls that raised, and those that need one of them: they have no result."""

    def startable(self, num_free: int | None) -> list[str]:
        """Return the ids of the next calls to start, in order, at most `num_free`; give up those that cannot run."""
        while passed := [id for id, others in self._waiting.items() if not others and self._is_passed(id)]:
            for id in passed:
                self._release(id)
        ready = [id for id, others in self._waiting.items() if not others][:num_free]
        for id in ready:
            del self._waiting[id]
        return ready

    def _is_passed(self, id: str) -> bool:
        needed = self._needed[id]
        if not self._pending.isdisjoint(needed):
            self._pending.add(id)
            return True
        blocked = tuple(dict.fromkeys(cause for other in needed for cause in self._failed.get(other, ())))
        if blocked:
            self.results[id] = ScheduledResult(None, blocked)
            self._failed[id] = blocked
        return bool(blocked)

    def end(self, id: str, task: asyncio.Task[T_Result]) -> None:
        """Take the result of a call that has ended."""
        if (error := task.exception()) is not None:
            self.errors.append(error)
            self._pending.add(id)
        else:
            value = self.values[id] = task.result()
            self.results[id] = ScheduledResult(value)
            if self._has_failed(value):
                self._failed[id] = (id,)
        self._release(id)

    def _release(self, id: str) -> None:
        self._waiting.pop(id, None)
        for others in self._waiting.values():
            others.discard(id)
