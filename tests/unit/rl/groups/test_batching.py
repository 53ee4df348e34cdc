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
from treadle.rl.groups.batching import Attendance, BatchedModel


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


async def test_a_batch_waits_for_all_who_may_still_ask() -> None:
    attendance = Attendance()
    attendance.enter(3)
    with BatchedModel(echo, attendance) as model:
        asked = [asyncio.create_task(ask(model, number)) for number in range(2)]
        await turns()
        assert model.batch_sizes == []
        assert await ask(model, 2) == "2"
        assert await asyncio.gather(*asked) == ["0", "1"]
        assert model.batch_sizes == [3]


async def test_who_leaves_is_waited_for_no_longer() -> None:
    attendance = Attendance()
    attendance.enter(3)
    with BatchedModel(echo, attendance) as model:
        asked = [asyncio.create_task(ask(model, number)) for number in range(2)]
        await turns()
        attendance.leave()
        assert await asyncio.gather(*asked) == ["0", "1"]
        assert model.batch_sizes == [2]


async def test_a_request_that_is_cancelled_is_no_part_of_a_batch() -> None:
    attendance = Attendance()
    attendance.enter(3)
    with BatchedModel(echo, attendance) as model:
        asked = [asyncio.create_task(ask(model, number)) for number in range(2)]
        await turns()
        asked[0].cancel()
        await turns()
        attendance.leave()
        assert await ask(model, 2) == "2"
        assert await asked[1] == "1"
        assert model.batch_sizes == [2]


async def test_nobody_needs_to_attend() -> None:
    with BatchedModel(echo, Attendance()) as model:
        assert await ask(model, 1) == "1"


async def test_large_batches_are_divided() -> None:
    attendance = Attendance()
    attendance.enter(5)
    with BatchedModel(echo, attendance, max_batch=2) as model:
        answers = await asyncio.gather(*(ask(model, number) for number in range(5)))
        assert answers == list("01234")
        assert model.batch_sizes == [2, 2, 1]


async def test_how_long_others_take_costs_a_request_nothing() -> None:
    attendance = Attendance()
    attendance.enter(2)
    with BatchedModel(echo, attendance, max_batch=1) as model:
        assert await asyncio.gather(ask(model, 0, -math.inf), ask(model, 1)) == ["0", "1"]


async def test_who_is_cancelled_while_others_are_answered_is_not_asked_for() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(requests: Sequence[CompletionRequest]) -> list[Completion]:
        begun.set()
        goes_on.wait()
        return echo(requests)

    attendance = Attendance()
    attendance.enter(3)
    with BatchedModel(slow, attendance, max_batch=1) as model:
        asked = [asyncio.create_task(ask(model, number)) for number in range(3)]
        await asyncio.to_thread(begun.wait)
        asked[1].cancel()
        await turns()
        goes_on.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [answers[0], answers[2]] == ["0", "2"] and asked[1].cancelled()
        assert model.batch_sizes == [1, 1]


async def test_an_error_of_the_generator_meets_all_of_its_batch_and_no_later_one() -> None:
    def broken(requests: Sequence[CompletionRequest]) -> list[Completion]:
        if len(requests) > 1:
            raise MemoryError("too many at once")
        return echo(requests)

    attendance = Attendance()
    attendance.enter(2)
    with BatchedModel(broken, attendance) as model:
        errors = await asyncio.gather(ask(model, 0), ask(model, 1), return_exceptions=True)
        assert [type(error) for error in errors] == [MemoryError, MemoryError]
        attendance.leave()
        assert await ask(model, 2) == "2"


async def test_a_generator_that_loses_answers_is_found_out() -> None:
    with BatchedModel(lambda _: [], Attendance()) as model, pytest.raises(EngineError, match="0 answers to 1 requests"):
        await ask(model, 0)
