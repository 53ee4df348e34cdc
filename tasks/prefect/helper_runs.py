"""Start flow runs that help with a stage: processes started through Prefect that do what `treadle work` does.

The flow run of a sharded stage requests them when it begins, one per worker and not per shard, and cancels those that
have not started when it ends. It does not depend on them, nor on Prefect: if a helper does not start or fails, the
other processes do its work.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling

from treadle.core.engines.config import VllmServer
from treadle.core.runs.attempt import HelperScope
from treadle.core.runs.execute import planned_action
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.tasks.prefect.deployments import GPU_QUEUE
from treadle.tasks.prefect.settings import TAG
from treadle.tasks.serving.served_models import served_models

_log = logging.getLogger(__name__)

DEPLOYMENT = "work/shards"


def helped_by_workers(wanted: Instance, run: Run, num_workers: int) -> HelperScope | None:
    """Return the context manager that `execute` enters while it works on shards; None if no flow runs can help.

    For the duration of its block, up to `num_workers` flow runs help.
    """
    if not num_workers or wanted.stage.work is None:
        return None
    if wanted.stage.num_shards(wanted.settings) == 1 and planned_action(wanted, run) in ("run", "missing input"):
        _log.warning(
            "flow.workers is %d, but no worker can join %s: it has one shard; set %s.shards above 1",
            num_workers, wanted.address, wanted.address.stage,
        )  # fmt: skip

    @contextmanager
    def helper_scope(num_open: int) -> Iterator[None]:
        asked_for: list[UUID] = []
        try:
            # This process works on one of the open shards itself.
            _request_helpers(min(num_workers, num_open - 1), wanted, run, asked_for)
            yield
        finally:
            _cancel_unstarted(asked_for)

    return helper_scope


def _request_helpers(count: int, wanted: Instance, run: Run, asked_for: list[UUID]) -> None:
    """Submit flow runs and append their ids to `asked_for`."""
    address = wanted.address
    # Each helper serves the models itself that the run serves.
    served = any(isinstance(model.server, VllmServer) for model in served_models(wanted.settings))
    # A worker has its own working directory, so pass the root as an absolute path or URL.
    parameters = {"run_id": run.run_id, "instance": str(address), "root": run.storage.location()}
    try:
        for _ in range(count):
            name = f"{run.run_id} {address} worker"
            tags = [TAG, f"run:{run.run_id}", f"stage:{address.stage}"]
            made = run_deployment(
                DEPLOYMENT, parameters=parameters, flow_run_name=name, timeout=0, tags=tags,
                work_queue_name=GPU_QUEUE if served else None,
            )  # fmt: skip
            asked_for.append(cast(FlowRun, made).id)
    except ObjectNotFound:
        _log.warning(
            "%s continues without workers: there is no deployment %s; create it with: treadle prefect deploy",
            address, DEPLOYMENT,
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - whatever Prefect's client raises, the stage continues
        _log.warning("%s continues with %d workers instead of %d: %s", address, len(asked_for), count, error)


def _cancel_unstarted(flow_runs: Sequence[UUID]) -> None:
    """Cancel flow runs that have not started; the others find no shards left and end on their own."""
    if not flow_runs:
        return
    try:
        with get_client(sync_client=True) as client:
            for flow_run in flow_runs:
                state = client.read_flow_run(flow_run).state
                # Only those that no worker has started; the others end on their own.
                if state is not None and state.is_scheduled():
                    client.set_flow_run_state(flow_run, Cancelling(message="the stage has ended"))
    except Exception as error:  # noqa: BLE001 - whatever Prefect's client raises, the stage has ended
        _log.warning("flow runs that were not started could not be cancelled; they will find nothing to do: %s", error)
