"""A stage instance runs once; what is reused, what is rerun, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from support.runs.counting_stage import (
    CALLS,
    DOUBLE,
    DOUBLES,
    DOUBLING,
    NUMBERS,
    count,
    counting,
    double,
    no_calls,  # noqa: F401 - an autouse fixture
    numbers_of,
)

from treadle.core.config import Section
from treadle.core.errors import ArtifactError, ConfigError, RunError, StageFailed
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute, planned_action
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.tables import TABLES, Table


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "r1", {}, {})


def test_finished_instance_is_not_rerun(run: Run) -> None:
    assert planned_action(counting(), run) == "run"
    first = execute(counting(), run)
    assert (first.reused, first.metrics, numbers_of(run), CALLS) == (False, {"count": 3}, [0, 1, 2], [0, 1, 2])
    assert planned_action(counting(), run) == "reuse"
    again = execute(counting(url="b"), run)
    assert again.reused
    assert again.fingerprint == first.fingerprint
    assert CALLS == [0, 1, 2]
    assert run.record(Address(1, "count")) == first


def test_changed_setting_reruns_it(run: Run) -> None:
    execute(counting(), run)
    assert planned_action(counting(count=4), run) == "run"
    execute(counting(count=4), run)
    assert numbers_of(run) == [0, 1, 2, 3]


def test_changed_input_reruns_it_and_an_equal_one_does_not(run: Run) -> None:
    execute(counting(), run)
    execute(DOUBLING, run)
    execute(counting(), run, force=True)
    assert execute(DOUBLING, run).reused
    execute(counting(count=2), run)
    assert not execute(DOUBLING, run).reused
    assert numbers_of(run, "1/double", "doubles") == [0, 2]


def test_missing_input_names_what_to_run_first(run: Run) -> None:
    assert planned_action(DOUBLING, run) == "missing input"
    with pytest.raises(RunError, match="run 1/count first"):
        execute(DOUBLING, run)


def test_inputs_that_the_stage_does_not_read_are_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="reads \\['numbers'\\], but the bound inputs are \\[\\]"):
        execute(Instance(address=Address(1, "double"), stage=DOUBLE, settings=Section()), run)


def test_lost_artifact_is_rebuilt(run: Run) -> None:
    record = execute(counting(), run)
    run.storage.delete(f"{record.outputs['numbers'].folder}/artifact.json")
    assert planned_action(counting(), run) == "run"
    assert execute(counting(), run).outputs == record.outputs
    assert numbers_of(run) == [0, 1, 2]


@pytest.mark.parametrize("name", ["artifact.json", "data/part-00000.parquet"])
@pytest.mark.parametrize("damage", ["shorter", "empty", "longer", "gone"])
def test_artifact_with_other_sizes_is_rebuilt_and_not_reused(run: Run, tmp_path: Path, name: str, damage: str) -> None:
    record = execute(counting(), run)
    path = tmp_path / record.outputs["numbers"].folder / name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"shorter": content[:-9], "empty": b"", "longer": content + b"}"}[damage])
    assert planned_action(counting(), run) == "run"
    assert not execute(counting(), run).reused
    assert path.read_bytes() == content
    assert planned_action(counting(), run) == "reuse"


def test_result_made_from_an_older_input_is_reported(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    execute(counting(), run)
    execute(DOUBLING, run)
    after = Instance(
        address=Address(1, "double", "twice"),
        stage=Stage(
            name="double", version=1, settings=Section, consumes={"numbers": "doubles"}, produces=(DOUBLES,), run=double
        ),
        settings=Section(),
        inputs={"numbers": (Address(1, "double"),)},
    )
    execute(after, run)
    assert "older" not in caplog.text
    execute(counting(count=2), run)
    assert planned_action(after, run) == "reuse"
    assert "older" not in caplog.text, "who only looks, and looks often, is told nothing"
    execute(after, run)
    assert caplog.text.count("1/double was made from an older 1/count; run 1/double again") == 1


def test_stage_without_output_fails(run: Run) -> None:
    with pytest.raises(StageFailed, match="1/count produced no rows for numbers"):
        execute(counting(count=0), run)
    assert run.record(Address(1, "count")) is None


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (3, "stage count: run returned int; return a mapping from names to counts and numbers"),
        (None, "run returned NoneType"),
        ({"total": {1, 2}}, "run returned set as metric 'total', which is no JSON"),
    ],
)
def test_metrics_that_a_record_cannot_hold_are_named(run: Run, returned: Any, said: str) -> None:
    instance = counting()

    def make(context: StageContext) -> Any:
        instance.stage.run(context)
        return returned

    with pytest.raises(StageFailed, match=said):
        execute(replace(instance, stage=replace(instance.stage, run=make)), run)
    assert run.record(Address(1, "count")) is None


def test_force_starts_from_scratch(run: Run) -> None:
    execute(counting(), run)
    CALLS.clear()
    record = execute(counting(), run, force=True)
    assert CALLS == [0, 1, 2]
    assert (record.reused, record.attempt) == (False, 2)


def test_concurrent_attempts_are_refused(run: Run) -> None:
    def start_another(context: StageContext) -> Mapping[str, Any]:
        with pytest.raises(RunError, match="1/count of run r1 is being run by process"):
            execute(counting(), run)
        return count(context)

    execute(counting(start_another), run)


def test_telemetry_is_stored_with_the_attempt_and_not_in_the_digest(run: Run) -> None:
    first = execute(counting(), run)
    second = execute(counting(), run, force=True)
    assert first.outputs == second.outputs
    assert second.telemetry == {"times": "runs/r1/attempts/1/count/2/times.parquet"}
    assert run.storage.exists(second.telemetry["times"])


def test_input_of_another_table_version_is_refused_and_rerun_by_its_stage(run: Run) -> None:
    """Tables of an older or a newer Treadle are named, not misread; their own stage makes them again."""
    for version in (0, 2):
        other = replace(NUMBERS, version=version)
        made = execute(replace(counting(), stage=replace(counting().stage, produces=(other,))), run)
        with (
            registered_schema(NUMBERS),
            pytest.raises(
                ArtifactError, match=f"{made.outputs['numbers'].folder} holds table numbers in version {version}; this"
            ),
        ):
            execute(DOUBLING, run)
        assert not execute(counting(), run).reused
        with registered_schema(NUMBERS):
            execute(DOUBLING, run)
        assert numbers_of(run, "1/double", "doubles") == [0, 2, 4]
        CALLS.clear()


def registered_schema(table: Table) -> Any:
    return mock.patch.dict(TABLES, {table.kind: table})
