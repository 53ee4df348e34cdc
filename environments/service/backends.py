"""Hold instances in the service's own process, and define the interface of instances in any process."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import time
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any, Protocol, TypeVar

from treadle.agent.contract import Task
from treadle.environments.service.errors import WorkerGone
from treadle.environments.service.hosting import EnvironmentHost, HeldInstance, TaskRow
from treadle.environments.service.worker import act

_log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_CPU_S = 0.05
"""Most processor seconds that a call may take in the service's own process, which answers no other call meanwhile."""

_DROP_S = 0.5
"""Seconds that the episode of a killed instance gets to close; the caller of `kill` waits meanwhile."""


class Backend(Protocol):
    """An instance, in the service's process or in one of its own.

    The service calls `start` first and makes one call at a time; after it cancels a call, it calls `kill`.
    """

    @property
    def pid(self) -> int | None:
        """Id of the instance's process; None if the instance has no process of its own."""
        ...

    async def start(self, params: Mapping[str, Any]) -> Any:
        """Begin the episode; return its first state. Raises the errors of `call`, OSError and EngineError."""
        ...

    async def call(self, op: str, messages: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
        """Carry out `step`, `evaluate` or `get_info`. Raises WorkerGone, RequestUnfit and any error of the environment.

        Errors of an environment in another process are raised as EnvironmentFailed.
        """
        ...

    async def close(self) -> None:
        """Let the instance release what it holds, however long that takes, and end it."""
        ...

    async def kill(self) -> None:
        """End the instance, even during a call."""
        ...


class LocalInstance:
    """Instance in the service's own process; see `Backend`."""

    __slots__ = ("_held", "_make", "_on_cpu")

    def __init__(self, host: EnvironmentHost, task: TaskRow, instance_id: str, on_cpu: Callable[[float], None]) -> None:
        """Prepare the instance; `on_cpu` is called with the processor time of each call in seconds."""
        self._make: Callable[[], HeldInstance] | None = lambda: host.instance(Task.from_row(task), instance_id)
        self._held: HeldInstance | None = None
        self._on_cpu = on_cpu

    @property
    def pid(self) -> None:
        """None: the process is that of the service."""
        return None

    async def start(self, params: Mapping[str, Any]) -> Any:
        """See `Backend`."""
        return await measured(self._started(params), self._on_cpu)

    async def call(self, op: str, messages: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
        """See `Backend`."""
        if self._held is None:
            raise WorkerGone
        return await measured(act(self._held, op, messages, params), self._on_cpu)

    async def close(self) -> None:
        """See `Backend`."""
        held, self._held = self._held, None
        if held is not None:
            await held.close()

    async def kill(self) -> None:
        """Close the episode, whose call was cancelled; cancel closing, too, if it takes longer than `_DROP_S`."""
        closing = asyncio.create_task(self.close())
        await asyncio.wait([closing], timeout=_DROP_S)
        if not closing.done():
            closing.cancel()
        elif (error := closing.exception()) is not None:
            _log.error("a dropped instance could not be closed", exc_info=error)

    async def _started(self, params: Mapping[str, Any]) -> Any:
        assert self._make is not None
        self._held, self._make = self._make(), None
        return await self._held.start(params)


class CollectionClock:
    """Processor time of the garbage collector: it runs during any call, and collects objects of all instances.

    Attributes:
        spent_s: Seconds so far.
    """

    def __init__(self) -> None:
        """Begin to count."""
        self.spent_s = 0.0
        self._began_s = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        now_s = time.thread_time()
        if phase == "start":
            self._began_s = now_s
        else:
            self.spent_s += now_s - self._began_s


@functools.cache
def _collection_clock() -> CollectionClock:
    return CollectionClock()


@types.coroutine
def measured(work: Coroutine[Any, Any, T], on_cpu: Callable[[float], None]) -> Generator[Any, Any, T]:
    """Await a coroutine, and report how much processor time its own steps took.

    Time spent waiting and time of the garbage collector do not count.
    """
    spent_s, error, collections = 0.0, None, _collection_clock()
    try:
        while True:
            began = time.thread_time() - collections.spent_s
            try:
                waits_for = work.send(None) if error is None else work.throw(error)
            except StopIteration as stop:
                value: T = stop.value
                return value
            finally:
                spent_s += time.thread_time() - collections.spent_s - began
            error = None
            try:
                yield waits_for
            except BaseException as thrown:  # noqa: BLE001 - a cancellation belongs to the coroutine
                error = thrown
    finally:
        on_cpu(spent_s)
