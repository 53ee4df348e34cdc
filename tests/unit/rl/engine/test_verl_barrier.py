"""Sessions of a group wait for each other, or all of them fail; no verl, no model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from treadle.core.errors import EngineError
from treadle.rl.engine.verl.barrier import GroupBarrier, GroupFailed

KEY = ("g", 3)
NEVER_S = 3600.0


def making(items: Sequence[str]) -> Callable[[], Coroutine[Any, Any, Sequence[str]]]:
    async def make() -> Sequence[str]:
        return items

    return make


async def ends(sessions: Sequence[asyncio.Task[str]]) -> list[str]:
    """Return the result of each session: its item, or the name of its error."""
    results = await asyncio.gather(*sessions, return_exceptions=True)
    return [result if isinstance(result, str) else type(result).__name__ for result in results]


async def run_ready_tasks() -> None:
    """Let everything that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_each_session_gets_its_own_item() -> None:
    barrier: GroupBarrier[str] = GroupBarrier(NEVER_S)
    calls = []

    async def make() -> list[str]:
        calls.append(1)
        return ["a", "b", "c"]

    order = (2, 0, 1)
    sessions = [asyncio.create_task(barrier.join(KEY, session, 3, make)) for session in order]
    assert await ends(sessions) == ["c", "a", "b"]
    assert calls == [1] and len(barrier) == 0


async def test_no_session_leaves_before_the_last_one_arrives() -> None:
    barrier: GroupBarrier[str] = GroupBarrier(NEVER_S)
    first = asyncio.create_task(barrier.join(KEY, 0, 2, making(["a", "b"])))
    await run_ready_tasks()
    assert not first.done()
    assert await barrier.join(KEY, 1, 2, making(["?", "?"])) == "b"
    assert await first == "a"


async def test_same_question_in_another_step_is_another_group() -> None:
    barrier: GroupBarrier[str] = GroupBarrier(NEVER_S)
    early = asyncio.create_task(barrier.join(("g", 1), 0, 1, making(["early"])))
    late = asyncio.create_task(barrier.join(("g", 2), 0, 1, making(["late"])))
    assert await ends([early, late]) == ["early", "late"]


@pytest.mark.covers("pareto-31")
async def test_error_reaches_all_sessions() -> None:
    barrier: GroupBarrier[str] = GroupBarrier(NEVER_S)

    async def make() -> list[str]:
        await asyncio.sleep(0)
        raise EngineError("the server is gone")

    sessions = [asyncio.create_task(barrier.join(KEY, session, 3, make)) for session in range(3)]
    assert await ends(sessions) == ["GroupFailed"] * 3
    with pytest.raises(GroupFailed, match="group g of step 3 failed: EngineError: the server is gone"):
        await sessions[0]
    assert len(barrier) == 0


@pytest.mark.covers("pareto-31")
async def test_cancelled_session_releases_the_others() -> None:
    barrier: GroupBarrier[str] = GroupBarrier(NEVER_S)
    forever = asyncio.Event()
    cancelled = []

    async def make() -> list[str]:
        try:
            await forever.wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise
        return []

    sessions = [asyncio.create_task(barrier.join(KEY, session, 3, make)) for session in range(3)]
    await run_ready_tasks()
    sessions[1].cancel()
    assert await ends(sessions) == ["GroupFailed", "CancelledError", "GroupFailed"]
    assert cancelled == [1] and len(barrier) == 0


@pytest.mark.covers("pareto-31")
async def test_absent_session_costs_only_the_timeout() -> None:
    barrier: GroupBarrier[str] = GroupBarrier(0.01)
    sessions = [asyncio.create_task(barrier.join(KEY, session, 3, making("abc"))) for session in range(2)]
    assert await ends(sessions) == ["GroupFailed"] * 2
    with pytest.raises(GroupFailed, match=r"1 of 3 sessions did not join within 0\.01 s"):
        await sessions[0]
    with pytest.raises(GroupFailed):
        await barrier.join(KEY, 2, 3, making("abc"))


async def test_hung_rollout_costs_only_the_timeout() -> None:
    barrier: GroupBarrier[str] = GroupBarrier(0.01)

    async def make() -> list[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(GroupFailed, match="its trajectories were not finished within"):
        await barrier.join(KEY, 0, 1, make)


async def test_too_few_trajectories_are_a_failure() -> None:
    barrier: GroupBarrier[str] = GroupBarrier(NEVER_S)
    with pytest.raises(GroupFailed, match="1 trajectories were made for 2 sessions"):
        await asyncio.gather(*(barrier.join(KEY, session, 2, making("a")) for session in range(2)))


async def test_duplicate_session_fails_the_group() -> None:
    barrier: GroupBarrier[str] = GroupBarrier(NEVER_S)
    sessions = [asyncio.create_task(barrier.join(KEY, 0, 2, making("ab"))) for _ in range(2)]
    assert await ends(sessions) == ["GroupFailed"] * 2


async def test_failed_groups_are_forgotten_in_later_steps() -> None:
    barrier: GroupBarrier[str] = GroupBarrier(0.01)
    with pytest.raises(GroupFailed):
        await barrier.join(("g", 1), 0, 2, making("ab"))
    assert len(barrier) == 1
    assert await barrier.join(("h", 2), 0, 1, making("a")) == "a"
    assert len(barrier) == 0
