"""Queries of many callers, answered together.

While all workers are busy, what arrives waits; a worker that becomes free takes as many waiting queries as one batch
may have. So batches grow with the load and nobody waits for a batch to fill. Documented in docs/behaviour/retrieval.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from typing import Protocol, Self

from treadle.core.errors import TreadleError
from treadle.retriever.index import Ranking

_LONGEST_RETRY_S = 30
_OLD_WEIGHT = 0.9


class Busy(TreadleError):
    """More queries wait than may: ask again after `retry_after_s` seconds."""

    retryable = True

    def __init__(self, num_waiting: int, retry_after_s: int) -> None:
        super().__init__(f"{num_waiting} queries are waiting already; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class Ranker(Protocol):
    """What is asked in worker threads: an index."""

    def rank_batch(self, queries: Sequence[str], top_n: int) -> list[Ranking]:
        """Row numbers and scores per query, best first."""
        ...


@dataclass(slots=True)
class _Waiting:
    query: str
    top_n: int
    answer: asyncio.Future[Ranking]


class MicroBatcher:
    """Use as an async context manager; `rank` may be called by any number of tasks of one event loop.

    Each of `num_workers` threads works on one batch of at most `max_batch` queries at a time; more than `max_waiting`
    queries are refused. All share one index.
    """

    def __init__(
        self,
        ranker: Ranker,
        *,
        num_workers: int,
        max_batch: int,
        max_waiting: int,
        on_batch: Callable[[int], None] = lambda size: None,
    ) -> None:
        """`on_batch` is told the size of each batch."""
        self._ranker = ranker
        self._num_workers = num_workers
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._on_batch = on_batch
        self._waiting: deque[_Waiting] = deque()
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
        """Cut off what waits; a batch that a thread has begun ends by itself."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._waiting:
            self._waiting.popleft().answer.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def num_waiting(self) -> int:
        """Queries that no worker has taken yet."""
        return len(self._waiting)

    @property
    def num_free(self) -> int:
        """Workers that are not searching now."""
        return self._num_workers - self._num_busy

    async def rank(self, queries: Sequence[str], top_n: int) -> list[Ranking]:
        """The ranking of each query, as `Index.rank_batch` gives it; cancelled, it gives its places up.

        Raises Busy where they would be too many, and what the index raises.
        """
        if len(self._waiting) + len(queries) > self._max_waiting:
            raise Busy(len(self._waiting), self._retry_after_s())
        loop = asyncio.get_running_loop()
        mine = [_Waiting(query, top_n, loop.create_future()) for query in queries]
        self._waiting.extend(mine)
        async with self._arrived:
            self._arrived.notify(ceil(len(mine) / self._max_batch))
        return await asyncio.gather(*(item.answer for item in mine))

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
            took = (loop.time() - started) / len(batch)
            self._seconds_per_query = _OLD_WEIGHT * self._seconds_per_query + (1 - _OLD_WEIGHT) * took

    def _take(self) -> list[_Waiting]:
        """Waiting queries with the `top_n` of the oldest, for an approximate index may rank otherwise for another."""
        batch: list[_Waiting] = []
        others: list[_Waiting] = []
        while self._waiting and len(batch) < self._max_batch:
            item = self._waiting.popleft()
            if item.answer.done():
                continue
            (batch if not batch or item.top_n == batch[0].top_n else others).append(item)
        self._waiting.extendleft(reversed(others))
        return batch

    async def _answer(self, batch: list[_Waiting]) -> None:
        # Agents of one question often ask the same at the same time.
        queries = list(dict.fromkeys(item.query for item in batch))
        self._on_batch(len(queries))
        loop = asyncio.get_running_loop()
        try:
            rankings = await loop.run_in_executor(self._threads, self._ranker.rank_batch, queries, batch[0].top_n)
        except asyncio.CancelledError:
            for item in batch:
                item.answer.cancel()
            raise
        # Whatever the index raises belongs to those who asked.
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
