"""The only way to run a stage instance: bind, fingerprint, skip if done, run, check, commit, record.

The record is written last, so its existence means that the result is complete. The command line and Prefect call the
same function and therefore see the same state.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from treadle.core.artifacts import artifact_exists
from treadle.core.attempt import Attempt, Helped, tidy
from treadle.core.bound_inputs import bind_inputs, warn_of_stale
from treadle.core.config import digest_json, semantic_dump
from treadle.core.errors import EndpointUnavailable, RolloutsOwed, RunError
from treadle.core.gc.commit_gate import committing
from treadle.core.locks import Lease
from treadle.core.records import InputRef, StageRecord
from treadle.core.runs import Run, utc_now
from treadle.core.stage import Address, Instance, Progress, Stage
from treadle.core.taken_over import shown_at

_log = logging.getLogger(__name__)

Plan = Literal["reuse", "take over", "run", "missing input"]


def execute(
    instance: Instance,
    run: Run,
    *,
    force: bool = False,
    accept_failures: bool = False,
    progress: Progress | None = None,
    helped: Helped | None = None,
) -> StageRecord:
    """Run a stage instance, or return its record (`reused`) when nothing that it depends on has changed.

    What an earlier iteration has done already is not done twice: its result is taken over (`StageRecord.same_as`).
    `force` runs it again from nothing; where a forced attempt was cut off, forcing again continues it.
    `accept_failures` lets the stage write failed rows for what infrastructure kept from finishing; a result with such
    gaps is made again by each later call, and stays in force where they cannot be filled. `helped` is entered while
    shards are worked at. Raises RunError
    (an input is missing, another process is at it), StageFailed (also for a bug in the stage: its traceback is in the
    attempt's log) and whatever TreadleError the stage raises. After any failure the next call continues.
    """
    with run.lease(instance.address) as lease:
        # Of an input whose record is replaced meanwhile nothing but the attempt tells that it is read.
        with committing(run.storage, run.key(str(instance.address))):
            inputs = bind_inputs(instance, run)
            warn_of_stale(inputs, run)
            fingerprint = fingerprint_of(instance, inputs)
            plan, record = ("run", run.record(instance.address)) if force else _planned(instance, fingerprint, run)
            if record is not None and plan == "reuse":
                _log.info("%s is done already, with artifacts %s", instance.address, record.outputs_in_words())
                tidy(record, run, instance, lease)
                return record.model_copy(update={"reused": True})
            if record is not None and plan == "take over":
                return _take_over(record, instance, inputs, run, lease)
            fills_gaps = not force and record is not None and _is_there(record, fingerprint, run)
            attempt = Attempt(
                instance, run, inputs, fingerprint, lease, force=force, fills_gaps=fills_gaps, helped=helped
            )
            attempt.open()
        try:
            return attempt.make(accept_failures, progress)
        except (RolloutsOwed, EndpointUnavailable) as error:
            if record is None or not fills_gaps:
                raise
            _log.warning("%s still lacks what was accepted as missing, and stays as it is: %s", instance.address, error)
            return record.model_copy(update={"reused": True})


def state_of(instance: Instance, run: Run) -> Plan:
    """What `execute` would do now, without doing it."""
    try:
        inputs = bind_inputs(instance, run)
    except RunError:
        return "missing input"
    return _planned(instance, fingerprint_of(instance, inputs), run)[0]


def _planned(instance: Instance, fingerprint: str, run: Run) -> tuple[Plan, StageRecord | None]:
    """What becomes of an instance that is not forced, and the result that is reused, taken over or replaced.

    One that was made here stays, even with gaps, which are filled here; one that was taken over follows its origin.
    """
    record = run.record(instance.address)
    has_own = record is not None and not record.same_as and _is_there(record, fingerprint, run)
    if not has_own and (same := _equal_result(instance, fingerprint, run)) is not None:
        return ("take over", same) if record is None or record.outputs != same.outputs else ("reuse", record)
    is_done = record is not None and is_current(record, instance.stage, fingerprint, run)
    return "reuse" if is_done else "run", record


def equal_result(instance: Instance, run: Run) -> StageRecord | None:
    """The result that an earlier iteration made of the same, if there is one; raises RunError for a missing input."""
    return _equal_result(instance, fingerprint_of(instance, bind_inputs(instance, run)), run)


def _equal_result(instance: Instance, fingerprint: str, run: Run) -> StageRecord | None:
    records = (run.record(address) for address in counterparts(instance))
    return next((one for one in records if one is not None and _is_there(one, fingerprint, run)), None)


def counterparts(instance: Instance) -> list[Address]:
    """The instances of earlier iterations whose results stand for this one's where their work is the same."""
    if instance.stage.names_itself:
        return []
    return [replace(instance.address, iteration=number) for number in range(1, instance.address.iteration)]


def _take_over(
    same: StageRecord, instance: Instance, inputs: Mapping[str, tuple[InputRef, ...]], run: Run, lease: Lease
) -> StageRecord:
    """Put the result of an equal instance in force for this one."""
    now = utc_now()
    own = {"address": str(instance.address), "inputs": dict(inputs), "attempt": 0, "token": lease.token}
    origin = shown_at(same, run.record) or same.address
    record = same.model_copy(update={**own, "same_as": origin, "started_at": now, "finished_at": now})
    run.write_record(record, lease)
    _log.info("%s is the same as %s, with artifacts %s", instance.address, origin, record.outputs_in_words())
    return record


def fingerprint_of(instance: Instance, inputs: Mapping[str, tuple[InputRef, ...]]) -> str:
    """Hex digest of what would be done: stage, versions, semantic settings, digests of the inputs."""
    return work_digest(instance, {name: [ref.artifact.digest for ref in refs] for name, refs in inputs.items()})


def work_digest(instance: Instance, inputs: Mapping[str, Sequence[str]]) -> str:
    """Hex digest of what would be done with inputs that these names tell apart; with digests it is the fingerprint."""
    stage = instance.stage
    return digest_json(
        {
            "stage": stage.name,
            "version": stage.version,
            "produces": {table.kind: table.fingerprint_version for table in stage.produces},
            "settings": semantic_dump(instance.settings),
            "inputs": {name: list(given) for name, given in inputs.items() if given},
        }
    )


def is_current(record: StageRecord, stage: Stage, fingerprint: str, run: Run) -> bool:
    """Whether this result is what would be made, lacks nothing, and is there."""
    return stage.is_whole(record.metrics) and _is_there(record, fingerprint, run)


def _is_there(record: StageRecord, fingerprint: str, run: Run) -> bool:
    if record.fingerprint != fingerprint:
        return False
    return all(artifact_exists(run.storage, ref) for ref in record.outputs.values())
