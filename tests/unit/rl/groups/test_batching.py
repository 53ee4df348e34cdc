"""Batches of requests: which members are waited for, and how leaving works."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence

import pytest

from treadle.core.errors import EngineError
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.rl.groups.batching import BatchedModel, BatchMembership


def request(number: int) -> CompletionRequest:
    return CompletionRequest([number], 8, Sampling(), (), number)


def echo(requests: Sequence[CompletionRequest]) -> list[Completion]:
    return [Completion(str(asked.seed), (asked.seed,), "stop", None, 1, 1, "", 0.0, 0) for asked in requests]


async def ask(model: BatchedModel, number: int, deadline: float = math.inf) -> str:
    return (await model.complete(request(number), session="", deadline=deadline)).text


async def turns(number: int = 10) -> None:
    """Run everything that is ready."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_batch_waits_for_all_members_that_may_still_request() -> None:
    membership = BatchMembership()
    membership.enter(3)
    with BatchedModel(echo, membership) as model:
        asked = [asyncio.create_task(ask(model, number)) for number in range(2)]
        await turns()
        assert model.batch_sizes == []
        assert await ask(model, 2) == "2"
        assert await asyncio.gather(*asked) == ["0", "1"]
        assert model.batch_sizes == [3]


async def test_departed_member_is_not_waited_for() -> None:
    membership = BatchMembership()
    membership.enter(3)
    with BatchedModel(echo, membership) as model:
        asked = [asyncio.create_task(ask(model, number)) for number in range(2)]
        await turns()
        membership.leave()
        assert await asyncio.gather(*asked) == ["0", "1"]
        assert model.batch_sizes == [2]


async def test_cancelled_request_is_not_part_of_a_batch() -> None:
    membership = BatchMembership()
    membership.enter(3)
    with BatchedModel(echo, membership) as model:
        asked = [asyncio.create_task(ask(model, number)) for number in range(2)]
        await turns()
        asked[0].cancel()
        await turns()
        membership.leave()
        assert await ask(model, 2) == "2"
        assert await asked[1] == "1"
        assert model.batch_sizes == [2]


async def test_model_works_without_members() -> None:
    with BatchedModel(echo, BatchMembership()) as model:
        assert await ask(model, 1) == "1"


async def test_large_batches_are_split() -> None:
    membership = BatchMembership()
    membership.enter(5)
    with BatchedModel(echo, membership, max_batch=2) as model:
        answers = await asyncio.gather(*(ask(model, number) for number in range(5)))
        assert answers == list("01234")
        assert model.batch_sizes == [2, 2, 1]


async def test_duration_of_other_requests_costs_a_request_nothing() -> None:
    membership = BatchMembership()
    membership.enter(2)
    with BatchedModel(echo, membership, max_batch=1) as model:
        assert await asyncio.gather(ask(model, 0, -math.inf), ask(model, 1)) == ["0", "1"]


async def test_request_cancelled_during_a_batch_is_not_generated() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(requests: Sequence[CompletionRequest]) -> list[Completion]:
        begun.set()
        goes_on.wait()
        return echo(requests)

    membership = BatchMembership()
    membership.enter(3)
    with BatchedModel(slow, membership, max_batch=1) as model:
        asked = [asyncio.create_task(ask(model, number)) for number in range(3)]
        await asyncio.to_thread(begun.wait)
        asked[1].cancel()
        await turns()
        goes_on.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [answers[0], answers[2]] == ["0", "2"] and asked[1].cancelled()
        assert model.batch_sizes == [1, 1]


async def test_generator_error_affects_its_whole_batch_and_no_later_one() -> None:
    def broken(requests: Sequence[CompletionRequest]) -> list[Completion]:
        if len(requests) > 1:
            raise MemoryError("too many at once")
        return echo(requests)

    membership = BatchMembership()
    membership.enter(2)
    with BatchedModel(broken, membership) as model:
        errors = await asyncio.gather(ask(model, 0), ask(model, 1), return_exceptions=True)
        assert [type(error) for error in errors] == [MemoryError, MemoryError]
        membership.leave()
        assert await ask(model, 2) == "2"


async def test_generator_that_loses_answers_is_detected() -> None:
    with (
        BatchedModel(lambda _: [], BatchMembership()) as model,
        pytest.raises(EngineError, match="0 answers to 1 requests"),
    ):
        await ask(model, 0)
