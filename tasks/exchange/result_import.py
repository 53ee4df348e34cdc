"""Import results of another program as the result of a stage, so that later stages continue from them.

The record has the fingerprint that the stage itself would produce, so the instance is not run again. The record's
metrics state that it was imported, and from which content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from treadle.core.errors import RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, StageContext
from treadle.core.store.leases import holder_of

IMPORTED_SHA256 = "imported_sha256"
"""Metric with the digest of the imported file."""


def import_result(
    wanted: Instance, run: Run, sha256: str, write: Callable[[StageContext], Mapping[str, Any]], *, force: bool = False
) -> StageRecord:
    """Let `write` make the result of a stage instance from a file with this digest, in place of the stage's function.

    `write` returns metrics, IMPORTED_SHA256 among them. Raises RunError if there is another result or unfinished work
    (both unless `force`), or if other processes work on its shards; and as `execute` and `write` do.
    """
    earlier = run.record(wanted.address)
    is_same = earlier is not None and earlier.metrics.get(IMPORTED_SHA256) == sha256
    if earlier is not None and not is_same and not force:
        made = f"imported from {earlier.imported_from}" if earlier.imported_from else "made by the stage itself"
        raise RunError(f"{wanted.address} of run {run.run_id} has a result already, {made}; replace it with --force")
    _check_begun(run, wanted.address, force=force)
    # The file's content differs from what the stage would make, so equal work of an earlier iteration must not be
    # reused.
    stage = replace(wanted.stage, run=write, work=None, jobs=None, depends_on_address=True)
    return execute(replace(wanted, stage=stage), run, force=force)


def _check_begun(run: Run, address: Address, *, force: bool) -> None:
    """Raise RunError if the import would remove work of the stage: already paid for, or in progress on helpers."""
    status, attempts = run.status(address), run.attempts(address)
    if status.state == "running":
        return  # `execute` asks for its lease next and reports who holds it.
    if status.num_finished and not force:
        raise RunError(
            f"{address} of run {run.run_id} was started; {status.num_finished:,} are finished in its journal, which "
            "an import would delete; continue it (`treadle status` shows how), or import anyway with --force"
        )
    shards = run.shards(address, attempts[-1].journal_name) if attempts else None
    if shards is None or (plan := shards.plan()) is None:
        return
    if any(holder_of(run.storage, shards.lock_key(index)) for index in range(plan.num_shards)):
        raise RunError(
            f"other processes work at shards of {address} of run {run.run_id}; wait until they are done, or stop them, "
            "then import again"
        )
