"""A flow that is started from an instance, or goes without some."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.runs.counting_stage import DOUBLE, counting

from treadle.core.config import Section
from treadle.core.errors import ConfigError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.tasks.planning.flow_part import FlowPart, flow_part


def double(name: str, count: str) -> Instance:
    return Instance(
        address=Address.parse(name), stage=DOUBLE, settings=Section(), inputs={"numbers": (Address.parse(count),)}
    )


FLOW = [counting(), double("1/double", "1/count"), double("1/double@b", "1/count")]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "r1", {}, {})


def part(run: Run, start_from: str | None = None, *without: str) -> FlowPart:
    return flow_part(FLOW, run.storage.directory(""), run.run_id, start_from, without)


def made(found: FlowPart) -> list[str]:
    return [str(item.address) for item in found.instances]


def test_flow_is_complete_unless_a_part_is_requested(run: Run) -> None:
    assert part(run) == FlowPart(FLOW)
    assert part(run, "1/count") == FlowPart(FLOW)
    assert not part(run).lines() and not part(run).is_part


def test_earlier_stages_are_taken_unchanged(run: Run) -> None:
    execute(FLOW[0], run)
    found = part(run, "1/double@b")
    assert made(found) == ["1/double@b"] and found.kept == {"1/count": ""} and found.is_part
    assert found.lines() == ["1/double is left out: it comes before 1/double@b"], "nothing reads it"


def test_stale_earlier_stage_is_used_with_a_warning(run: Run) -> None:
    execute(counting(count=4), run)
    (line,) = part(run, "1/double").lines()
    assert line == "warning: 1/count is used as it is, although: changed: count"


def test_missing_input_result_is_refused_by_name(run: Run) -> None:
    with pytest.raises(
        RunError, match=r"start from 1/double: .* no result of 1/count \(read by 1/double.*\); start earlier"
    ):
        part(run, "1/double")
    with pytest.raises(RunError, match="1/count"):
        flow_part(FLOW, run.storage.directory(""), "new", "1/double")


def test_skipping_an_instance_skips_its_readers_unless_it_has_a_result(run: Run) -> None:
    other = replace(counting(), address=Address.parse("1/count@c"))
    found = flow_part([*FLOW, other], run.storage.directory(""), run.run_id, None, ["1/count"])
    assert made(found) == ["1/count@c"]
    assert found.lines() == [
        "1/count is left out: requested by --without",
        "1/double is left out: its input 1/count is missing",
        "1/double@b is left out: its input 1/count is missing",
    ]
    assert made(part(run, None, "1/double@b")) == ["1/count", "1/double"]
    execute(FLOW[0], run)
    found = part(run, None, "1/count")
    assert made(found) == ["1/double", "1/double@b"] and found.kept == {"1/count": ""}


def test_address_missing_from_the_flow_is_refused(run: Run) -> None:
    for arguments in (("1/double@c",), (None, "1/double@c")):
        with pytest.raises(ConfigError, match="'1/double@c' is not in this flow, which has 1/count, 1/double"):
            part(run, *arguments)


def test_empty_part_is_refused(run: Run) -> None:
    for root, run_id in ((run.storage.directory(""), run.run_id), (run.storage.directory(""), "new")):
        with pytest.raises(ConfigError) as refused:
            flow_part(FLOW, root, run_id, None, ["1/count"])
        assert str(refused.value) == (
            f"nothing is left to run in {run_id} (1/count: requested by --without; "
            "1/double: its input 1/count is missing; 1/double@b: its input 1/count is missing); skip less"
        )
    for item in FLOW:
        execute(item, run)
    with pytest.raises(ConfigError, match=r"in r1 \(all results are reused\)"):
        part(run, "1/double@b", "1/double@b")


def test_input_that_no_stage_of_the_flow_makes_is_refused_before_the_run(run: Run) -> None:
    other = double("1/other@phase-1", "1/sft")
    root = run.storage.directory("")
    for run_id in (run.run_id, "new"):
        with pytest.raises(
            ConfigError, match=r"1/other@phase-1 reads 1/sft, .* add 'sft' to flow.stages, or name .* rl.start"
        ):
            flow_part([*FLOW, other], root, run_id)
    assert made(flow_part(FLOW, root, run.run_id)) == ["1/count", "1/double", "1/double@b"]
