"""Several coroutines are waited for at once, also if some of them fail."""

from __future__ import annotations

import asyncio

import pytest

from treadle.core.gather import SharedResults, gather_all


async def test_all_are_waited_for_before_the_first_error_is_raised() -> None:
    ended: list[int] = []

    async def work(number: int) -> int:
        for _ in range(number):
            await asyncio.sleep(0)
        if number in (2, 4):
            raise ValueError(f"number {number}")
        ended.append(number)
        return number

    assert await gather_all([work(3), work(1)]) == [3, 1]
    ended.clear()
    with pytest.raises(ValueError, match="number 4"):
        await gather_all([work(number) for number in (9, 4, 2, 1)])
    assert ended == [1, 9]


async def test_shared_result_is_computed_once_and_the_oldest_one_is_dropped() -> None:
    shared, computed = SharedResults[str](2), list[str]()

    async def compute(key: str) -> str:
        computed.append(key)
        await asyncio.sleep(0)
        return key.upper()

    async def get(key: str) -> str:
        return await shared.get(key, lambda: compute(key))

    assert await gather_all([get("a"), get("a"), get("b")]) == ["A", "A", "B"]
    assert [await get("a"), await get("c"), await get("b"), await get("a")] == ["A", "C", "B", "A"]
    assert computed == ["a", "b", "c", "a"]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_failure_is_not_kept_although_its_caller_was_cancelled_before(is_cancelled: bool) -> None:
    shared, goes_on, tasks = SharedResults[int](8), asyncio.Event(), list[asyncio.Task[int]]()

    async def fail() -> int:
        tasks.append(asyncio.current_task())  # type: ignore[arg-type]
        await goes_on.wait()
        raise ValueError("the machine is busy")

    async def succeed() -> int:
        return 7

    caller = asyncio.create_task(shared.get("key", fail))
    while not tasks:
        await asyncio.sleep(0)
    caller.cancel()
    if is_cancelled:
        tasks[0].cancel()
    goes_on.set()
    await asyncio.wait([caller, *tasks])
    assert await shared.get("key", succeed) == 7
