"""Run a stage instance: bind inputs, fingerprint, skip if done, run, check, commit, write the record.

This is the only way to run one. The record is written last, so its existence means that the result is complete. The
command line and Prefect call the same function and therefore see the same state.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from typing import Literal

from treadle.core.config import digest_json, semantic_dump
from treadle.core.errors import EndpointUnavailable, JobsPending, RunError
from treadle.core.gc.commit_gate import committing
from treadle.core.runs.attempt import Attempt, HelperScope, clean_up
from treadle.core.runs.bound_inputs import bind_inputs, warn_of_stale
from treadle.core.runs.records import InputRef, StageRecord
from treadle.core.runs.retry import check_retry, num_with_status
from treadle.core.runs.reused import counterparts, result_origin
from treadle.core.runs.run import Run, utc_now
from treadle.core.runs.stage import Instance, Progress, Stage
from treadle.core.store.artifacts import artifact_exists
from treadle.core.store.leases import Lease

_log = logging.getLogger(__name__)

Plan = Literal["reuse", "take over", "run", "missing input"]


def execute(
    instance: Instance,
    run: Run,
    *,
    force: bool = False,
    accept_failures: bool = False,
    retry: Set[str] = frozenset(),
    progress: Progress | None = None,
    helper_scope: HelperScope | None = None,
) -> StageRecord:
    """Run a stage instance, or return its record with `reused` set if nothing that it depends on has changed.

    If an earlier iteration has an equal result, that result is reused (`StageRecord.reused_from`).

    - `force` reruns the instance from nothing. If a forced attempt was cut off, forcing again resumes it.
    - `accept_failures` lets the stage write failed rows for jobs that infrastructure kept from finishing. Each later
      call tries to fill such gaps; if that fails, the result stays current.
    - `retry` reruns only those rows of the current result that ended in one of these statuses.
    - `helper_scope` is a context manager that is entered while shards are worked on.

    Raises RunError (an input is missing, or another process is running the instance), StageFailed (also for a bug in
    the stage, whose traceback is in the attempt's log) and any TreadleError of the stage. After any failure the next
    call resumes.
    """
    with run.lease(instance.address) as lease:
        # If the record of an input is replaced meanwhile, only the attempt's record still references the old artifact.
        with committing(run.storage, run.key(str(instance.address))):
            inputs = bind_inputs(instance, run)
            warn_of_stale(inputs, run)
            fingerprint = fingerprint_of(instance, inputs)
            plan, record = (
                ("run", run.record(instance.address)) if force else _planned_action(instance, fingerprint, run)
            )
            retried = None
            if retry:
                retried = check_retry(instance, run.record(instance.address), fingerprint, retry)
                plan, record = ("run" if num_with_status(retried, retry) else "reuse"), retried
            if record is not None and plan == "reuse":
                _log.info("%s is already done, with artifacts %s", instance.address, record.describe_outputs())
                clean_up(record, run, instance, lease)
                return record.model_copy(update={"reused": True})
            if record is not None and plan == "take over":
                return _reuse_earlier(record, instance, inputs, run, lease)
            fills_gaps = not force and not retry and record is not None and _is_available(record, fingerprint, run)
            attempt = Attempt(
                instance,
                run,
                inputs,
                fingerprint,
                lease,
                force=force,
                fills_gaps=fills_gaps,
                retried=retried,
                retry=retry,
                helper_scope=helper_scope,
            )
        try:
            return attempt.make(accept_failures, progress)
        except (JobsPending, EndpointUnavailable) as error:
            if retry:
                _log.warning("%s is unchanged; run again with --retry to retry these rows", instance.address)
                raise
            if record is None or not fills_gaps:
                raise
            _log.warning("%s is unchanged, its accepted failures failed again: %s", instance.address, error)
            return record.model_copy(update={"reused": True})


def planned_action(instance: Instance, run: Run) -> Plan:
    """Return what `execute` would do now, without doing it."""
    try:
        inputs = bind_inputs(instance, run)
    except RunError:
        return "missing input"
    return _planned_action(instance, fingerprint_of(instance, inputs), run)[0]


def _planned_action(instance: Instance, fingerprint: str, run: Run) -> tuple[Plan, StageRecord | None]:
    """Return what to do with an instance without `force`, and the result that is reused, copied or replaced.

    A result that was made here is kept, even with gaps, which are filled here. A result that was reused from an earlier
    iteration follows its origin.
    """
    record = run.record(instance.address)
    has_own = record is not None and not record.reused_from and _is_available(record, fingerprint, run)
    if not has_own and (same := _equal_result(instance, fingerprint, run)) is not None:
        return ("take over", same) if record is None or record.outputs != same.outputs else ("reuse", record)
    is_done = record is not None and is_current(record, instance.stage, fingerprint, run)
    return "reuse" if is_done else "run", record


def equal_result(instance: Instance, run: Run) -> StageRecord | None:
    """Return the equal result of an earlier iteration, if there is one; raise RunError if an input is missing."""
    return _equal_result(instance, fingerprint_of(instance, bind_inputs(instance, run)), run)


def _equal_result(instance: Instance, fingerprint: str, run: Run) -> StageRecord | None:
    records = (run.record(address) for address in counterparts(instance))
    return next((one for one in records if one is not None and _is_available(one, fingerprint, run)), None)


def _reuse_earlier(
    same: StageRecord, instance: Instance, inputs: Mapping[str, tuple[InputRef, ...]], run: Run, lease: Lease
) -> StageRecord:
    """Make the result of an equal instance the current result of this one."""
    now = utc_now()
    own = {"address": str(instance.address), "inputs": dict(inputs), "attempt": 0, "token": lease.token}
    origin = result_origin(same, run.record) or same.address
    record = same.model_copy(update={**own, "reused_from": origin, "started_at": now, "finished_at": now})
    run.write_record(record, lease)
    _log.info("%s reuses the result of %s, with artifacts %s", instance.address, origin, record.describe_outputs())
    return record


def fingerprint_of(instance: Instance, inputs: Mapping[str, tuple[InputRef, ...]]) -> str:
    """Return the hex digest of the work: stage, versions, semantic settings and digests of the inputs."""
    return work_digest(instance, {name: [ref.artifact.digest for ref in refs] for name, refs in inputs.items()})


def work_digest(instance: Instance, inputs: Mapping[str, Sequence[str]]) -> str:
    """Return the hex digest of the work with inputs identified by these names: the fingerprint if they are digests."""
    stage = instance.stage
    return digest_json(
        {
            "stage": stage.name,
            "version": stage.version,
            "produces": {table.kind: table.version for table in stage.produces},
            "settings": semantic_dump(instance.settings),
            "inputs": {name: list(given) for name, given in inputs.items() if given},
        }
    )


def is_current(record: StageRecord, stage: Stage, fingerprint: str, run: Run) -> bool:
    """Return whether the result matches the fingerprint, has no gaps, and its artifacts exist."""
    return stage.is_complete(record.metrics) and _is_available(record, fingerprint, run)


def _is_available(record: StageRecord, fingerprint: str, run: Run) -> bool:
    if record.fingerprint != fingerprint:
        return False
    return all(artifact_exists(run.storage, ref) for ref in record.outputs.values())
