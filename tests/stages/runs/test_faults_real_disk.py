"""`treadle run`, all stages, on a real disk that is full, may hold few files, caps their length, or is read-only.

Parquet files and arrays are written by their own native code here, while `cli/test_faults_command_line.py` only covers
writes by Python. TREADLE_FAULT_STRIDE=1 tries every size, page by page; the default every 73rd and one in the middle.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support.runs.crash_bench import RUN
from support.runs.failing_disk import (
    COMMAND,
    STAGES,
    FailingDisk,
    Undisturbed,
    check_failure,
    check_resumed,
    check_states,
    namespaces,
)
from support.sweep import sampled

STRIDE = int(os.environ.get("TREADLE_FAULT_STRIDE", "73"))
ENOUGH = "size=64m"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
needs_namespaces = pytest.mark.skipif(bool(namespaces()), reason=f"no mount namespace: {namespaces()}")


def try_sizes(sizes: range, attempt: Callable[[int], str]) -> list[str]:
    """Try every n-th size and both ends; return the message of each failure. The largest is enough for the run."""
    wanted = sorted({*sizes[::STRIDE], sizes[len(sizes) // 2], sizes[-1]})
    said = []
    for size in wanted:
        try:
            said.append(attempt(size))
        except BaseException as error:
            error.add_note(f"at {size}")
            raise
    assert said[-1] == "", "the run does not fit into what was thought to be enough"
    return [line for line in said if line]


@needs_namespaces
@pytest.mark.covers("flywheel-25")
@pytest.mark.parametrize("limit", sampled(["size", "nr_inodes"], ["size"]))
def test_full_disk_prints_one_line_and_the_run_resumes_with_free_space(
    disk: FailingDisk, undisturbed: Undisturbed, limit: str
) -> None:
    def attempt(number: int) -> str:
        disk.set_up()
        disk.mounted(f"{limit}={number * PAGE_BYTES if limit == 'size' else number}")
        line = check_failure(disk, disk.treadle(*COMMAND), undisturbed)
        check_states(disk.root, undisturbed)
        disk.remounted(ENOUGH, "nr_inodes=10000")
        check_resumed(disk, undisturbed)
        disk.cleared()
        return line

    # One page is the least that can be had; a file takes one inode, a folder too.
    said = try_sizes(range(1 if limit == "size" else 2, 160), attempt)
    # The index library may only report that its writer was killed.
    meaning = "disk is full: free space" if limit == "size" else "all its inodes are in use"
    assert len(said) >= 2 and all(meaning in line or "index cannot be stored" in line for line in said), said


@pytest.mark.covers("flywheel-25")
def test_file_size_limit_prints_one_line_and_the_run_resumes_without_it(
    disk: FailingDisk, undisturbed: Undisturbed
) -> None:
    def attempt(number: int) -> str:
        disk.set_up()
        line = check_failure(disk, disk.treadle(*COMMAND, file_bytes=256 * number), undisturbed)
        check_states(disk.root, undisturbed)
        check_resumed(disk, undisturbed)
        disk.cleared()
        return line

    # What is less would cut the line itself.
    said = try_sizes(range(5, 500), attempt)
    assert len(said) >= 2, said
    assert all("larger than allowed" in line or "index cannot be stored" in line for line in said), said


@needs_namespaces
@pytest.mark.parametrize("num_done", range(len(STAGES) + 1))
def test_read_only_remount_is_named_and_the_run_resumes_when_writable(
    disk: FailingDisk, undisturbed: Undisturbed, num_done: int
) -> None:
    disk.set_up()
    disk.mounted(ENOUGH)
    for address in STAGES[:num_done]:
        disk.treadle("stage", address, "run.toml", "--run", RUN).succeeded()
    disk.remounted("ro")
    assert "read-only" in check_failure(disk, disk.treadle(*COMMAND), undisturbed)
    if num_done:
        disk.treadle("status", "--run", RUN).succeeded()
        disk.treadle("verify", "--run", RUN).succeeded()
    disk.remounted("rw")
    check_resumed(disk, undisturbed)
    disk.cleared()
