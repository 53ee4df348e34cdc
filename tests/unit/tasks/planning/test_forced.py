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
from treadle.tasks.planning.forced import forced_run, is_forced, still_to_make

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
    """A run as the command line makes it, which may be cut off; for each instance whether it was made."""
    made = []
    with forced_run(run, [item.address for item in items], force=force, is_part=is_part) as again:
        for item in items[:cut_off_after]:
            made.append(not execute(item, run, force=is_forced(item, run, again)).reused)
        if cut_off_after is not None:
            raise KeyboardInterrupt
    return made


@pytest.fixture
def cut_off(run: Run) -> Run:
    """A run that was made, and of whose forced repetition the second half is missing."""
    work(run)
    with pytest.raises(KeyboardInterrupt):
        work(run, force=True, cut_off_after=1)
    assert still_to_make(run, ADDRESSES) == {SECOND}
    return run


def test_forcing_again_goes_on_with_a_forced_run_that_was_cut_off(cut_off: Run) -> None:
    assert work(cut_off, force=True) == [False, True]
    assert still_to_make(cut_off, ADDRESSES) is None
    assert work(cut_off, force=True) == [True, True]


def test_a_plain_run_that_comes_to_its_end_ends_a_forced_run_that_was_cut_off(cut_off: Run) -> None:
    assert work(cut_off) == [False, False]
    assert still_to_make(cut_off, ADDRESSES) is None
    assert work(cut_off, force=True) == [True, True]


def test_a_plain_run_that_is_cut_off_ends_nothing(cut_off: Run) -> None:
    with pytest.raises(KeyboardInterrupt):
        work(cut_off, cut_off_after=1)
    assert work(cut_off, force=True) == [False, True]


WHOLE = (*INSTANCES, AGAIN)
PARTS = {"from an instance on": (DOUBLING, AGAIN), "without one": (DOUBLING,)}


@pytest.fixture
def whole_cut_off(run: Run) -> Run:
    """Make an interrupted forced run of three instances, of which the first, expensive one was rerun."""
    work(run, WHOLE)
    with pytest.raises(KeyboardInterrupt):
        work(run, WHOLE, force=True, cut_off_after=1)
    return run


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_plain_run_of_a_part_ends_no_forced_run_of_all(whole_cut_off: Run, part: Sequence[Instance]) -> None:
    assert not any(work(whole_cut_off, part, is_part=True))
    assert work(whole_cut_off, WHOLE, force=True) == [False, True, True]


def test_a_forced_part_takes_what_it_made_off_a_forced_run_of_all(whole_cut_off: Run) -> None:
    assert work(whole_cut_off, [DOUBLING], force=True, is_part=True) == [True]
    assert work(whole_cut_off, WHOLE, force=True) == [False, False, True], "only what is left"
    assert still_to_make(whole_cut_off, ADDRESSES) is None
    assert all(work(whole_cut_off, WHOLE, force=True)), "that one was over"


def test_a_forced_part_is_made_again_whenever_it_is_asked_for(whole_cut_off: Run) -> None:
    for _ in range(2):
        assert work(whole_cut_off, INSTANCES[:1], force=True, is_part=True) == [True], "though made again already"
    assert work(whole_cut_off, WHOLE, force=True) == [False, True, True]


def test_a_forced_part_that_makes_the_rest_ends_the_forced_run_of_all(whole_cut_off: Run) -> None:
    assert work(whole_cut_off, WHOLE[1:], force=True, is_part=True) == [True, True]
    assert still_to_make(whole_cut_off, ADDRESSES) is None


def test_a_forced_run_of_all_goes_on_behind_a_part_that_was_cut_off(run: Run) -> None:
    work(run, WHOLE)
    with pytest.raises(KeyboardInterrupt):
        work(run, WHOLE[:2], force=True, is_part=True, cut_off_after=1)
    with pytest.raises(KeyboardInterrupt):
        work(run, WHOLE, force=True, cut_off_after=2)
    assert work(run, WHOLE, force=True) == [False, False, True], "what the part did not name counts as well"
