from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers.own_clock import run as on_virtual_clock

from treadle.core.errors import ToolError
from treadle.environments.planning.graph import PlanNode, checked_plan
from treadle.environments.planning.scheduler import ScheduledResult, Scheduling, run_scheduled, waits_for

MODES: tuple[Scheduling, ...] = ("tags", "levels", "dataflow")
EXAMPLE = {"T1": [], "T2": [], "T3": ["T1"], "T4": ["T2", "T3"]}
SECONDS = {"T1": 2.0, "T2": 5.0, "T3": 4.0, "T4": 1.0}


async def _timed(
    depends_on: Mapping[str, list[str]],
    seconds: Mapping[str, float],
    scheduling: Scheduling,
    *,
    max_parallel: int | None = None,
    failing: str = "",
    raising: str = "",
) -> tuple[float, dict[str, ScheduledResult[str]], dict[str, tuple[float, float]]]:
    """Return the total time, the results, and start and end of each call that ran to its end."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    spans: dict[str, tuple[float, float]] = {}
    errors: list[ToolError] = []

    async def call(id: str, results: Mapping[str, str]) -> str:
        start = loop.time() - began
        await asyncio.sleep(seconds[id])
        if id == raising:
            raise ToolError("out of order")
        spans[id] = start, loop.time() - began
        return "failed" if id == failing else "+".join([*(results[other] for other in depends_on[id]), id])

    try:
        results = await run_scheduled(
            depends_on, call, scheduling=scheduling, has_failed=lambda one: one == "failed", max_parallel=max_parallel
        )
    except ToolError as error:
        errors.append(error)
        results = {}
    assert bool(errors) == bool(raising)
    return loop.time() - began, results, spans


@pytest.mark.parametrize(("scheduling", "expected"), [("levels", 10.0), ("dataflow", 7.0)])
def test_example_takes_its_time(scheduling: Scheduling, expected: float) -> None:
    took, results, _ = on_virtual_clock(_timed(EXAMPLE, SECONDS, scheduling))
    assert took == pytest.approx(expected)
    assert [one.value for one in results.values()] == ["T1", "T2", "T1+T3", "T2+T1+T3+T4"]


def test_one_at_a_time_takes_the_sum() -> None:
    took, _, _ = on_virtual_clock(_timed(EXAMPLE, SECONDS, "dataflow", max_parallel=1))
    assert took == pytest.approx(12.0)


def test_failed_call_blocks_its_descendants_alone() -> None:
    _, results, spans = on_virtual_clock(_timed(EXAMPLE, SECONDS, "levels", failing="T1"))
    assert spans.keys() == {"T1", "T2"}
    assert [one.blocked_by for one in results.values()] == [(), (), ("T1",), ("T1",)]


def test_tags_ignore_dependencies() -> None:
    depends_on: dict[str, list[str]] = {"a": [], "b": []}
    took, results, _ = on_virtual_clock(_timed(depends_on, {"a": 3.0, "b": 1.0}, "tags", failing="a"))
    assert took == pytest.approx(3.0)
    assert list(results) == ["a", "b"]
    assert waits_for(EXAMPLE, "tags") == dict.fromkeys(EXAMPLE, frozenset())


@pytest.mark.parametrize("scheduling", ["levels", "dataflow"])
def test_calls_that_do_not_need_a_raising_one_still_end(scheduling: Scheduling) -> None:
    depends_on = {"a": [], "b": [], "c": ["a"], "d": ["b"], "e": ["c", "d"]}
    seconds = dict.fromkeys(depends_on, 1.0) | {"b": 5.0}
    _, _, spans = on_virtual_clock(_timed(depends_on, seconds, scheduling, raising="a"))
    assert spans.keys() == {"b", "d"}


def test_cancelling_cancels_all_calls() -> None:
    async def cancelled() -> list[str]:
        ended: list[str] = []

        async def call(id: str, results: Mapping[str, str]) -> str:
            try:
                await asyncio.sleep(100)
            finally:
                ended.append(id)
            return id

        work = asyncio.ensure_future(
            run_scheduled({"a": [], "b": []}, call, scheduling="tags", has_failed=lambda one: False)
        )
        await asyncio.sleep(1)
        work.cancel()
        await asyncio.wait([work])
        assert work.cancelled()
        return ended

    assert on_virtual_clock(cancelled()) == ["a", "b"]


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    """Draw a graph without cycles, its ids in any order."""
    size = draw(st.integers(1, 12))
    names = [f"T{number}" for number in range(size)]
    needed = {name: draw(st.lists(st.sampled_from(names[:index]), unique=True) if index else st.just([]))
              for index, name in enumerate(names)}  # fmt: skip
    return {name: needed[name] for name in draw(st.permutations(names))}


@given(graphs(), st.data(), st.sampled_from(MODES), st.integers(1, 4))
def test_calls_start_when_what_they_wait_for_has_ended(
    depends_on: dict[str, list[str]], data: st.DataObject, scheduling: Scheduling, max_parallel: int
) -> None:
    seconds = {id: float(data.draw(st.integers(1, 5))) for id in depends_on}
    if scheduling == "tags":
        depends_on = {id: [] for id in depends_on}
    took, results, spans = on_virtual_clock(_timed(depends_on, seconds, scheduling, max_parallel=max_parallel))
    assert list(results) == list(depends_on)
    assert spans.keys() == depends_on.keys()
    waits = waits_for(depends_on, scheduling)
    for id, (start, _) in spans.items():
        assert all(spans[other][1] <= start for other in waits[id])
        in_flight = [other for other, (begin, end) in spans.items() if begin <= start < end]
        assert len(in_flight) <= max_parallel
        # No call waits without a reason: either something it waits for ends at its start, or a place becomes free.
        if start > 0:
            assert any(end == start for _, end in spans.values())
    assert took == max(end for _, end in spans.values())


@given(graphs())
def test_levels_wait_for_the_level_below(depends_on: dict[str, list[str]]) -> None:
    plan = checked_plan([PlanNode(id, "", tuple(others)) for id, others in depends_on.items()])
    levels = plan.levels()
    waits = waits_for(depends_on, "levels")
    for number, level in enumerate(levels):
        for id in level:
            assert waits[id] == frozenset(levels[number - 1] if number else ())
