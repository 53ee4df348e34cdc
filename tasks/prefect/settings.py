"""Define the Prefect settings of Treadle's flow runs and their server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.tasks.prefect.flow_run_listener import FlowRunListener

TAG = "treadle"
"""Tag of all Treadle flow runs. Automations match it, so other flows on the same server are unaffected."""

HEARTBEAT_S = 30
"""Heartbeat interval of a flow run; the minimum that Prefect accepts."""

HEARTBEAT_TIMEOUT_S = 90
"""Time without a heartbeat after which a flow run counts as dead: three heartbeats."""

START_TIMEOUT_S = 600
"""Time for a flow run to start after a worker took it; it took a minute on two busy cores."""

FLOW_RUN_ENV = {
    # Without this, Treadle's log lines are not shown in the UI.
    "PREFECT_LOGGING_EXTRA_LOGGERS": "treadle",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S),
}
"""Environment variables of flow run processes."""

_IN_TERMINALS = {
    # Prefect's log is shown in its UI; in the terminal its lines would mix with ours and end in tracebacks.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    # Otherwise Prefect's client sends telemetry to its vendor, and says so on every terminal.
    "DO_NOT_TRACK": "1",
}


@contextmanager
def as_flow_run(listener: FlowRunListener | None = None) -> Iterator[None]:
    """Set up Prefect for a flow that this process calls itself, as deployments do for theirs.

    `listener` is shown its progress.
    """
    from treadle.tasks.prefect.prefect_home import use_own_password

    use_own_password()
    for name, value in (FLOW_RUN_ENV | _IN_TERMINALS).items():
        # Prefect reads them when it is imported, which happens later.
        os.environ.setdefault(name, value)
    from prefect import tags

    from treadle.tasks.prefect.flow_run_listener import reporting_to

    with tags(TAG), nullcontext() if listener is None else reporting_to(listener):
        yield
