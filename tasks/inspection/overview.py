"""Summarize all runs of a root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from treadle.core.errors import RunError
from treadle.core.runs.run import Run, list_runs
from treadle.tasks.planning.run_setup import known_addresses

_STATES_BY_SEVERITY = ("running", "failed", "crashed", "interrupted")


@dataclass(frozen=True, slots=True)
class RunOverview:
    """Summary of one run."""

    run_id: str
    state: str
    """State of an instance that is running or did not complete, else `completed`, `unfinished`, `not started` or
    `unreadable`.
    """
    num_completed: int = 0
    num_instances: int = 0
    created_at: str | None = None
    """UTC, ISO 8601."""
    error: str = ""
    """Address and error of the instance that failed or stopped last; empty if none did."""
    changed_at: str | None = None
    """Time when an attempt last started or ended, UTC, ISO 8601; if there is none, `created_at`."""


def overviews(root: str | Path) -> list[RunOverview]:
    """Return a summary of all runs of a root, by name. The state of a run that cannot be read is `unreadable`."""
    return [_overview(root, run_id) for run_id in list_runs(root)]


def _overview(root: str | Path, run_id: str) -> RunOverview:
    try:
        run = Run.open(root, run_id)
        statuses = run.statuses(known_addresses(run))
    except RunError:
        return RunOverview(run_id, "unreadable")
    states = [status.state for status in statuses]
    num_completed = states.count("completed")
    if num_completed == len(states) and states:
        state = "completed"
    elif any(one != "absent" for one in states):
        state = next((one for one in _STATES_BY_SEVERITY if one in states), "unfinished")
    else:
        state = "not started"
    changes = [time for status in statuses if (time := status.finished_at or status.started_at)]
    troubles = [status for status in statuses if status.error and state != "completed"]
    last = max(troubles, key=lambda status: status.finished_at or status.started_at or "", default=None)
    return RunOverview(
        run_id,
        state,
        num_completed,
        len(states),
        run.info.created_at,
        f"{last.address}: {last.error}" if last is not None else "",
        max(changes, default=run.info.created_at),
    )


def last_run(root: str | Path) -> str | None:
    """Return the run of a root that was created, or had an attempt that started or ended, last; None without runs."""
    return max(list_runs(root), key=lambda run_id: (_changed_at(root, run_id), run_id), default=None)


def _changed_at(root: str | Path, run_id: str) -> str:
    """Return a time in UTC, ISO 8601; empty for a run that cannot be read."""
    try:
        run = Run.open(root, run_id)
        statuses = run.statuses()
    except RunError:
        return ""
    return max([run.info.created_at, *(time for one in statuses if (time := one.finished_at or one.started_at))])
