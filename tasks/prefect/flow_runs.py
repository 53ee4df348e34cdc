"""Prepare a flow run: label it in the UI, load API keys from Secret blocks, close task runs of ended flow runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect.blocks.system import Secret
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.states import Crashed
from prefect.utilities.urls import url_for

from treadle.core.runs.address import Address
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.secret_checks import key_variables
from treadle.tasks.prefect.flow_run_listener import flow_run_listener

logger = logging.getLogger(__name__)
_NON_TERMINAL = [kind for kind in StateType if kind not in TERMINAL_STATES]


def begin_flow_run(config: TreadleConfig, run_id: str, instance: str | None = None) -> None:
    """Label the flow run, close task runs of killed flow runs, and load API keys from Secret blocks.

    `instance` is the address if the flow run is of a single stage.
    """
    _report_url()
    _close_task_runs(f"run:{run_id}")
    _label(f"run:{run_id}", *([f"stage:{Address.parse(instance).stage}"] if instance else []))
    keys_from_blocks(config)


def keys_from_blocks(config: TreadleConfig) -> None:
    """Set API key variables that the configuration names and the environment lacks, from Secret blocks."""
    for name in sorted(key_variables(config)):
        if not os.environ.get(name) and (value := _secret(block_of(name))):
            os.environ[name] = value


@contextmanager
def compact_events() -> Iterator[None]:
    """Leave deployment, work queue and work pool out of the events of task runs that start in the block.

    The flow run's own events contain them. Each task run has three events, and each related resource of an event costs
    a database row with five indexes. With all three resources, a page of SQLite holds one event instead of two.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        yield
        return
    nameless = {"deployment_id": None, "work_queue_id": None, "work_pool_name": None}
    with context.model_copy(update={"flow_run": context.flow_run.model_copy(update=nameless)}):
        yield


def block_of(variable: str) -> str:
    """Return the name of the Secret block for an environment variable: lower-case letters, digits and dashes."""
    return variable.lower().replace("_", "-").strip("-")


def flow_log(line: str) -> None:
    """Log events other than stage progress in the flow run, and show them to its listener."""
    get_run_logger().info(line)
    flow_run_listener().tell(line)


def _flow_run() -> FlowRun | None:
    context = FlowRunContext.get()
    return context.flow_run if context is not None else None


def _report_url() -> None:
    """Report the address of the flow run in the UI to the listener."""
    if (flow_run := _flow_run()) is not None:
        flow_run_listener().begins(url_for("flow-run", flow_run.id) or "")


def _label(*labels: str) -> None:
    """Tag the flow run, so that the UI can filter by run and stage."""
    if (flow_run := _flow_run()) is None:
        return
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, tags=list(dict.fromkeys([*flow_run.tags, *labels])))
    except Exception as error:  # noqa: BLE001 - the run continues, whatever Prefect's client raises
        logger.warning("the flow run could not be labelled: %s", error)


def _secret(block: str) -> str | None:
    """Return the value of a Secret block; None if it does not exist: the code that needs the key reports it."""
    try:
        return str(Secret.load(block, _sync=True).get())  # type: ignore[call-arg, union-attr]
    except ValueError:
        return None


def _close_task_runs(label: str) -> None:
    """Mark unfinished task runs Crashed if their flow run has this label and has ended.

    Also marks task runs of an earlier process of the current flow run, so call it before any task run starts. Without
    this, task runs keep their state when their flow run, whose process was killed, is marked Crashed.
    """
    ended = FlowRunFilterState(type=FlowRunFilterStateType(any_=sorted(TERMINAL_STATES)))
    try:
        with get_client(sync_client=True) as client:
            _close(client, FlowRunFilter(tags=FlowRunFilterTags(all_=[label]), state=ended))
            if (flow_run := _flow_run()) is not None:
                _close(client, FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.id])))
    except Exception as error:  # noqa: BLE001 - the run continues, whatever Prefect's client raises
        logger.warning("task runs of earlier flow runs could not be marked: %s", error)


def _close(client: SyncPrefectClient, of: FlowRunFilter) -> None:
    under_way = TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_NON_TERMINAL)))
    for task_run in client.read_task_runs(flow_run_filter=of, task_run_filter=under_way):
        said: State[Any] = Crashed(message="Its flow run ended without reporting its state.")
        client.set_task_run_state(task_run.id, said, force=True)
