"""`treadle run`, all stages, on a disk that fails once: at every step that the process takes, in every way.

TREADLE_FAULT_STRIDE=1 tries every fault, the default every 197th.
"""

from __future__ import annotations

import os

import pytest
from support.runs.failing_disk import (
    FailingDisk,
    Undisturbed,
    check_failure,
    check_resumed,
    check_states,
)
from support.runs.faults import Fault

KINDS: dict[str, tuple[str, ...]] = {
    "write": ("ENOSPC", "EIO", "full"),
    "create": ("ENOSPC",),
    "mkdir": ("ENOSPC",),
    "open": ("EMFILE",),
    "read": ("EIO",),
    "sync": ("EIO",),
    "rename": ("EIO",),
    "remove": ("EIO",),
    "truncate": ("EIO",),
    "lock": ("ENOLCK",),
}
"""Less than for one stage, where every step may also be the last of its process; see `support.runs.faults`."""
STRIDE = int(os.environ.get("TREADLE_FAULT_STRIDE", "197"))
PARTS = 2


def faults_of(steps: list[str]) -> list[Fault]:
    """Every n-th of all faults of all steps, those with the streams left out, which are files of the test."""
    own = {"create desk/.out", "create desk/.err"}
    taken = [(at, step.split()[0]) for at, step in enumerate(steps) if step not in own]
    return [Fault(at, kind) for at, what in taken for kind in KINDS[what]][::STRIDE]


@pytest.mark.covers("flywheel-25")
@pytest.mark.parametrize("part", range(PARTS))
def test_disk_failure_at_any_step_of_a_run_costs_only_an_error_line(
    disk: FailingDisk, undisturbed: Undisturbed, part: int
) -> None:
    for fault in faults_of(undisturbed.steps)[part::PARTS]:
        try:
            disk.set_up()
            done, steps = disk.suffer(fault)
            assert steps[: fault.at + 1] == undisturbed.steps[: fault.at + 1]
            check_failure(disk, done, undisturbed)
            check_states(disk.root, undisturbed)
            check_resumed(disk, undisturbed)
            disk.cleared()
        except BaseException as error:
            error.add_note(f"{fault.kind} at step {fault.at}: {undisturbed.steps[fault.at]}")
            raise
