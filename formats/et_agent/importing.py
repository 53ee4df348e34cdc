"""Import results of another program as the result of a stage, so that later stages continue from them.

The record has the fingerprint that the stage itself would produce, so the instance is not run again. The record's
metrics, the artifact (`imported.json`) and its rows state that it was imported, and from which content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from treadle.core.errors import ConfigError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.leases import holder_of
from treadle.core.untrusted.input_files import file_sha256
from treadle.formats.et_agent.import_job import ImportJob
from treadle.formats.et_agent.import_result import ImportResult
from treadle.formats.et_agent.records import ImportKind
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig


def import_records(
    path: Path, kind: ImportKind, config: TreadleConfig, run: Run, address: Address, *, force: bool = False
) -> tuple[StageRecord, ImportResult]:
    """Import the rows of a file as the result of a stage instance whose questions already exist.

    Rows that cannot be used are left out, including those whose question the stage itself would not use. Raises
    RunError if there is another result or unfinished work (both unless `force`), or if other processes work on its
    shards; DataError if no row can be used; and as `execute` does.
    """
    wanted = instance(config, address)
    if wanted.stage.name != kind:
        raise ConfigError(f"{address} makes no {kind}; name an instance such as {_EXAMPLES[kind]}")
    sha256, earlier = file_sha256(path), run.record(address)
    is_same = earlier is not None and earlier.metrics.get("imported_sha256") == sha256
    if earlier is not None and not is_same and not force:
        made = f"imported from {earlier.imported_from}" if earlier.imported_from else "made by the stage itself"
        raise RunError(f"{address} of run {run.run_id} has a result already, {made}; replace it with --force")
    _check_begun(run, address, force=force)
    job = ImportJob(path, kind, sha256, config, wanted)
    # The file's content differs from what the stage would make, so equal work of an earlier iteration must not be
    # reused.
    stage = replace(wanted.stage, run=job.run, work=None, jobs=None, depends_on_address=True)
    record = execute(replace(wanted, stage=stage), run, force=force)
    return record, job.found


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


_EXAMPLES: Mapping[ImportKind, str] = {"pools": "1/pools", "rollouts": "1/rollouts@base or 1/rollouts@phase-1"}
