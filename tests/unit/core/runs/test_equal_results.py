"""Results of an earlier iteration are reused, not made twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.runs.counting_stage import (
    CALLS,
    DOUBLING,
    count,
    counting,
    no_calls,  # noqa: F401 - an autouse fixture
    numbers_of,
)

from treadle.core.errors import JobsPending, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import equal_result, execute, planned_action
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, StageContext
from treadle.tasks.planning.forced_runs import forced_run, is_forced
from treadle.tasks.planning.plan import equal_work, plan
from treadle.tasks.prefect.stage_card import stage_card


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "r1", {}, {})


def at(iteration: int, item: Instance) -> Instance:
    """Return the same work in an iteration, on what that iteration made."""
    inputs = {name: tuple(replace(one, iteration=iteration) for one in given) for name, given in item.inputs.items()}
    return replace(item, address=replace(item.address, iteration=iteration), inputs=inputs)


def flow(**second: Any) -> list[Instance]:
    """Two iterations of two stages; the second one may count otherwise."""
    return [counting(), DOUBLING, at(2, counting(**second)), at(2, DOUBLING)]


def test_equal_work_of_a_later_iteration_is_not_repeated(run: Run) -> None:
    records = [execute(item, run) for item in flow()]
    assert CALLS == [0, 1, 2]
    first, taken = records[0], records[2]
    assert [record.reused_from for record in records] == ["", "", "1/count", "1/double"]
    assert (taken.address, taken.outputs, taken.metrics, taken.fingerprint) == (
        "2/count", first.outputs, first.metrics, first.fingerprint,
    )  # fmt: skip
    assert [ref.address for ref in records[3].inputs["numbers"]] == ["2/count"]
    assert taken.telemetry == first.telemetry and taken.attempt == 0
    assert run.record(Address(2, "count")) == taken
    assert [planned_action(item, run) for item in flow()] == ["reuse"] * 4
    assert all(execute(item, run).reused for item in flow())
    status = run.status(Address(2, "count"))
    assert (status.state, status.num_attempts, status.reused_from) == ("completed", 0, "1/count")
    assert "**2/count** of run `r1`, the same as 1/count" in stage_card(taken, run).markdown


def test_different_work_of_a_later_iteration_is_done(run: Run) -> None:
    assert not any(execute(item, run).reused_from for item in flow(count=4))
    assert (numbers_of(run, "2/count"), numbers_of(run, "2/double", "doubles")) == ([0, 1, 2, 3], [0, 2, 4, 6])
    assert CALLS == [0, 1, 2, 0, 1, 2, 3]


def test_third_iteration_reuses_results_of_the_second(run: Run) -> None:
    for item in (*flow(count=4), at(3, counting(count=4))):
        record = execute(item, run)
    assert record.reused_from == "2/count" and len(CALLS) == 7


def test_results_of_a_later_iteration_are_not_reused(run: Run) -> None:
    execute(at(2, counting()), run)
    assert planned_action(counting(), run) == "run" and not execute(counting(), run).reused_from
    assert CALLS == [0, 1, 2] * 2


def test_results_that_contain_their_instance_name_are_not_reused(run: Run) -> None:
    stage = replace(counting().stage, depends_on_address=True)
    both = [replace(at(iteration, counting()), stage=stage) for iteration in (1, 2)]
    assert equal_work(both) == {}
    assert not any(execute(item, run).reused_from for item in both) and len(CALLS) == 6


def test_reused_result_follows_its_origin_when_that_is_rerun(run: Run) -> None:
    def other(context: StageContext) -> Mapping[str, Any]:
        context.write("numbers", [{"number": 7}])
        return {}

    for item in flow():
        execute(item, run)
    execute(counting(other), run, force=True)
    assert planned_action(at(2, counting()), run) == "take over"
    assert execute(at(2, counting()), run).reused_from == "1/count"
    assert numbers_of(run, "2/count") == [7] and planned_action(at(2, DOUBLING), run) == "run"


def test_individually_forced_result_stays(run: Run) -> None:
    for item in flow():
        execute(item, run)
    own = execute(at(2, counting()), run, force=True)
    assert (own.reused_from, own.attempt) == ("", 1) and len(CALLS) == 6
    assert execute(at(2, counting()), run).reused and run.record(Address(2, "count")) == own


def test_accepted_gaps_are_reused_and_filled_at_their_origin(run: Run) -> None:
    gaps = ["one"]

    def with_gaps(context: StageContext) -> Mapping[str, Any]:
        if not gaps or not context.accept_failures:
            if gaps:
                raise JobsPending("still owed")
            return {**count(context), "gaps": 0}
        context.write("numbers", [{"number": 9}])
        return {"gaps": 1}

    stage = replace(counting(with_gaps).stage, is_complete=lambda metrics: not metrics["gaps"])
    first = replace(counting(with_gaps), stage=stage)
    second = at(2, first)
    execute(first, run, accept_failures=True)
    assert execute(second, run).reused_from == "1/count"
    assert execute(second, run).reused, "it is not asked for a second time"
    gaps.clear()
    execute(first, run)
    assert execute(second, run).reused_from == "1/count" and numbers_of(run, "2/count") == [0, 1, 2]


def test_forced_run_does_equal_work_once(run: Run) -> None:
    def work(*, force: bool, cut_off_after: int = 4) -> None:
        with forced_run(run, [item.address for item in flow()], force=force) as again:
            for item in flow()[:cut_off_after]:
                execute(item, run, force=is_forced(item, run, again))
            if cut_off_after < 4:
                raise KeyboardInterrupt

    work(force=True)
    assert len(CALLS) == 3, "of a new run too"
    with pytest.raises(KeyboardInterrupt):
        work(force=True, cut_off_after=3)
    assert len(CALLS) == 6
    work(force=True)
    assert len(CALLS) == 6 and all(run.record(item.address) for item in flow())
    execute(at(2, counting()), run, force=True)
    work(force=True)
    assert len(CALLS) == 9 + 6, "one that has a result of its own makes it again"


def test_crashed_attempt_is_resolved_by_a_reused_result(run: Run) -> None:
    def stopped(context: StageContext) -> Mapping[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(at(2, counting(stopped)), run)
    for item in flow():
        execute(item, run)
    status = run.status(Address(2, "count"))
    assert (status.state, status.error, status.reused_from) == ("completed", None, "1/count")


def test_plan_shows_reuse_before_and_after(run: Run) -> None:
    root = run.storage.directory("")

    def planned(**more: Any) -> list[tuple[str, str]]:
        return [(step.action, step.why) for step in plan(flow(), root, run.run_id, **more)]

    assert equal_work(flow()) == {"2/count": "1/count", "2/double": "1/double"}
    assert equal_work(flow(count=4)) == {}
    equals = [("take over", "the same as 1/count"), ("take over", "the same as 1/double")]
    assert [(step.action, step.why) for step in plan(flow(), root, "another")][2:] == equals
    assert planned()[2:] == equals
    for item in flow():
        execute(item, run)
    assert [action for action, _ in planned()] == ["reuse"] * 4
    assert planned(force=True) == [("run", "--force"), ("run", "--force"), *equals]


def test_plan_of_a_part_uses_existing_results(run: Run) -> None:
    root = run.storage.directory("")

    def planned(items: list[Instance], part: list[Instance], **more: Any) -> list[tuple[str, str]]:
        return [(step.action, step.why) for step in plan(items, root, run.run_id, part=part, **more)]

    assert planned(flow(), flow()[2:]) == [("run", "not run yet"), ("run", "2/count is run before it")], "nothing equal"
    for item in flow():
        execute(item, run)
    equals = [("take over", "the same as 1/count"), ("take over", "the same as 1/double")]
    assert planned(flow(), flow()[2:], force=True) == equals
    with forced_run(run, [item.address for item in flow()[2:]], force=True, is_part=True) as again:
        assert not any(is_forced(item, run, again) for item in flow()[2:]), "that is what happens, too"
    first = [counting(count=4), DOUBLING]
    second = [at(2, item) for item in first]
    assert planned([*first, *second], second, force=True)[0] == ("run", "--force"), "the one before it is out of date"
    assert plan(flow(), root, "new", part=flow()[2:])[0].action == "run", "of a new run nothing is there"


def test_missing_input_is_named(run: Run) -> None:
    with pytest.raises(RunError, match="run 2/count first"):
        equal_result(at(2, DOUBLING), run)
