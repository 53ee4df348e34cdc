"""Define the Prefect settings of Treadle's flow runs and their server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

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
    # Otherwise Prefect's client sends telemetry to its vendor, and announces it on every terminal.
    "DO_NOT_TRACK": "1",
}

_WORKER_ENV = "PREFECT__FLOW_RUN_ID"
"""Set by Prefect in processes that a worker started."""
_runs_own_flow = False
"""Whether this process calls a flow itself, without a worker that starts it."""


class ParameterForm:
    """Annotation of a flow's parameter: the JSON schema of its input form is generated for deployments only.

    Prefect generates the schemas of all parameters when a flow is imported. That of the whole configuration takes
    seconds, and processes that run a flow never show it. Values are still validated by the parameter's type.
    """

    def __get_pydantic_core_schema__(self, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a schema that validates the type; in processes that run a flow, one without the type's fields."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(source.model_validate) if runs_flow() else handler(source)

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the JSON schema of the type; in processes that run a flow, the schema of any table."""
        return {"type": "object"} if runs_flow() else handler(core_schema)


def started_by_worker() -> bool:
    """Return whether a worker started this process."""
    return _WORKER_ENV in os.environ


def runs_flow() -> bool:
    """Return whether this process runs a flow: a worker started it for one, or it calls one itself."""
    return _runs_own_flow or started_by_worker()


@contextmanager
def as_flow_run(listener: FlowRunListener | None = None) -> Iterator[None]:
    """Set up Prefect for a flow that this process calls itself, as deployments do for theirs.

    `listener` is shown its progress.
    """
    from treadle.tasks.prefect.prefect_home import use_own_password

    global _runs_own_flow
    _runs_own_flow = True
    use_own_password()
    for name, value in (FLOW_RUN_ENV | _IN_TERMINALS).items():
        # Prefect reads these variables when it is imported, which happens later.
        os.environ.setdefault(name, value)
    from prefect import tags

    from treadle.tasks.prefect.flow_run_listener import reporting_to

    with tags(TAG), nullcontext() if listener is None else reporting_to(listener):
        yield
