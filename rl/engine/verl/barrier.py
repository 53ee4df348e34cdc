"""Synchronise the sessions of one group: verl runs each trajectory as a separate coroutine.

The first session to arrive starts the rollout of the whole group. Each session leaves with its own trajectory once all
have arrived and the group is finished. Any failure (an error, a session that is cancelled or never arrives, a timeout)
is raised in all sessions, so that verl marks the group as failed instead of waiting for it or training on a part of it.
This module does not depend on verl. Documented in docs/guides/verl.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from treadle.core.errors import EngineError

T = TypeVar("T")

GroupKey = tuple[str, int]
"""Group id set by the sampler, and step."""


class GroupFailed(EngineError):
    """Error for a group whose trajectories cannot be used; the message names the group and the reason."""


class GroupBarrier(Generic[T]):
    """Barrier for all groups in flight on one event loop of one process."""

    def __init__(self, timeout_s: float) -> None:
        """Set `timeout_s`, the maximum time from the arrival of a group's first session to the group's end."""
        self._timeout_s = timeout_s
        self._groups: dict[GroupKey, _PendingGroup[T]] = {}

    def __len__(self) -> int:
        """Return the number of groups in progress, and of failed groups that have not been dropped."""
        return len(self._groups)

    async def join(self, key: GroupKey, session: int, size: int, make: Callable[[], Awaitable[Sequence[T]]]) -> T:
        """Join a group as session number `session`, and return the item of this number in the result of `make`.

        Numbers are from 0 to `size` - 1. `make` rolls out the group; only that of the first session to arrive is
        called, once. Raises GroupFailed.
        """
        group = self._groups.get(key)
        if group is None:
            self._drop_failed_before(key[1])
            group = self._groups[key] = _PendingGroup(key, size, make, self._timeout_s)
        try:
            group.arrive(session)
            return (await group.end())[session]
        except asyncio.CancelledError:
            group.fail(f"session {session} was cancelled")
            raise
        finally:
            if group.leave():
                self._groups.pop(key, None)

    def _drop_failed_before(self, step: int) -> None:
        """Drop failed groups of earlier steps, which were kept for sessions that never arrived."""
        for key in [key for key, group in self._groups.items() if group.failed and key[1] < step]:
            del self._groups[key]


class _PendingGroup(Generic[T]):
    """State of one group."""

    def __init__(self, key: GroupKey, size: int, make: Callable[[], Awaitable[Sequence[T]]], timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._name = f"group {key[0]} of step {key[1]}"
        self._size = size
        self._arrived: set[int] = set()
        self._num_left = 0
        self._made: Sequence[T] | None = None
        self._end: asyncio.Future[Sequence[T]] = loop.create_future()
        # Retrieve the exception: if all sessions have left, asyncio would log it as never retrieved.
        self._end.add_done_callback(lambda end: end.exception())
        self._timer = loop.call_later(timeout_s, self._on_timeout, timeout_s)
        self._task = loop.create_task(self._make(make))

    @property
    def failed(self) -> bool:
        """True if the group ended with an error."""
        return self._end.done() and self._end.exception() is not None

    def arrive(self, session: int) -> None:
        """Register a session; fail the group if the session is already present or out of range."""
        if session in self._arrived or not 0 <= session < self._size:
            self.fail(f"session {session} joined twice, or is not one of {self._size}")
        self._arrived.add(session)
        self._settle()

    async def end(self) -> Sequence[T]:
        """Wait for the end of the group and return its items, one for each session; raise GroupFailed."""
        return await asyncio.shield(self._end)

    def leave(self) -> bool:
        """Deregister a session; return whether it was the last one."""
        self._num_left += 1
        return self._num_left >= self._size

    def fail(self, reason: str, cause: BaseException | None = None) -> None:
        """Fail the group for all sessions, unless it has already ended."""
        if self._end.done():
            return
        error = GroupFailed(f"{self._name} failed: {reason}")
        error.__cause__ = cause
        self._end.set_exception(error)
        self._timer.cancel()
        self._task.cancel()

    async def _make(self, make: Callable[[], Awaitable[Sequence[T]]]) -> None:
        try:
            made = await make()
            if len(made) != self._size:
                raise EngineError(f"{len(made)} trajectories were made for {self._size} sessions")
        # Any error must reach all sessions.
        except Exception as error:  # noqa: BLE001
            self.fail(f"{type(error).__name__}: {error}", error)
            return
        self._made = made
        self._settle()

    def _settle(self) -> None:
        if self._made is not None and len(self._arrived) == self._size and not self._end.done():
            self._timer.cancel()
            self._end.set_result(self._made)

    def _on_timeout(self, timeout_s: float) -> None:
        missing = self._size - len(self._arrived)
        what = (
            "its trajectories were not finished"
            if self._made is None
            else f"{missing} of {self._size} sessions did not join"
        )
        self.fail(f"{what} within {timeout_s:g} s")
