"""An imported result is rerun only if it is forced by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.runs.counting_stage import DOUBLE, DOUBLING, counting, double, numbers_of

from treadle.core.errors import RunError
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, StageContext
from treadle.tasks.planning.forced_runs import forced_run, is_forced
from treadle.tasks.planning.plan import plan
from treadle.tasks.run_instances import run_instance


def imported(context: StageContext) -> Mapping[str, Any]:
    """Replace the stage's function by an import."""
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


def test_import_is_refused_if_its_inputs_have_changed(run: Run) -> None:
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


def test_import_is_refused_by_a_later_stage_version(run: Run) -> None:
    later = replace(DOUBLING, stage=replace(DOUBLE, version=2))
    assert planned(run, [counting(), later])[1] == ("refuse", SAID.format("stage version 1 -> 2"))
    with pytest.raises(RunError, match="imported from foreign.json, and stage version 1 -> 2"):
        run_instance(later, run)


def test_forced_run_keeps_imported_results(run: Run) -> None:
    flow = [counting(), DOUBLING]
    assert planned(run, flow, force=True) == [
        ("run", "--force"), ("reuse", "imported from foreign.json; refused unless 1/count gives the same output"),
    ]  # fmt: skip
    assert planned(run, [DOUBLING], force=True, by_name=True) == [("run", "--force")], "by `treadle stage`"
    with forced_run(run, [item.address for item in flow], force=True) as again:
        made = [run_instance(item, run, force=is_forced(item, run, again)) for item in flow]
    assert [record.reused for record in made] == [False, True]
    assert made[1].imported_from == "foreign.json"


def test_reuse_of_an_import_follows_the_next_import(run: Run) -> None:
    def at_two(item: Instance) -> Instance:
        inputs = {name: tuple(replace(one, iteration=2) for one in given) for name, given in item.inputs.items()}
        return replace(item, address=replace(item.address, iteration=2), inputs=inputs)

    later = [at_two(counting()), at_two(DOUBLING)]
    for item in later:
        assert run_instance(item, run).reused_from
    execute(replace(DOUBLING, stage=replace(DOUBLE, run=double)), run, force=True)
    assert run_instance(later[1], run).reused_from == "1/double"
    assert numbers_of(run, "2/double", "doubles") == [0, 2, 4]
