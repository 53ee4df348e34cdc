"""Wait for several coroutines at once, and share the result of one among several callers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

T_Result = TypeVar("T_Result")


async def gather_or_cancel(works: Sequence[Coroutine[Any, Any, T_Result]]) -> list[T_Result]:
    """Return the results of coroutines in order; on the first error cancel the others and raise it unchanged.

    `asyncio.gather` would let the others continue unnoticed, and a task group would wrap the error.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def gather_all(works: Sequence[Coroutine[Any, Any, T_Result]]) -> list[T_Result]:
    """Return the results of coroutines in order; on errors wait for the others as well, then raise the first one.

    For requests that are paid for: the replies to the others arrive and are kept before a retry asks again.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


class SharedResults(Generic[T_Result]):
    """Results by key, each computed once for all that ask for it, on one event loop; a failure is not kept."""

    def __init__(self, most: int) -> None:
        """Create an empty store, which keeps the `most` newest results."""
        self._most = most
        self._tasks: OrderedDict[str, asyncio.Task[T_Result]] = OrderedDict()

    async def get(self, key: str, compute: Callable[[], Coroutine[Any, Any, T_Result]]) -> T_Result:
        """Return the result for a key, computed unless it is known or in progress; raise what the computation raises.

        The computation continues if its callers are cancelled.
        """
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.ensure_future(compute())
            task.add_done_callback(lambda done: self._drop_failed(key, done))
            if len(self._tasks) > self._most:
                self._tasks.popitem(last=False)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Forget all results, and cancel what is in progress."""
        tasks, self._tasks = list(self._tasks.values()), OrderedDict()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop_failed(self, key: str, done: asyncio.Task[T_Result]) -> None:
        # Not left to the callers: they may have been cancelled before the computation failed.
        if (done.cancelled() or done.exception() is not None) and self._tasks.get(key) is done:
            del self._tasks[key]
