"""Describe the paid work that is repeated when an instance runs again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.core.figures import money
from treadle.core.runs.execute import planned_action
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.tasks.planning.plan import why_not_reused

if TYPE_CHECKING:
    from treadle.tasks.estimate.reuse import Reuse

_TRAINING = ("sft", "rl", "dpo")


def rerun_note(item: Instance, run: Run, *, force: bool) -> str | None:
    """Return one line about the paid work that is repeated for an instance with a result; None if there is none."""
    is_paid = item.stage.jobs is not None or item.stage.name in _TRAINING
    if not is_paid or run.record(item.address) is None or not (force or planned_action(item, run) == "run"):
        return None
    if item.stage.jobs is None:
        return f"{item.address} trains again: {'--force' if force else why_not_reused(item, run)}"
    from treadle.tasks.estimate.reuse import reuse_of

    reuse = reuse_of(item, run, force=force)
    return None if reuse is None else f"{item.address}: {reuse.text()}{_cost_of_open(item, run, reuse, force=force)}"


def _cost_of_open(item: Instance, run: Run, reuse: Reuse, *, force: bool) -> str:
    """Return the expected usage of the open jobs as the end of a sentence; empty if there are none."""
    from treadle.tasks.estimate.estimates import estimates
    from treadle.tasks.estimate.preview import Preview

    address = str(item.address)
    found = estimates([item], run, [address], force=force, preview=Preview({}, {address: reuse}))
    if not reuse.num_open or not found:
        return ""
    cost = found[0].cost
    return f"; about {found[0].num_tokens:,} tokens" + (f", {money(cost)}" if cost else "")
