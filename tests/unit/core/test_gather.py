"""Several coroutines are waited for at once, also if some of them fail."""

from __future__ import annotations

import asyncio

import pytest

from treadle.core.gather import gather_all


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
