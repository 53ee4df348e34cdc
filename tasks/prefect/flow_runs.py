"""Prepare a flow run: label it in the UI, and load API keys from Prefect's Secret blocks."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.blocks.system import Secret
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.utilities.urls import url_for

from treadle.core.runs.address import Address
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.run_setup_checks import key_variables
from treadle.tasks.prefect.flow_run_listener import flow_run_listener
from treadle.tasks.prefect.stale_task_runs import close_task_runs

logger = logging.getLogger(__name__)


def begin_flow_run(config: TreadleConfig, run_id: str, instance: str | None = None) -> None:
    """Label the flow run, close task runs of killed flow runs, and load API keys from Secret blocks.

    `instance` is the address if the flow run is of a single stage.
    """
    _report_url()
    close_task_runs(f"run:{run_id}")
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


def _report_url() -> None:
    """Report the address of the flow run in the UI to the listener."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    flow_run_listener().begins(url_for("flow-run", context.flow_run.id) or "")


def _label(*labels: str) -> None:
    """Tag the flow run, so that the UI can filter by run and stage."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(context.flow_run.id, tags=list(dict.fromkeys([*context.flow_run.tags, *labels])))
    except Exception as error:  # noqa: BLE001 - the run continues, whatever Prefect's client raises
        logger.warning("the flow run could not be labelled: %s", error)


def _secret(block: str) -> str | None:
    """Return the value of a Secret block; None if it does not exist: the code that needs the key reports it."""
    try:
        return str(Secret.load(block, _sync=True).get())  # type: ignore[call-arg, union-attr]
    except ValueError:
        return None
