"""Settings of Prefect that Treadle's flow runs and the server for them want."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.tasks.prefect.audience import Audience

TAG = "treadle"
"""On every flow run of ours; automations look for it and so leave other flows of the same server alone."""

HEARTBEAT_S = 30
"""How often a flow run says that it lives; the least that Prefect takes."""

SILENCE_S = 90
"""How long a flow run may say nothing before it counts as dead: three heartbeats."""

BEGIN_S = 600
"""How long a flow run may take to begin after a worker took it; it was a minute on two cores with other work."""

OF_FLOW_RUNS = {
    # Without this our log lines stay out of the UI.
    "PREFECT_LOGGING_EXTRA_LOGGERS": "treadle",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S),
}
"""Environment variables of the processes that flow runs are."""

_IN_TERMINALS = {
    # What Prefect logs stands in its UI; in the terminal its lines would break into ours, and end in tracebacks.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    # Or its client tells its makers of the use, and says so on every terminal.
    "DO_NOT_TRACK": "1",
}


@contextmanager
def as_flow_run(watcher: Audience | None = None) -> Iterator[None]:
    """Around a flow that this process calls itself: what deployments give to theirs. `watcher` is shown how it goes."""
    for name, value in (OF_FLOW_RUNS | _IN_TERMINALS).items():
        # Before Prefect is imported, which reads them then.
        os.environ.setdefault(name, value)
    from prefect import tags

    from treadle.tasks.prefect.audience import watched_by

    with tags(TAG), nullcontext() if watcher is None else watched_by(watcher):
        yield
