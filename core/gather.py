"""Wait for several coroutines at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

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
