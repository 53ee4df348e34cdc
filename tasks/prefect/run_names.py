"""Name the runs of flow runs without a run name, such as scheduled ones."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

from prefect.context import FlowRunContext

_MAX_STEM_CHARS = 60


def run_id_of(run_id: str | None, config_file: str | Path | None) -> str:
    """Return the run that the current flow run works on: the given one, or a new name with the date.

    A retry of the flow run gets the same name, so that it continues its run: the name comes from the time that the flow
    run was planned for, and from its id.
    """
    if run_id:
        return run_id
    context = FlowRunContext.get()
    flow_run = context.flow_run if context is not None else None
    if flow_run is None:
        return dated_run_id(config_file, datetime.now(UTC), uuid4())
    return dated_run_id(config_file, flow_run.expected_start_time or flow_run.created or datetime.now(UTC), flow_run.id)


def dated_run_id(config_file: str | Path | None, planned: datetime, flow_run_id: UUID) -> str:
    """Return a run id like `nightly-2026-11-27-1205-4f9a1c`: stem of the file, UTC time, end of the flow run's id.

    The last part keeps flow runs of one minute apart. It is the end because ids begin with their time.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(config_file).stem if config_file else "").strip("-._")
    return f"{stem[:_MAX_STEM_CHARS] or 'run'}-{planned.astimezone(UTC):%Y-%m-%d-%H%M}-{flow_run_id.hex[-6:]}"


def flow_run_name() -> str:
    """Return the name of the current flow run of the whole flow in the UI: the name of its run."""
    context = FlowRunContext.get()
    given = (context.parameters if context is not None else None) or {}
    return run_id_of(given.get("run_id"), given.get("config_file"))
