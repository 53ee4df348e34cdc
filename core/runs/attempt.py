"""Run one attempt at a stage instance: open it, run the stage, commit the outputs, record how it ended."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from treadle.core.config import canonical_json, semantic_dump
from treadle.core.errors import ArtifactError, RunError, StageFailed, StorageError, TreadleError
from treadle.core.gc.commit_gate import committing
from treadle.core.journal.upload import delete_journal, open_journal
from treadle.core.runs.attempt_log import uploaded_log
from treadle.core.runs.bound_inputs import open_inputs
from treadle.core.runs.earlier_jobs import attempt_start, reused_jobs
from treadle.core.runs.provenance import package_versions
from treadle.core.runs.records import AttemptRecord, AttemptState, InputRef, StageRecord
from treadle.core.runs.run import Run, utc_now
from treadle.core.runs.shard_work import work_on_shards
from treadle.core.runs.stage import (
    SCRATCH_FOLDER,
    WORK_FOLDER,
    Instance,
    JournalView,
    Outputs,
    Progress,
    Rows,
    Stage,
    StageContext,
    WorkResult,
)
from treadle.core.store.artifacts import ArtifactRef
from treadle.core.store.leases import Lease
from treadle.core.store.storage import storage_errors

_log = logging.getLogger(__name__)

HelperScope = Callable[[int], contextlib.AbstractContextManager[None]]
"""Context manager, given the number of open shards, during which other processes may work on them."""


class Attempt:
    """One attempt at a stage instance, made while holding its lease; creating it writes its record as running."""

    def __init__(
        self,
        instance: Instance,
        run: Run,
        inputs: Mapping[str, tuple[InputRef, ...]],
        fingerprint: str,
        lease: Lease,
        *,
        force: bool,
        fills_gaps: bool,
        retried: StageRecord | None,
        retry: Set[str],
        helper_scope: HelperScope | None,
    ) -> None:
        self._instance, self._run, self._inputs, self._fingerprint = instance, run, inputs, fingerprint
        self._lease, self._helper_scope = lease, helper_scope
        self._retried, self._retry = retried, retry
        """Result whose rows are retried, and the statuses of the rows to retry."""
        earlier = run.attempts(instance.address)
        start = attempt_start(instance, earlier, fingerprint, force=force, retried=retried, retry=retry)
        self._from_scratch, self._ignores_results = start.from_scratch, start.ignores_results
        opened = AttemptRecord(
            address=str(instance.address),
            number=earlier[-1].number + 1 if earlier else 1,
            state="running",
            fingerprint=fingerprint,
            journal=start.journal,
            fills_gaps=fills_gaps,
            retried=tuple(sorted(retry)),
            inputs=dict(inputs),
            forced=force,
            pid=os.getpid(),
            host=socket.gethostname(),
            token=lease.token,
            started_at=utc_now(),
        )
        # A killed attempt leaves its work folder behind.
        for attempt in earlier:
            run.storage.discard(run.attempt_key(instance.address, attempt.number, WORK_FOLDER))
        self._record = run.open_attempt(opened, lease)

    def make(self, accept_failures: bool, progress: Progress | None) -> StageRecord:
        """Run the stage and return its record; record how the attempt ended in any case."""
        self._key = self._run.attempt_key(self._instance.address, self._record.number)
        self._folder = self._run.storage.directory(self._key)
        log_path = self._folder / "log.txt"
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(uploaded_log(self._run.storage, f"{self._key}/log.txt", "the attempt's"))
                record = self._make(accept_failures, progress or Progress())
            except TreadleError as error:
                _log.error("%s: %s", self._record.address, error)
                self._end("failed", str(error))
                raise
            # The only place that turns an unforeseen exception into a failure of the stage.
            except (Exception, SystemExit) as error:  # Code of users may exit, which could look like success.
                _log.error("%s failed unexpectedly\n%s", self._record.address, traceback.format_exc())
                what = f"{type(error).__name__}: {error}"
                self._end("failed", what)
                raise StageFailed(f"{self._record.address} failed: {what}; the traceback is in {log_path}") from error
            except BaseException as error:
                _log.warning("%s was interrupted (%s)", self._record.address, type(error).__name__)
                self._end("interrupted", type(error).__name__)
                raise
            self._end("completed")
        return record

    def _make(self, accept_failures: bool, progress: Progress) -> StageRecord:
        run, address = self._run, self._instance.address
        scratch = self._folder / SCRATCH_FOLDER
        with storage_errors("write", scratch):
            scratch.mkdir(parents=True)
        workspace = run.workspace_key(address, self._fingerprint)
        if self._from_scratch:
            run.storage.discard(workspace)
        stage = self._instance.stage
        reuses_nothing = self._ignores_results and self._retried is None
        inputs = open_inputs(run, self._inputs)
        with (
            Outputs(run.storage, stage, self._fingerprint, self._key) as outputs,
            reused_jobs(
                self._instance, run, scratch, from_scratch=reuses_nothing, retry=self._retry, inputs=inputs
            ) as reused,
        ):

            def context_of(journal: JournalView) -> StageContext:
                return StageContext(
                    address=address,
                    attempt=self._record.number,
                    settings=self._instance.settings,
                    inputs=inputs,
                    producers=self._instance.inputs,
                    journal=reused.over(journal),
                    earlier=self._current_table,
                    progress=progress,
                    accept_failures=accept_failures,
                    scratch=scratch,
                    workspace=run.storage.directory(workspace),
                    store=run.store,
                )

            with self._run_work(context_of, progress) as (journal, work_result):
                context = replace(context_of(journal), outputs=outputs, work_result=work_result)
                metrics = _metrics(stage.name, stage.run(context))
            _check_rows(stage, self._record.address, outputs.num_rows())
            self._lease.check()
            with committing(run.storage, run.key(self._record.address)):
                committed = outputs.commit()
                record = self._result(committed, metrics)
                for key in record.telemetry.values():
                    run.storage.keep(key)
                run.write_record(record, self._lease)
        _remove_work(record, run, self._instance, self._lease)
        _log.info("%s is done: %s", address, record.describe_outputs())
        return record

    @contextlib.contextmanager
    def _run_work(
        self, context_of: Callable[[JournalView], StageContext], progress: Progress
    ) -> Iterator[tuple[JournalView, WorkResult]]:
        """Yield the instance's journal once the stage's jobs are done, and what `Stage.work` returned."""
        run, address, stage, log = self._run, self._instance.address, self._instance.stage, f"{self._key}/log.txt"
        plan = None
        # A retry of rows is small: no other process helps with it.
        if stage.work is not None and self._retried is None:
            shards, number = run.shards(address, self._record.journal_name), self._record.number
            num_shards = stage.num_shards(self._instance.settings)
            plan = shards.begin(
                num_shards,
                attempt=number,
                fingerprint=self._fingerprint,
                lease=self._lease,
                from_scratch=self._from_scratch,
                reuse_results=not self._ignores_results,
            )
            if plan is not None:
                _log.info("%s: attempt %d, %d shards", address, number, plan.num_shards)
                helper_scope = (
                    self._helper_scope(len(list(shards.open(plan)))) if self._helper_scope else contextlib.nullcontext()
                )
                with helper_scope:
                    work_on_shards(shards, stage.work, context_of, progress=progress, wait=True, growing=(log,))
                with shards.read(plan) as whole:
                    yield whole, shards.work_result(plan)
                return
        key = run.journal_key(address, self._record.journal_name)
        with open_journal(run.storage, key, self._lease, from_scratch=self._from_scratch, growing=(log,)) as journal:
            _log.info("%s: attempt %d, %d finished before", address, self._record.number, journal.num_finished)
            yield journal, WorkResult() if stage.work is None else stage.work(context_of(journal))

    def _current_table(self, kind: str) -> Rows | None:
        """Return a table of the current result; see `StageContext.earlier`."""
        record = None if self._ignores_results else self._run.record(self._instance.address)
        if record is None or kind not in record.outputs:
            return None
        try:
            return self._run.rows(record.outputs[kind])
        except ArtifactError as error:
            _log.info("nothing is reused from the earlier %s: %s", kind, error)
            return None

    def _result(self, outputs: Mapping[str, ArtifactRef], metrics: dict[str, Any]) -> StageRecord:
        instance, address, number = self._instance, self._instance.address, self._record.number
        return StageRecord(
            address=self._record.address,
            stage=instance.stage.name,
            version=instance.stage.version,
            fingerprint=self._fingerprint,
            settings=semantic_dump(instance.settings),
            inputs=dict(self._inputs),
            outputs=dict(outputs),
            telemetry={
                table.kind: self._run.attempt_key(address, number, f"{table.kind}.parquet")
                for table in instance.stage.telemetry
            },
            metrics=metrics,
            attempt=number,
            token=self._record.token,
            started_at=self._record.started_at,
            finished_at=utc_now(),
            versions=package_versions(),
        )

    def _end(self, state: AttemptState, error: str | None = None) -> None:
        update = {"state": state, "error": error, "finished_at": utc_now()}
        _write_state(self._record.model_copy(update=update), self._run, self._lease)


def _metrics(stage: str, returned: Any) -> dict[str, Any]:
    """Return the metrics that a stage returned; raise StageFailed if the record cannot hold them."""
    if not isinstance(returned, Mapping):
        raise StageFailed(
            f"stage {stage}: run returned {type(returned).__name__}; return a mapping from names to counts and numbers"
        )
    for name, value in returned.items():
        try:
            canonical_json(value)
        except TypeError:
            raise StageFailed(
                f"stage {stage}: run returned {type(value).__name__} as metric {str(name)[:60]!r}, which is no JSON; "
                "return counts and numbers"
            ) from None
    return dict(returned)


def _check_rows(stage: Stage, address: str, num_rows: Mapping[str, int]) -> None:
    empty = [table.kind for table in stage.produces if table.required and not num_rows[table.kind]]
    if empty:
        raise StageFailed(f"{address} produced no rows for {', '.join(empty)}; check its inputs and settings")


def clean_up(record: StageRecord, run: Run, instance: Instance, lease: Lease) -> None:
    """Clean up after an attempt that was stopped right after it wrote its stage record."""
    attempts = run.attempts(instance.address)
    if not attempts or attempts[-1].number != record.attempt:
        return
    _remove_work(record, run, instance, lease)
    if attempts[-1].state != "completed":
        update = {"state": "completed", "finished_at": record.finished_at, "error": None}
        _write_state(attempts[-1].model_copy(update=update), run, lease)


def _remove_work(record: StageRecord, run: Run, instance: Instance, lease: Lease) -> None:
    """Delete the work files of a completed attempt; log a warning if that fails, as the record is already valid."""
    address = instance.address
    try:
        lease.check()
        run.storage.discard(run.attempt_key(address, record.attempt, WORK_FOLDER))
        run.storage.discard(run.workspace_key(address, record.fingerprint))
        for name in _obsolete_journals(record, run, instance):
            run.shards(address, name).delete(lease.token)
            delete_journal(run.storage, run.journal_key(address, name), lease.token)
    except (StorageError, RunError) as failure:
        _log.warning("%s is done, but its work files cannot be deleted, the next run retries: %s", address, failure)


def _obsolete_journals(record: StageRecord, run: Run, instance: Instance) -> list[str]:
    """Return the names of the journals that can be deleted once there is a result."""
    names = {attempt.number: attempt.journal for attempt in run.attempts(instance.address)}
    kept = names[record.attempt]
    # An empty journal need not be kept.
    keeps = instance.stage.keeps_journal and run.shards(instance.address, kept).has_one_journal()
    return sorted({record.fingerprint, *names.values()} - {"", kept if keeps else ""})


def _write_state(attempt: AttemptRecord, run: Run, lease: Lease) -> None:
    """Write how an attempt ended; only log an error of writing, because stage record and lease imply the state too."""
    try:
        run.write_attempt(attempt, lease)
    except (StorageError, RunError) as failure:
        _log.error("the state of the attempt could not be written: %s", failure)
