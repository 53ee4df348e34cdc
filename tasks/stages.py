"""The Prefect task that runs a stage instance.

Skipping finished work and resuming are `execute`'s business, so Prefect's caching and result storage are off, and a
run that was made here is recognised by the command line and the other way round.
"""

from __future__ import annotations

import logging
import os
import re
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun

from treadle.core.errors import TreadleError
from treadle.core.parent import end_with_parent, stays_behind
from treadle.core.records import StageRecord
from treadle.core.runs import Run
from treadle.core.stage import Address
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.progress import PrefectProgress
from treadle.tasks.running import run_instance
from treadle.tasks.stage_card import stage_card

logger = logging.getLogger(__name__)

_OF_WORKER = "PREFECT__FLOW_RUN_ID"
"""Set by Prefect in processes that a worker started."""


def _is_retryable(task: Any, task_run: TaskRun, state: State[Any]) -> bool:
    """Retry what may pass by itself (an endpoint that is down), never a wrong configuration."""
    try:
        state.result()
    except TreadleError as error:
        return error.retryable
    except Exception:  # noqa: BLE001 - any other failure is a bug, which a retry would only repeat
        return False
    return False


@task(
    task_run_name="{address}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=30,
    retry_condition_fn=_is_retryable,
)
def run_stage(
    address: str,
    run_id: str,
    root: str,
    config: TreadleConfig,
    force: bool = False,
    accept_failures: bool = False,
) -> str:
    """Run one stage instance of an existing run; returns the fingerprint of its record."""
    # Prefect leaves the process of a flow run running when its worker is killed.
    if _OF_WORKER in os.environ or not stays_behind():
        end_with_parent()
    run = Run.open(root, run_id)
    key = re.sub(r"[^a-z0-9-]+", "-", f"{run_id}-{address}".lower()).strip("-")
    with PrefectProgress(f"progress-{key}", address) as progress:
        record = run_instance(
            instance(config, Address.parse(address)),
            run,
            force=force,
            accept_failures=accept_failures,
            progress=progress,
        )
    publish(record, run, key)
    return record.fingerprint


def publish(record: StageRecord, run: Run, key: str) -> None:
    """Show a finished stage in the UI: a card with counts and digests, and its main table where there is one."""
    card, what = stage_card(record, run), f"{record.address} of run {run.run_id}"
    try:
        create_markdown_artifact(card.markdown, key=f"stage-{key}", description=what)
        if card.rows:
            create_table_artifact(card.rows, key=f"table-{key}", description=what)
    except Exception as error:  # noqa: BLE001 - the stage is done, whatever Prefect's client raises now
        logger.warning("%s could not be shown in Prefect: %s", what, error)
