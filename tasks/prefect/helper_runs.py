"""Flow runs that help with a stage: further processes, started through Prefect, that do what `treadle work` does.

The flow run that makes a stage in shards asks for them when it begins, one per worker and not per shard, and withdraws
those that nobody has begun when it ends. It depends on none of them, and on Prefect as little: what is not started, or
fails, is work that is left to the others.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling

from treadle.core.attempt import Helped
from treadle.core.config import load_config
from treadle.core.engines.config import VllmServer
from treadle.core.errors import ConfigError
from treadle.core.execute import state_of
from treadle.core.helping import NotUnderWay
from treadle.core.parent import end_with_parent, stays_behind
from treadle.core.runs import Run
from treadle.core.stage import Instance
from treadle.core.storage import is_object_store
from treadle.tasks.config import TreadleConfig
from treadle.tasks.prefect.deployments import GPU_QUEUE
from treadle.tasks.prefect.flow_runs import begin_flow_run
from treadle.tasks.prefect.progress import PrefectProgress
from treadle.tasks.prefect.settings import TAG
from treadle.tasks.serving.served_models import served_models
from treadle.tasks.work import open_for_work, shards_text, work_at

_log = logging.getLogger(__name__)

DEPLOYMENT = "work/shards"
_OF_WORKER = "PREFECT__FLOW_RUN_ID"
"""Set by Prefect in processes that a worker started."""


def end_with_worker() -> None:
    """End with what started this process: Prefect leaves that of a flow run behind when its worker is killed."""
    if _OF_WORKER in os.environ or not stays_behind():
        end_with_parent()


def artifact_key(*parts: str) -> str:
    """Key of an artifact in the UI, of letters, digits and dashes."""
    return re.sub(r"[^a-z0-9-]+", "-", "-".join(parts).lower()).strip("-")


def helped_by_workers(wanted: Instance, run: Run, num_workers: int) -> Helped | None:
    """What `execute` enters while shards are worked at: a block in which so many flow runs come to help, or None."""
    if not num_workers or wanted.stage.work is None:
        return None
    if wanted.stage.num_shards(wanted.settings) == 1 and state_of(wanted, run) in ("run", "missing input"):
        _log.warning(
            "flow.workers is %d, but nobody can help with %s: it is begun with one shard; set %s.shards above 1",
            num_workers, wanted.address, wanted.address.stage,
        )  # fmt: skip

    @contextmanager
    def helped(num_open: int) -> Iterator[None]:
        asked_for: list[UUID] = []
        try:
            # One shard is for this process.
            _ask_for(min(num_workers, num_open - 1), wanted, run, asked_for)
            yield
        finally:
            _withdraw(asked_for)

    return helped


def _ask_for(count: int, wanted: Instance, run: Run, asked_for: list[UUID]) -> None:
    """Submit flow runs, and note their ids."""
    address = wanted.address
    # Each serves for itself what the run serves.
    served = any(isinstance(model.server, VllmServer) for model in served_models(wanted.settings))
    # A worker has its own working directory: the root is told as a whole path or URL.
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
            "%s goes on without workers: there is no deployment %s; make it with: treadle prefect deploy",
            address, DEPLOYMENT,
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - whatever Prefect's client raises, the stage goes on
        _log.warning("%s goes on with %d workers instead of %d: %s", address, len(asked_for), count, error)


def _withdraw(flow_runs: Sequence[UUID]) -> None:
    """Cancel those that nobody has begun; the others find nothing left and end by themselves."""
    if not flow_runs:
        return
    try:
        with get_client(sync_client=True) as client:
            for flow_run in flow_runs:
                state = client.read_flow_run(flow_run).state
                if state is not None and state.is_scheduled():
                    client.set_flow_run_state(flow_run, Cancelling(message="the stage is over"))
    except Exception as error:  # noqa: BLE001 - whatever Prefect's client raises, the stage has ended
        _log.warning("flow runs that nobody has begun could not be withdrawn; they will find nothing to do: %s", error)


def help_from_flow(run_id: str, address: str, root: str) -> str:
    """Work at shards of an instance from a flow run of its own; returns what came of it.

    Where the instance is not under way (any more), that is nothing. Raises ConfigError for a relative root, and as
    `treadle work` does.
    """
    if not is_object_store(root) and not Path(root).is_absolute():
        raise ConfigError(
            f"root {root!r} is counted from the working directory, and each worker has its own; "
            "give an absolute folder that all workers reach, or s3://bucket/prefix"
        )
    end_with_worker()
    begin_flow_run(load_config(TreadleConfig, base=Run.open(root, run_id).config()), run_id, address)
    wanted, run, config = open_for_work(root, run_id, address)
    wait_s, notify = config.flow.device_wait_s, get_run_logger().info
    with PrefectProgress(artifact_key("work", run_id, address), address) as progress, orderly_end():
        try:
            return shards_text(work_at(wanted, run, device_wait_s=wait_s, progress=progress, notify=notify))
        except NotUnderWay as nothing:
            _log.info("%s", nothing)
            return f"nothing to help with: {nothing}"


@contextmanager
def orderly_end() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, then do what it does in Prefect.

    What Prefect raises is no KeyboardInterrupt: in an event loop it may end in the task that it struck.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ended = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal ended
        ended = True
        raise KeyboardInterrupt

    before: Any = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if not ended:
            raise
        signal.signal(signal.SIGTERM, before)
        os.kill(os.getpid(), signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
