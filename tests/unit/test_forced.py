"""What a forced run still has to make again: after it was cut off, and after a plain run in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.counting_stage import DOUBLING, counting

from treadle.core.execute import execute
from treadle.core.runs import Run
from treadle.tasks.forced import forced_run, still_to_make

INSTANCES = (counting(), DOUBLING)
ADDRESSES = [item.address for item in INSTANCES]
FIRST, SECOND = ADDRESSES


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "r1", {}, {})


def work(run: Run, *, force: bool = False, cut_off_after: int = len(INSTANCES)) -> list[bool]:
    """A run as the command line makes it, which may be cut off; for each instance whether it was made."""
    made = []
    with forced_run(run, ADDRESSES if force else ()) as again:
        for item in INSTANCES[:cut_off_after]:
            made.append(not execute(item, run, force=item.address in again).reused)
        if cut_off_after < len(INSTANCES):
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
