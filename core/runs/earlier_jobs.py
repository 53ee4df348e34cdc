"""Reuse the finished jobs of earlier results, so that no model is called for them again.

The current result of an instance, and those of its counterparts in earlier iterations, contain the results of its jobs.
A job whose owner (a digest of all that it depends on) is among them counts as finished in the journal of a new attempt.
Nothing is copied until rows are written, so shards and object stores have no extra work. Rules:
`docs/behaviour/runs.md`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from treadle.core.errors import ArtifactError, StorageError
from treadle.core.runs.records import AttemptRecord, StageRecord
from treadle.core.runs.retry import retry_journal
from treadle.core.runs.reused import counterparts
from treadle.core.runs.run import Run
from treadle.core.runs.stage import EarlierResult, Instance, JournalView, Rows, StageJobs
from treadle.core.store.storage import storage_errors

_log = logging.getLogger(__name__)

_LENGTH_BITS = 34


def earlier_results(instance: Instance, run: Run) -> list[EarlierResult]:
    """Return an instance's current result, if any, then its reusable results of earlier iterations, latest first."""
    addresses = [instance.address, *reversed(counterparts(instance))]
    records = (run.record(address) for address in addresses)
    return [EarlierResult(run.storage, record) for record in records if record is not None]


def finished_owners(jobs: StageJobs, result: EarlierResult, retry: Set[str] = frozenset()) -> frozenset[str]:
    """Return the owner keys of the finished jobs of a result, except jobs that ended in a status of `retry`.

    Returns none if the result cannot be read.
    """
    try:
        again = jobs.with_status(result, retry) if retry and jobs.with_status is not None else ()
        return frozenset(jobs.owners(result)).difference(again)
    except ArtifactError as error:
        _log.warning("nothing is reused from the earlier result of %s: %s", result.record.address, error)
        return frozenset()


class ReusedJobs:
    """The finished jobs of earlier results.

    Their owner keys are held in memory. Their final journal records are copied to a local file when one is first read.
    """

    def __init__(
        self,
        results: Iterable[tuple[StageJobs, EarlierResult]],
        folder: Path,
        retry: Set[str] = frozenset(),
        gaps: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        """Collect the owner keys of the finished jobs in `results`; `folder` is for the local file.

        Each result comes with the `StageJobs` of its stage. Jobs that ended in a status of `retry` are not reused.
        `gaps` has the final journal records, by owner key, of jobs that stay failed.
        """
        self._path = folder / "recalled"
        self._results: list[tuple[Iterator[tuple[str, bytes]], frozenset[str]]] = []
        known: set[str] = set(gaps)
        if gaps:
            self._results.append((iter(gaps.items()), frozenset(gaps)))
        for jobs, result in results:
            owners = finished_owners(jobs, result, retry) - known
            known |= owners
            if owners:
                self._results.append((jobs.records(result), owners))
        self.owners: frozenset[str] = frozenset(known)
        self._places: dict[str, int] | None = None
        self._file: IO[bytes] | None = None

    def close(self) -> None:
        """Close the local file."""
        if self._file is not None:
            self._file.close()

    def over(self, journal: JournalView) -> JournalView:
        """Return a view of a journal in which these jobs also count as finished."""
        return _ReusingJournal(journal, self) if self.owners else journal

    def record(self, owner: str) -> bytes:
        """Return the final journal record of the job with this owner key; raise KeyError if the job is not reused.

        Raises ArtifactError or StorageError if it cannot be read.
        """
        if self._places is None:
            self._places = self._load()
        place = self._places[owner]
        assert self._file is not None
        with storage_errors("read", self._path):
            self._file.seek(place >> _LENGTH_BITS)
            return self._file.read(place & ((1 << _LENGTH_BITS) - 1))

    def _load(self) -> dict[str, int]:
        places: dict[str, int] = {}
        with storage_errors("write", self._path):
            self._file = self._path.open("w+b")
        offset = 0
        for records, owners in self._results:
            for owner, value in records:
                if owner not in owners or owner in places:
                    continue
                with storage_errors("write", self._path):
                    self._file.write(value)
                places[owner] = offset << _LENGTH_BITS | len(value)
                offset += len(value)
        if len(places) != len(self.owners):
            raise StorageError("the earlier result changed while it was being read; run this again")
        return places


class _ReusingJournal:
    """A journal in which the reused jobs are finished as well. Implements `core.runs.stage.JournalView`."""

    def __init__(self, journal: JournalView, reused: ReusedJobs) -> None:
        self._journal, self._reused = journal, reused

    def is_finished(self, owner: str) -> bool:
        return owner in self._reused.owners or self._journal.is_finished(owner)

    def get(self, owner: str, unit: str) -> bytes | None:
        return self._journal.get(owner, unit)

    def units(self, owner: str) -> list[str]:
        return self._journal.units(owner)

    def append(self, owner: str, unit: str, value: bytes) -> None:
        self._journal.append(owner, unit, value)

    def finish(self, owner: str, value: bytes) -> None:
        self._journal.finish(owner, value)

    def finished(self, owner: str) -> bytes:
        if self._journal.is_finished(owner):
            return self._journal.finished(owner)
        return self._reused.record(owner)


@contextlib.contextmanager
def reused_jobs(
    instance: Instance,
    run: Run,
    folder: Path,
    *,
    from_scratch: bool,
    retry: Set[str] = frozenset(),
    inputs: Mapping[str, Sequence[Rows]] = MappingProxyType({}),
) -> Iterator[ReusedJobs]:
    """Yield the jobs that an attempt can reuse: none if it starts from scratch or its stage has no jobs.

    Rows that ended in a status of `retry` are not reused. In a retry all other rows are, failed ones included; for
    these it needs the input tables.
    """
    jobs = None if from_scratch else instance.stage.jobs
    results = [] if jobs is None else [(jobs, result) for result in earlier_results(instance, run)]
    reused = ReusedJobs(results, folder, retry, _gaps(instance, results, retry, inputs) if retry else {})
    try:
        yield reused
    finally:
        reused.close()


def _gaps(
    instance: Instance,
    results: Sequence[tuple[StageJobs, EarlierResult]],
    retry: Set[str],
    inputs: Mapping[str, Sequence[Rows]],
) -> dict[str, bytes]:
    """Return the final journal record, by owner key, of each failed row of the current result that is not retried.

    Such a row does not name its job, but a retry has the inputs and settings of the result, and so the same jobs in the
    same order.
    """
    jobs, result = results[0]
    if jobs.gaps is None:
        return {}
    kept = {position: record for position, status, record in jobs.gaps(result) if status not in retry}
    if not kept:
        return {}
    owners = ((position, job.key) for position, job in enumerate(jobs.of(instance.settings, inputs)))
    return {owner: kept[position] for position, owner in owners if position in kept}


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """The starting point of a new attempt at an instance."""

    from_scratch: bool
    """Whether records of earlier attempts are ignored or deleted."""
    ignores_results: bool
    """Whether earlier results are ignored; also true if the attempt continues a forced one."""
    journal: str
    """Name of the instance's own journal; empty if its stage has one for each fingerprint."""


def attempt_start(
    instance: Instance,
    earlier: Sequence[AttemptRecord],
    fingerprint: str,
    *,
    force: bool,
    retried: StageRecord | None = None,
    retry: Set[str] = frozenset(),
) -> AttemptStart:
    """Return the starting point of the next attempt.

    If the stage has `jobs` or keeps its journal, each start from scratch begins a new journal of the instance, which
    later attempts continue whatever their settings and inputs. So a forced attempt that is killed before it records
    anything leaves nothing to reuse, and one that fails destroys nothing. The journal's name includes the version of
    its records: a journal in another format is not opened. A retry of the rows of the result `retried` that ended in a
    status of `retry` has a journal of its own.
    """
    last = earlier[-1] if earlier else None
    is_cut_off = last is not None and last.forced and last.state != "completed"
    continues_forced = is_cut_off and last is not None and last.fingerprint == fingerprint
    from_scratch, ignores_results = force and not continues_forced, force or continues_forced
    if retried is not None:
        return AttemptStart(from_scratch, ignores_results, retry_journal(retried, retry))
    prefix = instance.stage.journal_prefix
    if not prefix:
        return AttemptStart(from_scratch, ignores_results, "")
    usable = [attempt for attempt in earlier if attempt.journal.startswith(prefix)]
    if not ignores_results:
        usable = [attempt for attempt in usable if not attempt.forced or attempt.state == "completed"]
    new = f"{prefix}{last.number + 1 if last is not None else 1}"
    return AttemptStart(from_scratch, ignores_results, usable[-1].journal if usable and not from_scratch else new)


def known_owners(instance: Instance, run: Run, fingerprint: str, *, force: bool) -> frozenset[str]:
    """Return the owner keys of the jobs that the next attempt will find finished, according to this machine's data."""
    jobs = instance.stage.jobs
    if jobs is None:
        return frozenset()
    start = attempt_start(instance, run.attempts(instance.address), fingerprint, force=force)
    known = set[str]()
    if not start.from_scratch:
        known |= run.shards(instance.address, start.journal).finished_owners()
    if not start.ignores_results:
        for result in earlier_results(instance, run):
            known |= finished_owners(jobs, result)
    return frozenset(known)
