"""Batch the queries of concurrent callers.

While all workers are busy, new queries wait. A worker that becomes free takes as many of them as fit into one batch. So
batches grow with the load, and no query waits for a batch to fill. See docs/behaviour/retrieval.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from typing import Self

from treadle.core.errors import TreadleError
from treadle.retriever.index import Index, Ranking

_LONGEST_RETRY_S = 30
_OLD_WEIGHT = 0.9


class QueueFull(TreadleError):
    """Queue overflow: too many queries are waiting; retry after `retry_after_s` seconds."""

    retryable = True

    def __init__(self, num_waiting: int, retry_after_s: int) -> None:
        super().__init__(f"{num_waiting} queries are waiting already; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class _QueuedQuery:
    query: str
    top_n: int
    answer: asyncio.Future[Ranking]


class MicroBatcher:
    """A queue of queries with worker threads. Use it as an async context manager.

    Any number of tasks of one event loop may call `rank`. Each of `num_workers` threads works on one batch of at most
    `max_batch` queries at a time. Queries beyond `max_waiting` are refused. All threads share one index.
    """

    def __init__(
        self,
        index: Index,
        *,
        num_workers: int,
        max_batch: int,
        max_waiting: int,
        on_batch: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Configure the batcher; `on_batch` is called with the size of each batch."""
        self._index = index
        self._num_workers = num_workers
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._on_batch = on_batch
        self._waiting: deque[_QueuedQuery] = deque()
        self._arrived = asyncio.Condition()
        self._threads: ThreadPoolExecutor | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._num_busy = 0
        self._seconds_per_query = 0.0

    async def __aenter__(self) -> Self:
        self._threads = ThreadPoolExecutor(self._num_workers, thread_name_prefix="search")
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._num_workers)]
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Cancel waiting queries; a batch that a thread has started runs to its end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._waiting:
            self._waiting.popleft().answer.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def num_waiting(self) -> int:
        """Number of queries that no worker has taken yet."""
        return len(self._waiting)

    @property
    def num_free(self) -> int:
        """Number of workers that are not searching now."""
        return self._num_workers - self._num_busy

    async def rank(self, queries: Sequence[str], top_n: int) -> list[Ranking]:
        """Return the ranking of each query, as `Index.rank_batch` does; cancellation frees its places in the queue.

        Raises QueueFull if there would be too many waiting queries, and whatever the index raises.
        """
        if len(self._waiting) + len(queries) > self._max_waiting:
            raise QueueFull(len(self._waiting), self._retry_after_s())
        loop = asyncio.get_running_loop()
        queued = [_QueuedQuery(query, top_n, loop.create_future()) for query in queries]
        self._waiting.extend(queued)
        try:
            async with self._arrived:
                self._arrived.notify(ceil(len(queued) / self._max_batch))
            return await asyncio.gather(*(item.answer for item in queued))
        except asyncio.CancelledError:
            for item in queued:
                item.answer.cancel()
            self._waiting = deque(item for item in self._waiting if not item.answer.done())
            raise

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            async with self._arrived:
                while not (batch := self._take()):
                    await self._arrived.wait()
            self._num_busy += 1
            started = loop.time()
            try:
                await self._answer(batch)
            finally:
                self._num_busy -= 1
            seconds_per_query = (loop.time() - started) / len(batch)
            self._seconds_per_query = _OLD_WEIGHT * self._seconds_per_query + (1 - _OLD_WEIGHT) * seconds_per_query

    def _take(self) -> list[_QueuedQuery]:
        """Take waiting queries that ask for the same `top_n` as the oldest one.

        An approximate index may rank differently for another `top_n`.
        """
        batch: list[_QueuedQuery] = []
        others: list[_QueuedQuery] = []
        while self._waiting and len(batch) < self._max_batch:
            item = self._waiting.popleft()
            if item.answer.done():
                continue
            (batch if not batch or item.top_n == batch[0].top_n else others).append(item)
        self._waiting.extendleft(reversed(others))
        return batch

    async def _answer(self, batch: list[_QueuedQuery]) -> None:
        # Rollouts of one question often send the same query at the same time.
        queries = list(dict.fromkeys(item.query for item in batch))
        self._on_batch(len(queries))
        loop = asyncio.get_running_loop()
        try:
            rankings = await loop.run_in_executor(self._threads, self._index.rank_batch, queries, batch[0].top_n)
        except asyncio.CancelledError:
            for item in batch:
                item.answer.cancel()
            raise
        # Pass any error of the index to the callers of these queries.
        except Exception as error:  # noqa: BLE001
            for item in batch:
                if not item.answer.done():
                    item.answer.set_exception(error)
            return
        found = dict(zip(queries, rankings, strict=True))
        for item in batch:
            if not item.answer.done():
                item.answer.set_result(found[item.query])

    def _retry_after_s(self) -> int:
        seconds = len(self._waiting) * self._seconds_per_query / self._num_workers
        return max(1, min(_LONGEST_RETRY_S, ceil(seconds)))
