"""What a flow run does beside its work: says in the UI whose run it is, and looks up keys that Prefect keeps."""

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

from treadle.core.stage import Address
from treadle.tasks.begin_checks import key_variables
from treadle.tasks.config import TreadleConfig
from treadle.tasks.prefect.audience import audience
from treadle.tasks.prefect.leftovers import close_task_runs

logger = logging.getLogger(__name__)


def begin_flow_run(config: TreadleConfig, run_id: str, instance: str | None = None) -> None:
    """Label the flow run, tell what became of task runs of killed ones before it, and look up keys in Secret blocks.

    `instance` is the address where the flow run is of one stage.
    """
    _tell_where()
    close_task_runs(f"run:{run_id}")
    _label(f"run:{run_id}", *([f"stage:{Address.parse(instance).stage}"] if instance else []))
    keys_from_blocks(config)


def keys_from_blocks(config: TreadleConfig) -> None:
    """Put keys that the configuration names and the environment lacks there, from Secret blocks."""
    for name in sorted(key_variables(config)):
        if not os.environ.get(name) and (value := _secret(block_of(name))):
            os.environ[name] = value


@contextmanager
def small_events() -> Iterator[None]:
    """Let the events of task runs begun inside name flow run, flow and tags, and not deployment, queue and pool too.

    The flow run's own events name those. Three events come with each task run, each with a row and five indexes for
    everything it names, and with the three it is so long that a page of SQLite holds one event instead of two.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        yield
        return
    nameless = {"deployment_id": None, "work_queue_id": None, "work_pool_name": None}
    with context.model_copy(update={"flow_run": context.flow_run.model_copy(update=nameless)}):
        yield


def block_of(variable: str) -> str:
    """The Secret block that stands for an environment variable: Prefect takes small letters, digits and dashes."""
    return variable.lower().replace("_", "-").strip("-")


def flow_log(line: str) -> None:
    """Say what goes on beside the stages: in the log of the flow run, and to who watches it."""
    get_run_logger().info(line)
    audience().tell(line)


def _tell_where() -> None:
    """Tell who watches where the UI shows the flow run."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    audience().begins(url_for("flow-run", context.flow_run.id) or "")


def _label(*labels: str) -> None:
    """Tag the flow run, so that the UI can filter by run and stage."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(context.flow_run.id, tags=list(dict.fromkeys([*context.flow_run.tags, *labels])))
    except Exception as error:  # noqa: BLE001 - the run goes on, whatever Prefect's client raises now
        logger.warning("the flow run could not be labelled: %s", error)


def _secret(block: str) -> str | None:
    """What a Secret block holds; None where there is no such block, of which whoever needs the key will complain."""
    try:
        return str(Secret.load(block, _sync=True).get())  # type: ignore[call-arg, union-attr]
    except ValueError:
        return None
