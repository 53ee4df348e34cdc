"""Run a process worker that accepts only Treadle's deployments: `python -m treadle.tasks.prefect.worker OPTIONS`.

Prefect's own worker runs whatever a deployment says: its pull steps may be shell scripts, its job variables a command.
Anyone who can create a deployment on the server could thus run code as the user of each worker. This worker compares a
flow run's deployment with what `treadle prefect deploy` creates, and reports the flow run as crashed if it differs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prefect.settings import get_current_settings
from prefect.utilities.processutils import setup_signal_handlers_worker
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult

from treadle.tasks.prefect.deployments import FLOWS
from treadle.tasks.prefect.settings import FLOW_RUN_ENV

if TYPE_CHECKING:
    import anyio.abc
    from prefect.client.schemas.objects import FlowRun

_ENTRYPOINTS = frozenset(f"treadle.flows.flywheel.{flow}" for flow in FLOWS)
_PULL_STEP = "prefect.deployments.steps.set_working_directory"
_JOB_VARIABLES = {"env": dict(FLOW_RUN_ENV)}


class UntrustedDeployment(Exception):
    """A flow run whose deployment Treadle did not create."""


class TreadleWorker(ProcessWorker):
    """Prefect's process worker, restricted to deployments of Treadle."""

    type = "treadle-process"

    async def run(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        task_status: anyio.abc.TaskStatus[int] | None = None,
    ) -> ProcessWorkerResult:
        """Run the flow run as a process; raise UntrustedDeployment if its deployment is not Treadle's."""
        if (found := await self._untrusted_part(flow_run, configuration)) is not None:
            raise UntrustedDeployment(
                f"this worker runs only what `treadle prefect deploy` sets up, and this flow run has {found}"
            )
        return await super().run(flow_run, configuration, task_status)

    async def _untrusted_part(self, flow_run: FlowRun, configuration: ProcessJobConfiguration) -> str | None:
        """Return, in words, how the flow run deviates from Treadle's deployments, or None."""
        if flow_run.deployment_id is None:
            return "no deployment"
        deployment = await self.client.read_deployment(flow_run.deployment_id)
        return (
            untrusted_part(deployment.entrypoint, deployment.pull_steps, deployment.job_variables)
            or ("job variables of its own" if flow_run.job_variables else None)
            or ("a command set by the work pool" if configuration._command_configured else None)
            or ("a working directory set by the work pool" if configuration.working_dir else None)
        )


def untrusted_part(
    entrypoint: str | None, pull_steps: list[dict[str, Any]] | None, job_variables: dict[str, Any] | None
) -> str | None:
    """Return, in words, how a deployment deviates from Treadle's deployments, or None."""
    if entrypoint not in _ENTRYPOINTS:
        return f"the entrypoint {str(entrypoint)[:80]!r}"
    steps = pull_steps or []
    is_own_step = len(steps) == 1 and list(steps[0]) == [_PULL_STEP] and list(steps[0][_PULL_STEP]) == ["directory"]
    if not is_own_step:
        return "other pull steps than one working directory"
    if (job_variables or {}) not in ({}, _JOB_VARIABLES):
        return "other job variables"
    return None


def run_worker(pool: str, queues: Sequence[str], limit: int | None, name: str | None = None) -> None:
    """Poll a pool until SIGINT or SIGTERM, taking from the named queues, or from all."""
    settings = get_current_settings().worker
    setup_signal_handlers_worker(os.getpid(), "the Treadle worker", _say)
    worker = TreadleWorker(
        name=name or f"treadle-{socket.gethostname()}-{os.getpid()}",
        work_pool_name=pool,
        work_queues=list(queues),
        limit=limit,
        prefetch_seconds=settings.prefetch_seconds,
        heartbeat_interval_seconds=int(settings.heartbeat_seconds),
        create_pool_if_not_found=False,
    )
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(worker.start(printer=_say))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pool", required=True)
    parser.add_argument("--name")
    parser.add_argument("--queue", action="append", default=[])
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    run_worker(options.pool, options.queue, options.limit, options.name)


if __name__ == "__main__":
    _main()
