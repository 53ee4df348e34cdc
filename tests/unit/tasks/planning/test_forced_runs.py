"""What a forced run still has to rerun: after an interruption, and after a plain run in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs.counting_stage import DOUBLING, counting

from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.tasks.planning.forced_runs import forced_run, is_forced, pending_forced

INSTANCES = (counting(), DOUBLING)
AGAIN = replace(DOUBLING, address=Address(1, "double", "again"))
ADDRESSES = [item.address for item in INSTANCES]
FIRST, SECOND = ADDRESSES


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "r1", {}, {})


def work(
    run: Run,
    items: Sequence[Instance] = INSTANCES,
    *,
    force: bool = False,
    is_part: bool = False,
    cut_off_after: int | None = None,
) -> list[bool]:
    """Run as the command line does, possibly cut off; return for each instance whether it was made."""
    made = []
    with forced_run(run, [item.address for item in items], force=force, is_part=is_part) as again:
        for item in items[:cut_off_after]:
            made.append(not execute(item, run, force=is_forced(item, run, again)).reused)
        if cut_off_after is not None:
            raise KeyboardInterrupt
    return made


@pytest.fixture
def cut_off(run: Run) -> Run:
    """Return a run that was made, and of whose forced repetition the second half is missing."""
    work(run)
    with pytest.raises(KeyboardInterrupt):
        work(run, force=True, cut_off_after=1)
    assert pending_forced(run, ADDRESSES) == {SECOND}
    return run


def test_forcing_again_resumes_an_interrupted_forced_run(cut_off: Run) -> None:
    assert work(cut_off, force=True) == [False, True]
    assert pending_forced(cut_off, ADDRESSES) is None
    assert work(cut_off, force=True) == [True, True]


def test_completed_plain_run_ends_an_interrupted_forced_run(cut_off: Run) -> None:
    assert work(cut_off) == [False, False]
    assert pending_forced(cut_off, ADDRESSES) is None
    assert work(cut_off, force=True) == [True, True]


def test_interrupted_plain_run_ends_no_forced_run(cut_off: Run) -> None:
    with pytest.raises(KeyboardInterrupt):
        work(cut_off, cut_off_after=1)
    assert work(cut_off, force=True) == [False, True]


WHOLE = (*INSTANCES, AGAIN)
PARTS = {"from an instance on": (DOUBLING, AGAIN), "without one": (DOUBLING,)}


@pytest.fixture
def interrupted_forced_flow(run: Run) -> Run:
    """Make an interrupted forced run of three instances, of which the first, expensive one was rerun."""
    work(run, WHOLE)
    with pytest.raises(KeyboardInterrupt):
        work(run, WHOLE, force=True, cut_off_after=1)
    return run


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_plain_partial_run_ends_no_full_forced_run(interrupted_forced_flow: Run, part: Sequence[Instance]) -> None:
    assert not any(work(interrupted_forced_flow, part, is_part=True))
    assert work(interrupted_forced_flow, WHOLE, force=True) == [False, True, True]


def test_forced_part_removes_its_instances_from_a_full_forced_run(interrupted_forced_flow: Run) -> None:
    assert work(interrupted_forced_flow, [DOUBLING], force=True, is_part=True) == [True]
    assert work(interrupted_forced_flow, WHOLE, force=True) == [False, False, True], "only what is left"
    assert pending_forced(interrupted_forced_flow, ADDRESSES) is None
    assert all(work(interrupted_forced_flow, WHOLE, force=True)), "that one was over"


def test_forced_part_is_rerun_on_every_request(interrupted_forced_flow: Run) -> None:
    for _ in range(2):
        assert work(interrupted_forced_flow, INSTANCES[:1], force=True, is_part=True) == [True], (
            "though made again already"
        )
    assert work(interrupted_forced_flow, WHOLE, force=True) == [False, True, True]


def test_forced_part_that_completes_the_rest_ends_the_full_forced_run(interrupted_forced_flow: Run) -> None:
    assert work(interrupted_forced_flow, WHOLE[1:], force=True, is_part=True) == [True, True]
    assert pending_forced(interrupted_forced_flow, ADDRESSES) is None


def test_full_forced_run_resumes_after_an_interrupted_part(run: Run) -> None:
    work(run, WHOLE)
    with pytest.raises(KeyboardInterrupt):
        work(run, WHOLE[:2], force=True, is_part=True, cut_off_after=1)
    with pytest.raises(KeyboardInterrupt):
        work(run, WHOLE, force=True, cut_off_after=2)
    assert work(run, WHOLE, force=True) == [False, False, True], "what the part did not name counts as well"
