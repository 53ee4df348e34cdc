"""Define what a stage is, what it gets when it runs, and the addresses of its instances.

A stage is data plus one function, and only `core.execute.execute` runs one. The Prefect tasks, the deployments, the
command line and the key reference are all derived from this definition.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from treadle.core.config import Section
from treadle.core.errors import ArtifactError
from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.core.store.artifacts import ArtifactRef, ArtifactWriter
from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.parquet import TableWriter, is_current
from treadle.core.store.roots import Storage
from treadle.core.store.storage import storage_errors
from treadle.core.tables import TABLES, Table

_log = logging.getLogger(__name__)

KEPT = "kept"
"""Prefix of the names of journals that outlive results."""
WORK_FOLDER = "work"
SCRATCH_FOLDER = f"{WORK_FOLDER}/scratch"
"""Folder of an attempt for files that are not needed after it completes."""


Rows = ArtifactReader
"""A committed table, read as a stream."""


class Progress:
    """A listener to the progress of a stage, such as the terminal or the Prefect UI; this one shows nothing."""

    def start(self, total: int, done: int, unit: str) -> None:
        """Start work of `total` units, of which `done` were finished in earlier attempts."""

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        """Report `count` more finished units; `facts` are shown next to the progress bar."""


class JournalView(Protocol):
    """The durable records of one stage instance; see `core.journal`."""

    def is_finished(self, owner: str) -> bool:
        """Return whether `finish` was called for this owner."""
        ...

    def get(self, owner: str, unit: str) -> bytes | None:
        """Return the recorded value of a unit of an owner; None if the unit is pending."""
        ...

    def units(self, owner: str) -> list[str]:
        """Return the names of an owner's units."""
        ...

    def append(self, owner: str, unit: str, value: bytes) -> None:
        """Record one finished unit (an LLM answer, a tool outcome); the record survives SIGKILL once this returns."""
        ...

    def finish(self, owner: str, value: bytes) -> None:
        """Record the final row of an owner, whose units are no longer needed."""
        ...

    def finished(self, owner: str) -> bytes:
        """Return the final row of an owner; raise KeyError if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class WorkResult:
    """The result of `Stage.work`, apart from what is in the journal."""

    causes: Mapping[str, str] = field(default_factory=dict)
    """Cause for each job that could not be finished, by the job's owner key."""
    first: str = ""
    """First of these causes, or a cause that concerns all jobs; empty if everything was finished."""
    retryable: bool = False
    """Whether one of the causes is transient."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """JSON-able data for `Stage.run`."""


def shard_of(key: str, num_shards: int) -> int:
    """Return the index of the shard of a job, given its owner key; it is the same on every machine."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") % num_shards


class Outputs:
    """The tables that a stage instance is writing; uncommitted ones are deleted at the end of the block."""

    def __init__(self, storage: Storage, stage: Stage, fingerprint: str, attempt: str) -> None:
        """Open a writer for each table; `attempt` is the key of the attempt's folder."""
        self._stage = stage
        folder = storage.directory(attempt)
        self._telemetry = {
            table.kind: TableWriter(table, folder, name=f"{table.kind}.parquet", unique=False)
            for table in stage.telemetry
        }
        self._tables: dict[str, ArtifactWriter] = {}
        try:
            for table in stage.produces:
                self._tables[table.kind] = ArtifactWriter(
                    storage, table, made_by=fingerprint, work=f"{attempt}/{WORK_FOLDER}"
                )
        except BaseException:
            self._abandon()
            raise

    def __enter__(self) -> Outputs:
        return self

    def __exit__(self, *_: object) -> None:
        self._abandon()

    def _abandon(self) -> None:
        for table in self._tables.values():
            table.abandon()
        for telemetry in self._telemetry.values():
            telemetry.abandon()

    def num_rows(self) -> dict[str, int]:
        """Return the number of rows written so far, per table."""
        return {kind: table.num_rows for kind, table in self._tables.items()}

    def table(self, kind: str) -> ArtifactWriter:
        """Return the output table `kind`; raise ArtifactError if the stage does not declare it."""
        if kind not in self._tables:
            raise ArtifactError(f"stage {self._stage.name} produces no {kind!r}; it produces {', '.join(self._tables)}")
        return self._tables[kind]

    def telemetry(self, kind: str) -> TableWriter:
        """Return the telemetry table `kind`; raise ArtifactError if the stage does not declare it."""
        if kind not in self._telemetry:
            raise ArtifactError(f"stage {self._stage.name} declares no telemetry {kind!r}")
        return self._telemetry[kind]

    def commit(self) -> dict[str, ArtifactRef]:
        """Close the telemetry files and publish all tables."""
        for telemetry in self._telemetry.values():
            telemetry.close()
        return {kind: table.commit() for kind, table in self._tables.items()}


@dataclass(slots=True, kw_only=True)
class StageContext:
    """The only interface of a running stage to its run; it has no path inside the run."""

    address: Address
    attempt: int
    settings: Any
    inputs: Mapping[str, tuple[Rows, ...]]
    producers: Mapping[str, tuple[Address, ...]]
    """Addresses of the instances that produced the tables of each bound input, in order. They are not part of the
    fingerprint; a stage whose results depend on them sets `Stage.depends_on_address`."""
    journal: JournalView
    progress: Progress
    accept_failures: bool
    scratch: Path
    """Folder of this attempt for temporary files."""
    workspace: Path
    """Folder, not yet created, that the next attempt at the same work finds unchanged, for example for states of
    engines. It exists only on this machine, and is deleted when the work is done or started from nothing."""
    store: Callable[[str], KeyedStore]
    """Function from a name to a store of the run, shared by all instances, shards and machines; the first writer
    wins."""
    earlier: Callable[[str], Rows | None] = lambda kind: None
    """Function from a kind to this instance's current result table, regardless of its inputs and settings.

    Returns None if there is no such table, if it can no longer be read, or if the instance is started from nothing. It
    is not an input: a stage may take from it only what it would make again in the same way, such as paid answers."""
    outputs: Outputs | None = None
    """Output tables; None during `Stage.work`, which writes no rows."""
    shard: int | None = None
    """Index of the current shard; None if all jobs belong to this context."""
    num_shards: int = 1
    """Number of shards that the jobs are divided into, each of which one process at a time works on."""
    work_result: WorkResult = field(default_factory=WorkResult)
    """Result of `Stage.work` if the stage has it; for `Stage.run`."""

    def owns(self, key: str) -> bool:
        """Return whether this context works on the job with this owner key; in `Stage.run` always True."""
        return self.shard is None or shard_of(key, self.num_shards) == self.shard

    def write(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to the output table `kind`; they are checked against its schema."""
        self._outputs().table(kind).write(rows)

    def write_telemetry(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to a table that is stored with the attempt and is part of no digest."""
        self._outputs().telemetry(kind).write(rows)

    def add_folder(self, kind: str, name: str, source: Path) -> None:
        """Move a folder, such as a model, into the artifact of table `kind`."""
        self._outputs().table(kind).add_folder(name, source)

    def add_file(self, kind: str, name: str, content: bytes) -> None:
        """Add a file, such as `report.md`, to the artifact of table `kind`."""
        self._outputs().table(kind).add_file(name, content)

    def _outputs(self) -> Outputs:
        if self.outputs is None:
            raise ArtifactError(f"{self.address}: rows can be written only after all jobs have been processed")
        return self.outputs


@dataclass(frozen=True, slots=True)
class EarlierResult:
    """A readable earlier result of an instance, or of its counterpart in an earlier iteration."""

    storage: Storage
    record: StageRecord

    def rows(self, kind: str, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the rows of an output table; raise ArtifactError if there is no such table or it cannot be read."""
        ref: ArtifactRef | None = self.record.outputs.get(kind)
        if ref is None:
            raise ArtifactError(f"the result of {self.record.address} has no table {kind}")
        return ArtifactReader(self.storage, ref).rows(columns)

    def telemetry(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a telemetry table; none if it has been deleted or is of another version."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        key = self.record.telemetry.get(kind)
        if key is None or not self.storage.exists(key):
            return
        with storage_errors("read", key), self.storage.open(key) as file:
            try:
                parquet = pq.ParquetFile(file, pre_buffer=False)
                if is_current(TABLES[kind], parquet.schema_arrow):
                    for batch in parquet.iter_batches(use_threads=False):
                        yield from batch.to_pylist()
            except pa.ArrowException as error:
                _log.warning("%s cannot be read, so reused rows have no telemetry: %s", key, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageJobs:
    """The independent jobs of a stage. Each has an owner key: a digest of everything that its result depends on.

    So a finished job is recognised whatever else has changed: in the journal of an unfinished attempt with other
    settings or inputs, and in the current result. Decision: docs/decisions/0009-reuse-by-job.md.
    """

    noun: str
    """Plural noun for the jobs, used in messages."""
    of: Callable[[Any, Mapping[str, Sequence[Rows]]], Iterator[Any]]
    """Function from settings and input tables to all jobs in the order of their rows; `key` is a job's owner key."""
    owners: Callable[[EarlierResult], Iterator[str]]
    """Function that yields the owner keys of the finished jobs of a result."""
    records: Callable[[EarlierResult], Iterator[tuple[str, bytes]]]
    """Function that yields the same owner keys, each with the final record that the job had in the journal."""
    statuses: frozenset[str] = frozenset()
    """Statuses whose rows can be retried alone; the metric `status_<status>` counts the rows of each."""
    with_status: Callable[[EarlierResult, Set[str]], Iterator[str]] | None = None
    """Function that yields the owner keys of the jobs whose rows ended in one of these statuses; for stages with
    `statuses`."""
    gaps: Callable[[EarlierResult], Iterator[tuple[int, str, bytes]]] | None = None
    """Function that yields the rows that were accepted as failed: the position of the job among all jobs, the status of
    the row, and a final record from which `Stage.run` writes it again; for stages with `statuses`."""


def _one_shard(settings: Any) -> int:
    return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of the flywheel: its inputs and outputs, and the function that runs it.

    `run` returns metrics: a flat mapping of counts and numbers, which is stored in the stage record and shown in the
    UI.

    A stage of many independent jobs may also have `work`, which several processes can share. It finishes, in the
    journal, every open job that its context `owns`, and writes no rows. `run` is called after all of it, sees all jobs
    in the journal, records nothing there, and judges and writes the rows.
    """

    name: str
    version: int
    """Version of the output; raise it when its meaning changes, so that older results are not reused as a whole. The
    finished jobs of `jobs` and of a kept journal are still reused, unless something in their owners changes too. Which
    version to raise: docs/behaviour/runs.md, "Versions"."""
    settings: type[Section]
    consumes: Mapping[str, str] = field(default_factory=dict)
    """Kind of table by input name."""
    optional: frozenset[str] = frozenset()
    """Inputs that may be unbound."""
    produces: tuple[Table, ...]
    telemetry: tuple[Table, ...] = ()
    run: Callable[[StageContext], Mapping[str, Any]]
    work: Callable[[StageContext], WorkResult] | None = None
    num_shards: Callable[[Any], int] = _one_shard
    """Function from settings to the number of shards of a new instance; used with `work`."""
    jobs: StageJobs | None = None
    """How to recognise finished jobs after settings or inputs have changed; None if each fingerprint starts over."""
    keeps_journal: bool = False
    """Whether the journal of an instance outlives its results and changes of settings and inputs, until the instance is
    started from nothing. Meant for stages whose jobs cost money and cannot be recovered from the results, and whose
    owner keys are digests of everything that the jobs depend on. Such a stage is not divided into shards."""
    journal_format: int = 1
    """Version of the records in the journal. Raise it if the records of an unfinished attempt can no longer be read.
    With `jobs` or `keeps_journal`, raising only `version` leaves them valid."""
    depends_on_address: bool = False
    """Whether results contain the address of their instance or of its producers, so that they cannot be reused for
    another instance."""
    is_complete: Callable[[Mapping[str, Any]], bool] = lambda metrics: True
    """Function from metrics to whether the result is complete. A result with accepted gaps is not; each run of the
    instance tries to fill them."""

    def __post_init__(self) -> None:
        if self.keeps_journal and self.num_shards is not _one_shard:
            raise ValueError(f"stage {self.name} keeps its journal, so its jobs are not divided into shards")
        TABLES.update({table.kind: table for table in (*self.produces, *self.telemetry)})

    @property
    def journal_prefix(self) -> str:
        """Prefix of the names of an instance's own journals; empty if a journal belongs to one fingerprint."""
        if self.keeps_journal:
            return f"{KEPT}{self.journal_format}-"
        return f"jobs{self.journal_format}-" if self.jobs is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A stage at an address, with its settings and the instances whose outputs it reads."""

    address: Address
    stage: Stage
    settings: Section
    inputs: Mapping[str, tuple[Address, ...]] = field(default_factory=dict)
