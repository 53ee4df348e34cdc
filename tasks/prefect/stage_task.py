"""Define the Prefect task that runs a stage instance.

`execute` skips finished work and resumes attempts, so Prefect's caching and result storage are disabled. Runs started
here and from the command line recognize each other's results.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext

from treadle.core.errors import TreadleError
from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.untrusted.sanitize import one_line
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.prefect.flow_process import end_with_worker, interrupt_on_sigterm
from treadle.tasks.prefect.flow_run_listener import TeeProgress, flow_run_listener
from treadle.tasks.prefect.helper_runs import helped_by_workers
from treadle.tasks.prefect.progress import PrefectProgress
from treadle.tasks.prefect.stage_card import stage_card
from treadle.tasks.prefect.ui_artifacts import artifact_key, create_artifact
from treadle.tasks.run_instances import run_instance
from treadle.tasks.serving.servers import ModelServers

logger = logging.getLogger(__name__)

_RETRIES, _RETRY_DELAY_S = 2, 30


def _is_retryable(task: Any, task_run: TaskRun, state: State[Any]) -> bool:
    """Return whether a retry can help, as for an unreachable endpoint but not for a wrong configuration."""
    try:
        state.result()
    except TreadleError as error:
        return error.retryable
    except Exception:  # noqa: BLE001 - any other failure is a bug that a retry would only repeat
        return False
    return False


@task(
    task_run_name="{address}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=_RETRIES,
    retry_delay_seconds=_RETRY_DELAY_S,
    retry_condition_fn=_is_retryable,
)
def run_stage(
    address: str,
    run_id: str,
    root: str,
    config: TreadleConfig,
    force: bool = False,
    accept_failures: bool = False,
    retry: Sequence[str] = (),
    servers: ModelServers | None = None,
) -> str:
    """Run one stage instance of an existing run with the flow's model servers; return its record's fingerprint."""
    end_with_worker()
    run, wanted = Run.open(root, run_id), instance(config, Address.parse(address))
    key = artifact_key(run_id, address)
    # Each artifact takes about 10 KB of the server's database; stages without model calls or training are mostly brief.
    is_brief = not wanted.stage.telemetry
    with (
        _report_retries(address),
        PrefectProgress(f"progress-{key}", address, even_if_brief=not is_brief) as posted,
        flow_run_listener().running(wanted, run) as shown,
        interrupt_on_sigterm(),
    ):
        record = run_instance(
            wanted,
            run,
            force=force,
            accept_failures=accept_failures,
            retry=frozenset(retry),
            progress=TeeProgress(posted, shown),
            servers=servers,
            helper_scope=helped_by_workers(wanted, run, config.flow.workers),
            notify=_tell,
        )
    flow_run_listener().made(record)
    publish(record, run, key)
    return record.fingerprint


def _tell(line: str) -> None:
    """Log a line in the task run, and show it to the listener."""
    logger.info(line)
    flow_run_listener().tell(line)


@contextmanager
def _report_retries(address: str) -> Iterator[None]:
    """Show each failure that Prefect retries to the listener; the last one ends the command."""
    try:
        yield
    except TreadleError as error:
        context = TaskRunContext.get()
        if error.retryable and context is not None and context.task_run.run_count <= _RETRIES:
            flow_run_listener().tell(f"{address}: {one_line(str(error))}; retrying in {_RETRY_DELAY_S} s")
        raise


def publish(record: StageRecord, run: Run, key: str) -> None:
    """Show a finished stage in the UI: a card with counts and digests, and its main table if there is one."""
    what = f"{record.address} of run {run.run_id}"
    try:
        card = stage_card(record, run)
        create_artifact("markdown", f"stage-{key}", card.markdown, what)
        if card.rows:
            create_artifact("table", f"table-{key}", orjson.dumps(card.rows).decode(), what)
        if card.links:
            create_artifact("markdown", f"link-{key}", card.links, what)
    except Exception as error:  # noqa: BLE001 - the stage is done, even if its card cannot be shown
        logger.warning("%s could not be shown in Prefect: %s", what, error)
