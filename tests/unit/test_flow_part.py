"""A flow that is started from an instance, or goes without some."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.counting_stage import DOUBLE, counting

from treadle.core.config import Section
from treadle.core.errors import ConfigError, RunError
from treadle.core.execute import execute
from treadle.core.runs import Run
from treadle.core.stage import Address, Instance
from treadle.tasks.flow_part import FlowPart, flow_part


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


def test_a_flow_is_whole_unless_a_part_is_asked_for(run: Run) -> None:
    assert part(run) == FlowPart(FLOW)
    assert part(run, "1/count") == FlowPart(FLOW)
    assert not part(run).lines() and not part(run).is_part


def test_what_comes_before_is_taken_as_it_is(run: Run) -> None:
    execute(FLOW[0], run)
    found = part(run, "1/double@b")
    assert made(found) == ["1/double@b"] and found.kept == {"1/count": ""} and found.is_part
    assert found.lines() == ["1/double is left out: it comes before 1/double@b"], "nothing reads it"


def test_what_would_be_made_anew_is_taken_with_a_warning(run: Run) -> None:
    execute(counting(count=4), run)
    (line,) = part(run, "1/double").lines()
    assert line == "warning: 1/count is used as it is, although: changed: count"


def test_what_is_read_and_not_there_is_refused_by_its_name(run: Run) -> None:
    with pytest.raises(
        RunError, match=r"start from 1/double: .* no result of 1/count \(read by 1/double.*\); start earlier"
    ):
        part(run, "1/double")
    with pytest.raises(RunError, match="1/count"):
        flow_part(FLOW, run.storage.directory(""), "new", "1/double")


def test_what_is_left_out_leaves_out_what_reads_it_unless_it_has_a_result(run: Run) -> None:
    other = double("1/double@c", "1/double@d")
    found = flow_part([*FLOW, other], run.storage.directory(""), run.run_id, None, ["1/count"])
    assert made(found) == ["1/double@c"]
    assert found.lines() == [
        "1/count is left out: requested by --without",
        "1/double is left out: its input 1/count is missing",
        "1/double@b is left out: its input 1/count is missing",
    ]
    assert made(part(run, None, "1/double@b")) == ["1/count", "1/double"]
    execute(FLOW[0], run)
    found = part(run, None, "1/count")
    assert made(found) == ["1/double", "1/double@b"] and found.kept == {"1/count": ""}


def test_an_address_that_the_flow_has_not_is_refused(run: Run) -> None:
    for arguments in (("1/double@c",), (None, "1/double@c")):
        with pytest.raises(ConfigError, match="'1/double@c' is not in this flow, which has 1/count, 1/double"):
            part(run, *arguments)


def test_a_part_with_nothing_in_it_is_refused(run: Run) -> None:
    for root, run_id in ((run.storage.directory(""), run.run_id), (run.storage.directory(""), "new")):
        with pytest.raises(ConfigError) as refused:
            flow_part(FLOW, root, run_id, None, ["1/count"])
        assert str(refused.value) == (
            f"nothing is left to run in {run_id} (1/count: requested by --without; "
            "1/double: its input 1/count is missing; 1/double@b: its input 1/count is missing); skip less"
        )
    for item in FLOW:
        execute(item, run)
    with pytest.raises(ConfigError, match=r"in r1 \(all results are used as they are\)"):
        part(run, "1/double@b", "1/double@b")
