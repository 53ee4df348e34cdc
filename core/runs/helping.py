"""Help with a stage instance that another process runs: work on its shards, and write nothing else of it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from treadle.core.errors import RunError
from treadle.core.runs.attempt_log import uploaded_log
from treadle.core.runs.bound_inputs import bind_inputs, open_inputs
from treadle.core.runs.earlier_jobs import reused_jobs
from treadle.core.runs.execute import fingerprint_of, is_current
from treadle.core.runs.records import InputRef
from treadle.core.runs.run import Run
from treadle.core.runs.shard_work import work_on_shards
from treadle.core.runs.shards import ShardPlan, Shards
from treadle.core.runs.stage import Instance, JournalView, Progress, StageContext
from treadle.core.store.leases import LeaseWatch, watch_leases

_log = logging.getLogger(__name__)


class NoOpenShards(RunError):
    """Instance that is not currently divided into shards: nothing to help with now, but there may be later."""


def check_sharded(instance: Instance) -> None:
    """Raise RunError if the instance's stage is not sharded."""
    if instance.stage.work is None:
        raise RunError(
            f"{instance.address}: a stage {instance.stage.name} is not sharded; `treadle work` cannot join it"
        )


def has_free_shards(instance: Instance, run: Run, watch: LeaseWatch) -> bool:
    """Return whether `help_instance` has anything to do now; raise RunError as it does."""
    return _free_shards(instance, run, watch) is not None


def _free_shards(
    instance: Instance, run: Run, watch: LeaseWatch
) -> tuple[dict[str, tuple[InputRef, ...]], Shards, ShardPlan] | None:
    """Return inputs, shards and plan of the instance if a shard is free; raise RunError as `help_instance` does."""
    check_sharded(instance)
    try:
        inputs = bind_inputs(instance, run)
    except RunError as error:
        raise NoOpenShards(str(error)) from error
    fingerprint, attempts = fingerprint_of(instance, inputs), run.attempts(instance.address)
    shards = run.shards(instance.address, attempts[-1].journal_name if attempts else fingerprint)
    plan = shards.plan()
    if plan is not None and plan.fingerprint == fingerprint:
        return (inputs, shards, plan) if shards.any_free(plan, watch) else None
    record = run.record(instance.address)
    if record is not None and is_current(record, instance.stage, fingerprint, run):
        return None
    raise NoOpenShards(f"{shards.what} is not divided into shards; start it with `shards` above 1 first")


def help_instance(
    instance: Instance, run: Run, *, progress: Progress | None = None, watch: LeaseWatch | None = None
) -> int:
    """Work on open shards until living processes hold all of them; return the number that this process finished.

    Another process starts the instance and writes its rows with `execute`; it may have ended meanwhile. Raises
    NoOpenShards if the instance is not divided into shards, and whatever its stage raises, in which case the shard
    stays open.
    """
    watch, work = watch or watch_leases(run.storage), instance.stage.work
    found = _free_shards(instance, run, watch)
    if found is None or work is None:
        return 0
    bound, shards, plan = found
    inputs = open_inputs(run, bound)
    shown = progress or Progress()
    with (
        _log_next_to_attempt(run, instance, plan) as log,
        tempfile.TemporaryDirectory(prefix="treadle-") as scratch,
        reused_jobs(instance, run, Path(scratch), from_scratch=not plan.reuse_results) as reused,
    ):

        def context_of(journal: JournalView) -> StageContext:
            return StageContext(
                address=instance.address,
                attempt=plan.attempt,
                settings=instance.settings,
                inputs=inputs,
                producers=instance.inputs,
                journal=reused.over(journal),
                progress=shown,
                accept_failures=False,
                scratch=Path(scratch),
                workspace=Path(scratch) / "workspace",
                store=run.store,
            )

        return work_on_shards(shards, work, context_of, progress=shown, wait=False, growing=(log,), watch=watch)


@contextlib.contextmanager
def _log_next_to_attempt(run: Run, instance: Instance, plan: ShardPlan) -> Iterator[str]:
    """Log this process to a file next to the attempt's log, and yield its key."""
    name = re.sub(r"[^A-Za-z0-9.-]", "-", f"{socket.gethostname()}-{os.getpid()}")
    key = run.attempt_key(instance.address, plan.attempt, f"workers/{name}.txt")
    with uploaded_log(run.storage, key, "this worker's"):
        try:
            yield key
        except Exception as error:
            _log.error("worker stopped: %s", error, exc_info=True)
            raise
