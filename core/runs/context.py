"""Implement the context of a running stage: its inputs, its journal and its output tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from treadle.core.errors import ArtifactError
from treadle.core.runs.address import Address
from treadle.core.runs.shards import ShardPlan, Shards, shard_of
from treadle.core.runs.stage import JournalView, Progress, Rows, Stage, StageContext, WorkResult
from treadle.core.store.artifacts import ArtifactRef, ArtifactWriter
from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.leases import LeaseWatch
from treadle.core.store.parquet import TableWriter
from treadle.core.store.roots import Storage

WORK_FOLDER = "work"
"""Folder of an attempt for files that are not needed after it completes."""


class NullProgress:
    """A progress listener that shows nothing."""

    def start(self, total: int, done: int, unit: str) -> None:
        """Ignore the start; see `core.stage.Progress.start`."""

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        """Ignore the advance; see `core.stage.Progress.advance`."""


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


def _no_store(name: str) -> KeyedStore:
    raise ArtifactError(f"this stage has no store {name!r}: it runs outside of a run")


def _nothing(kind: str) -> Rows | None:
    return None


@dataclass(slots=True, kw_only=True)
class Context:
    """The implementation of `core.stage.StageContext`."""

    address: Address
    attempt: int
    settings: Any
    inputs: Mapping[str, tuple[Rows, ...]]
    producers: Mapping[str, tuple[Address, ...]]
    journal: JournalView
    progress: Progress
    accept_failures: bool
    scratch: Path
    workspace: Path
    current_table: Callable[[str], Rows | None] = _nothing
    outputs: Outputs | None = None
    """Output tables; None during `Stage.work`, which writes no rows."""
    shard: int | None = None
    """Index of the current shard; None if all jobs belong to this context."""
    num_shards: int = 1
    work_result: WorkResult = field(default_factory=WorkResult)
    store_of: Callable[[str], KeyedStore] = _no_store
    """Function from a name to a store of the run."""

    def store(self, name: str) -> KeyedStore:
        """See `StageContext.store`."""
        return self.store_of(name)

    def owns(self, key: str) -> bool:
        """See `StageContext.owns`."""
        return self.shard is None or shard_of(key, self.num_shards) == self.shard

    def earlier(self, kind: str) -> Rows | None:
        """See `StageContext.earlier`."""
        return self.current_table(kind)

    def write(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `StageContext.write`."""
        self._outputs().table(kind).write(rows)

    def write_telemetry(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `StageContext.write_telemetry`."""
        self._outputs().telemetry(kind).write(rows)

    def add_folder(self, kind: str, name: str, source: Path) -> None:
        """See `StageContext.add_folder`."""
        self._outputs().table(kind).add_folder(name, source)

    def add_file(self, kind: str, name: str, content: bytes) -> None:
        """See `StageContext.add_file`."""
        self._outputs().table(kind).add_file(name, content)

    def _outputs(self) -> Outputs:
        if self.outputs is None:
            raise ArtifactError(f"{self.address}: rows can be written only after all jobs have been processed")
        return self.outputs


def run_on_shards(
    shards: Shards,
    work: Callable[[StageContext], WorkResult],
    context_of: Callable[[JournalView], Context],
    *,
    progress: Progress,
    wait: bool,
    growing: Sequence[str] = (),
    watch: LeaseWatch | None = None,
) -> int:
    """Run `Shards.work` with the `work` function of a stage; `context_of` makes an undivided context from a journal."""

    def work_at(journal: JournalView, plan: ShardPlan, index: int) -> WorkResult:
        shown = _ShardProgress(progress, f"{index + 1} of {plan.num_shards}")
        part = replace(context_of(journal), shard=index, num_shards=plan.num_shards, progress=shown)
        return work(part)

    def wait_for(num_through: int, num_shards: int) -> None:
        progress.start(num_shards, num_through, "shards")

    return shards.work(work_at, wait=wait, growing=growing, on_progress=wait_for, watch=watch)


@dataclass(frozen=True, slots=True)
class _ShardProgress:
    """A progress listener that shows the jobs of one shard and its number."""

    progress: Progress
    name: str

    def start(self, total: int, done: int, unit: str) -> None:
        """Show the start with the shard's number; see `core.stage.Progress.start`."""
        self.progress.start(total, done, unit)
        self.progress.advance(0, shard=self.name)

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        """Forward the advance; see `core.stage.Progress.advance`."""
        self.progress.advance(count, **facts)
