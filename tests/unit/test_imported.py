"""A result that was imported is not made anew, unless it is forced by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.counting_stage import DOUBLE, DOUBLING, counting, double, numbers_of

from treadle.core.errors import RunError
from treadle.core.execute import execute
from treadle.core.runs import Run
from treadle.core.stage import Instance, StageContext
from treadle.tasks.forced import forced_run, is_forced
from treadle.tasks.making import run_instance
from treadle.tasks.plan import plan


def imported(context: StageContext) -> Mapping[str, Any]:
    """Stands for an import in the place of the stage's function."""
    context.write("doubles", [{"number": 7}])
    return {"imported_from": "foreign.json"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Its second instance was imported."""
    run = Run.create(tmp_path, "r1", {}, {})
    execute(counting(), run)
    execute(replace(DOUBLING, stage=replace(DOUBLE, run=imported)), run)
    return run


def planned(run: Run, flow: list[Instance], **more: Any) -> list[tuple[str, str]]:
    return [(step.action, step.why) for step in plan(flow, run.storage.directory(""), run.run_id, **more)]


SAID = r"was imported from foreign.json, and {}: import it again, or replace it with `treadle stage 1/double --force`"


def test_what_was_imported_is_refused_where_what_it_read_has_changed(run: Run) -> None:
    changed = [counting(count=4), DOUBLING]
    assert planned(run, changed)[1] == ("refuse", SAID.format("1/count is run before it"))
    run_instance(changed[0], run)
    why = SAID.format("1/count was rerun")
    assert planned(run, changed)[1] == ("refuse", why)
    with pytest.raises(RunError, match=f"^1/double {why}$"):
        run_instance(DOUBLING, run)
    assert numbers_of(run, "1/double", "doubles") == [7]
    assert not run_instance(DOUBLING, run, force=True).imported_from
    assert numbers_of(run, "1/double", "doubles") == [0, 2, 4, 6]


def test_what_was_imported_is_refused_by_a_later_version_of_its_stage(run: Run) -> None:
    later = replace(DOUBLING, stage=replace(DOUBLE, version=2))
    assert planned(run, [counting(), later])[1] == ("refuse", SAID.format("stage version 1 -> 2"))
    with pytest.raises(RunError, match="imported from foreign.json, and stage version 1 -> 2"):
        run_instance(later, run)


def test_a_forced_run_leaves_what_was_imported(run: Run) -> None:
    flow = [counting(), DOUBLING]
    assert planned(run, flow, force=True) == [
        ("run", "--force"), ("reuse", "imported from foreign.json; refused unless 1/count gives the same output"),
    ]  # fmt: skip
    assert planned(run, [DOUBLING], force=True, by_name=True) == [("run", "--force")], "by `treadle stage`"
    with forced_run(run, [item.address for item in flow], force=True) as again:
        made = [run_instance(item, run, force=is_forced(item, run, again)) for item in flow]
    assert [record.reused for record in made] == [False, True]
    assert made[1].imported_from == "foreign.json"


def test_what_takes_over_an_import_follows_the_next_one(run: Run) -> None:
    def at_two(item: Instance) -> Instance:
        inputs = {name: tuple(replace(one, iteration=2) for one in given) for name, given in item.inputs.items()}
        return replace(item, address=replace(item.address, iteration=2), inputs=inputs)

    later = [at_two(counting()), at_two(DOUBLING)]
    for item in later:
        assert run_instance(item, run).same_as
    execute(replace(DOUBLING, stage=replace(DOUBLE, run=double)), run, force=True)
    assert run_instance(later[1], run).same_as == "1/double"
    assert numbers_of(run, "2/double", "doubles") == [0, 2, 4]
