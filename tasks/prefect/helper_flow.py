"""Help with a stage from a flow run that a worker has started: do what `treadle work` does."""

from __future__ import annotations

import logging
from pathlib import Path

from prefect import get_run_logger

from treadle.core.errors import ConfigError
from treadle.core.runs.helping import NoOpenShards
from treadle.core.runs.run import Run
from treadle.core.store.roots import is_object_store
from treadle.tasks.planning.run_setup import stored_config
from treadle.tasks.prefect.flow_process import end_with_worker, interrupt_on_sigterm
from treadle.tasks.prefect.flow_runs import begin_flow_run
from treadle.tasks.prefect.progress import PrefectProgress
from treadle.tasks.prefect.ui_artifacts import artifact_key
from treadle.tasks.shard_worker import open_for_work, shards_text, work_at

_log = logging.getLogger(__name__)


def help_from_flow(run_id: str, address: str, root: str) -> str:
    """Work on shards of an instance from a separate flow run; return a message about the result.

    If the instance is not running (any more), nothing is done. Raises ConfigError for a relative root, and as `treadle
    work` does.
    """
    if not is_object_store(root) and not Path(root).is_absolute():
        raise ConfigError(
            f"root {root!r} is relative to the working directory, and each worker has its own; "
            "give an absolute folder that all workers reach, or s3://bucket/prefix"
        )
    end_with_worker()
    begin_flow_run(stored_config(Run.open(root, run_id)), run_id, address)
    wanted, run, config = open_for_work(root, run_id, address)
    notify = get_run_logger().info
    with PrefectProgress(artifact_key("work", run_id, address), address) as progress, interrupt_on_sigterm():
        try:
            return shards_text(work_at(wanted, run, config, progress=progress, notify=notify))
        except NoOpenShards as nothing:
            _log.info("%s", nothing)
            return f"nothing to help with: {nothing}"
