"""Queries of many callers in one batch; the ranker is stopped by events, so that nothing depends on time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from treadle.retriever.batching import MicroBatcher, QueueFull
from treadle.retriever.index import Ranking


class HeldRanker:
    """Ranks a query as (its length, top_n); a batch waits until it is let go."""

    def __init__(self, held: bool = False) -> None:
        self.batches: list[tuple[list[str], int]] = []
        self.began = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.held = held
        self.failure: Exception | None = None

    def rank_batch(self, queries: Sequence[str], top_n: int) -> list[Ranking]:
        self.batches.append((list(queries), top_n))
        self.began.release()
        if self.held:
            self.go.acquire()
        if self.failure is not None:
            raise self.failure
        return [[(len(query), float(top_n))] for query in queries]


def batcher(ranker: HeldRanker, *, num_workers: int = 1, max_batch: int = 8, max_waiting: int = 100) -> MicroBatcher:
    return MicroBatcher(ranker, num_workers=num_workers, max_batch=max_batch, max_waiting=max_waiting)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_requests_arriving_while_the_worker_is_busy_become_one_batch() -> None:
    ranker = HeldRanker(held=True)
    async with batcher(ranker) as queries:
        first = asyncio.create_task(queries.rank(["a"], 3))
        await asyncio.to_thread(ranker.began.acquire)
        others = [asyncio.create_task(queries.rank(["b" * number], 3)) for number in range(1, 6)]
        await settle()
        assert queries.num_waiting == 5 and queries.num_free == 0
        ranker.go.release(2)
        assert await first == [[(1, 3.0)]]
        assert await asyncio.gather(*others) == [[[(number, 3.0)]] for number in range(1, 6)]
    assert [len(asked) for asked, _ in ranker.batches] == [1, 5]


async def test_batch_respects_its_size_limit_and_has_one_top_n() -> None:
    ranker = HeldRanker(held=True)
    async with batcher(ranker, max_batch=2) as queries:
        first = asyncio.create_task(queries.rank(["first"], 1))
        await asyncio.to_thread(ranker.began.acquire)
        others = [asyncio.create_task(queries.rank([f"q{number}"], 1 + number % 2)) for number in range(6)]
        await settle()
        ranker.go.release(10)
        await asyncio.gather(first, *others)
    sizes = [(len(asked), top_n) for asked, top_n in ranker.batches]
    assert sizes == [(1, 1), (2, 1), (2, 2), (1, 1), (1, 2)]
    assert ranker.batches[1][0] == ["q0", "q2"]


async def test_request_with_many_queries_is_answered_in_order_by_all_workers() -> None:
    ranker = HeldRanker()
    async with batcher(ranker, num_workers=2, max_batch=3) as queries:
        asked = ["x" * number for number in range(1, 11)]
        assert await queries.rank(asked, 4) == [[(number, 4.0)] for number in range(1, 11)]
        assert await queries.rank([], 4) == []
    assert max(len(names) for names, _ in ranker.batches) <= 3


async def test_equal_queries_of_a_batch_are_searched_once() -> None:
    ranker = HeldRanker(held=True)
    async with batcher(ranker) as queries:
        first = asyncio.create_task(queries.rank(["first"], 1))
        await asyncio.to_thread(ranker.began.acquire)
        same = [asyncio.create_task(queries.rank(["same"], 1)) for _ in range(4)]
        await settle()
        ranker.go.release(2)
        await asyncio.gather(first, *same)
    assert ranker.batches[1] == (["same"], 1)


async def test_queue_overflow_is_refused_immediately_and_affects_no_other_request() -> None:
    ranker = HeldRanker(held=True)
    async with batcher(ranker, max_waiting=2) as queries:
        first = asyncio.create_task(queries.rank(["first"], 1))
        await asyncio.to_thread(ranker.began.acquire)
        second = asyncio.create_task(queries.rank(["b", "c"], 1))
        await settle()
        with pytest.raises(QueueFull) as refusal:
            await queries.rank(["d"], 1)
        assert refusal.value.retry_after_s >= 1
        ranker.go.release(2)
        await asyncio.gather(first, second)
        ranker.held = False
        assert await queries.rank(["d"], 1) == [[(1, 1.0)]]


async def test_cancelled_query_is_not_searched() -> None:
    ranker = HeldRanker(held=True)
    async with batcher(ranker) as queries:
        first = asyncio.create_task(queries.rank(["first"], 1))
        await asyncio.to_thread(ranker.began.acquire)
        gone, kept = (asyncio.create_task(queries.rank([name], 1)) for name in ("gone", "kept"))
        await settle()
        gone.cancel()
        await settle()
        ranker.go.release(2)
        await asyncio.gather(first, kept)
        assert gone.cancelled()
    assert ranker.batches[1:] == [(["kept"], 1)]


async def test_cancelled_queries_take_no_places_while_all_workers_are_busy() -> None:
    ranker = HeldRanker(held=True)
    async with batcher(ranker, max_waiting=2) as queries:
        first = asyncio.create_task(queries.rank(["first"], 1))
        await asyncio.to_thread(ranker.began.acquire)
        gone = asyncio.create_task(queries.rank(["b", "c"], 1))
        await settle()
        gone.cancel()
        await settle()
        num_waiting = queries.num_waiting
        kept = asyncio.create_task(queries.rank(["d", "e"], 1))
        await settle()
        ranker.go.release(2)
        await first
        assert num_waiting == 0 and await kept == [[(1, 1.0)], [(1, 1.0)]]


async def test_failure_reaches_its_callers_and_the_next_batch_is_searched() -> None:
    ranker = HeldRanker()
    ranker.failure = RuntimeError("the index is broken")
    async with batcher(ranker) as queries:
        with pytest.raises(RuntimeError, match="broken"):
            await queries.rank(["a", "b"], 1)
        ranker.failure = None
        assert await queries.rank(["a"], 1) == [[(1, 1.0)]]


async def test_closing_cancels_waiting_requests() -> None:
    ranker = HeldRanker(held=True)
    async with batcher(ranker) as queries:
        tasks = [asyncio.create_task(queries.rank([name], 1)) for name in "abc"]
        await asyncio.to_thread(ranker.began.acquire)
        await settle()
    ranker.go.release(5)
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in done)
