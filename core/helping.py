"""Helping with a stage instance that another process runs: working at its shards, writing nothing else of it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from treadle.core.attempt_log import log_to
from treadle.core.bound_inputs import bind_inputs, open_inputs
from treadle.core.context import Context, NullProgress, work_at_shards
from treadle.core.errors import RunError, StorageError
from treadle.core.execute import fingerprint_of, is_current
from treadle.core.locks import LeaseWatch, watch_leases
from treadle.core.runs import Run
from treadle.core.shards import ShardPlan
from treadle.core.stage import Instance, JournalView, Progress

_log = logging.getLogger(__name__)


class NotUnderWay(RunError):
    """The instance is not begun in shards: there is nothing to help with now, but there may be later."""


def check_shared(instance: Instance) -> None:
    """Raise RunError for an instance of a stage that is never shared."""
    if instance.stage.work is None:
        raise RunError(f"{instance.address}: a stage {instance.stage.name} is done by one process; nobody can help")


def has_free_shards(instance: Instance, run: Run, watch: LeaseWatch) -> bool:
    """Whether there is anything for `help_instance` to do, now; raises RunError as that does."""
    check_shared(instance)
    try:
        inputs = bind_inputs(instance, run)
    except RunError as error:
        raise NotUnderWay(str(error)) from error
    fingerprint = fingerprint_of(instance, inputs)
    shards = run.shards(instance.address, fingerprint)
    plan = shards.plan()
    if plan is not None:
        return shards.any_free(plan, watch)
    record = run.record(instance.address)
    if record is not None and is_current(record, instance.stage, fingerprint, run):
        return False
    raise NotUnderWay(f"{shards.what} is not divided into shards now; begin it with `shards` set above 1, then help")


def help_instance(
    instance: Instance, run: Run, *, progress: Progress | None = None, watch: LeaseWatch | None = None
) -> int:
    """Work at open shards until none is left that no living process holds; returns how many were worked through here.

    The instance is begun, and its rows are written, by `execute` in another process, which may have ended meanwhile.
    Raises NotUnderWay where it is not begun in shards, and whatever its stage raises: its shard is then open again.
    """
    watch, work = watch or watch_leases(run.storage), instance.stage.work
    if not has_free_shards(instance, run, watch) or work is None:
        return 0
    inputs = bind_inputs(instance, run)
    shards = run.shards(instance.address, fingerprint_of(instance, inputs))
    plan = shards.plan()
    if plan is None:
        return 0
    with _log_beside(run, instance, plan) as log, tempfile.TemporaryDirectory(prefix="treadle-") as scratch:

        def context_of(journal: JournalView) -> Context:
            return Context(
                address=instance.address,
                attempt=plan.attempt,
                settings=instance.settings,
                inputs=open_inputs(run, inputs),
                producers=instance.inputs,
                journal=journal,
                progress=progress or NullProgress(),
                accept_failures=False,
                scratch=Path(scratch),
                workspace=Path(scratch) / "workspace",
                store_of=run.store,
            )

        shown = progress or NullProgress()
        return work_at_shards(shards, work, context_of, progress=shown, wait=False, growing=(log,), watch=watch)


@contextlib.contextmanager
def _log_beside(run: Run, instance: Instance, plan: ShardPlan) -> Iterator[str]:
    """A log of this process beside that of the attempt; its key."""
    name = re.sub(r"[^A-Za-z0-9.-]", "-", f"{socket.gethostname()}-{os.getpid()}")
    key = run.attempt_key(instance.address, plan.attempt, f"workers/{name}.txt")
    path = run.storage.directory(key)
    try:
        with log_to(path):
            try:
                yield key
            except Exception as error:
                _log.error("this worker ends: %s", error, exc_info=True)
                raise
    finally:
        try:
            run.storage.keep(key)
        except StorageError as failure:
            _log.warning("the log of this worker is only on this machine, in %s: %s", path, failure)
