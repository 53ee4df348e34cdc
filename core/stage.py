"""What a stage is, and how its instances are addressed.

A stage is data plus one function. `core.execute.execute` is the only way to run one; the Prefect tasks, the
deployments, the command line and the key reference are all derived from this one definition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from treadle.core.config import Section
from treadle.core.errors import ConfigError
from treadle.core.keyed_store import KeyedStore
from treadle.core.schemas import Table

_ADDRESS = re.compile(
    r"(?P<iteration>[1-9]\d{0,3})/(?P<stage>[a-z][a-z_]*)(?:@(?P<qualifier>[A-Za-z0-9][A-Za-z0-9._-]*))?"
)


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """`<iteration>/<stage>[@<phase or model>]`, such as `1/rollouts@base`."""

    iteration: int
    stage: str
    qualifier: str | None = None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address; raises ConfigError."""
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"{text!r} is not a stage instance; write <iteration>/<stage>[@<model>], as in 1/rollouts@base"
            )
        return cls(int(match["iteration"]), match["stage"], match["qualifier"])

    def __str__(self) -> str:
        return f"{self.iteration}/{self.stage}" + (f"@{self.qualifier}" if self.qualifier else "")


class Rows(Protocol):
    """A committed table, read as a stream."""

    kind: str
    digest: str
    num_rows: int

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches in the stored order, never the whole table at once."""
        ...

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """The same as dictionaries."""
        ...

    def folder(self, name: str) -> Path:
        """Path on this machine of a folder in the artifact, such as a model; to be read only."""
        ...


class Progress(Protocol):
    """Where a stage says how far it is; the terminal and the Prefect UI listen."""

    def start(self, total: int, done: int, unit: str) -> None:
        """Work of `total` units begins, of which `done` were finished in earlier attempts."""
        ...

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        """`count` more units are finished; `facts` are shown beside the bar."""
        ...


class JournalView(Protocol):
    """Durable memory of one stage instance; see `core.journal`."""

    def is_finished(self, owner: str) -> bool:
        """Whether `finish` was called for this owner."""
        ...

    def get(self, owner: str, unit: str) -> bytes | None:
        """Value of one unit, or None if it is owed."""
        ...

    def append(self, owner: str, unit: str, value: bytes) -> None:
        """Record one finished unit (an LLM answer, a tool outcome); survives SIGKILL on return."""
        ...

    def finish(self, owner: str, value: bytes) -> None:
        """Record the final row of an owner; its units are no longer needed."""
        ...

    def finished(self, owner: str) -> bytes:
        """The final row; raises KeyError if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Worked:
    """What came of the jobs that a stage worked at, beside what is in the journal."""

    causes: Mapping[str, str] = field(default_factory=dict)
    """Owner of a job that could not be finished -> why."""
    first: str = ""
    """The first such cause, of a job or of all of them; empty where everything was finished."""
    retryable: bool = False
    """Whether one of the causes may pass by itself."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What `Stage.run` is to know; JSON-able."""


class StageContext(Protocol):
    """What a running stage may touch, and nothing else: it sees no path of the run."""

    address: Address
    attempt: int
    settings: Any
    inputs: Mapping[str, tuple[Rows, ...]]
    producers: Mapping[str, tuple[Address, ...]]
    """Of each input that is bound the instances that its tables are from, in their order. They are no part of the
    fingerprint: a stage whose results tell of them says so, by `Stage.names_itself`."""
    journal: JournalView
    progress: Progress
    accept_failures: bool
    scratch: Path
    """Folder of this attempt for what nobody needs when it ends."""
    workspace: Path
    """Folder, not made yet, that the next attempt at the same work finds as it was left: for states of engines. It lies
    on this machine alone, and is removed when the work is done or begun from nothing."""
    num_shards: int
    """Into how many parts the jobs are divided, each of them worked at by one process at a time."""
    worked: Worked
    """What came of `Stage.work`, where the stage has it; for `Stage.run`."""

    def owns(self, key: str) -> bool:
        """Whether the job with this owner is among those to be worked at; in `Stage.run` all are."""
        ...

    def store(self, name: str) -> KeyedStore:
        """What the run keeps under this name, of all its instances, shards and machines: first writer wins."""
        ...

    def earlier(self, kind: str) -> Rows | None:
        """The table of the result in force of this instance, of whatever and with whatever settings.

        None where there is none, where it cannot be read any more, and where the instance is begun from nothing. It is
        no input: a stage may take from it only what it would make again by the same means, such as paid answers.
        """
        ...

    def write(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to the output table `kind`; they are checked against its schema."""
        ...

    def write_telemetry(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to a table that is kept beside the attempt, outside every digest."""
        ...

    def add_folder(self, kind: str, name: str, source: Path) -> None:
        """Move a folder, such as a model, into the artifact of table `kind`."""
        ...

    def add_file(self, kind: str, name: str, content: bytes) -> None:
        """Put a further file, such as `report.md`, into the artifact of table `kind`."""
        ...


def _one_shard(settings: Any) -> int:
    return 1


def _always(metrics: Mapping[str, Any]) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of the flywheel: what it reads and makes, and the function that does it.

    `run` returns metrics: a flat mapping of counts and numbers that goes into the stage record and the UI.

    A stage of many independent jobs may have `work` as well, which several processes can share: it finishes, in the
    journal, every open job that its context `owns`, and writes no rows. `run` comes after all of it, sees all jobs in
    the journal, records nothing there, and judges and writes.
    """

    name: str
    version: int
    """Raise it when the meaning of the output changes: older results are then not reused."""
    settings: type[Section]
    consumes: Mapping[str, str] = field(default_factory=dict)
    """Input name -> kind of table."""
    optional: frozenset[str] = frozenset()
    """Inputs that may be bound to nothing."""
    produces: tuple[Table, ...]
    telemetry: tuple[Table, ...] = ()
    run: Callable[[StageContext], Mapping[str, Any]]
    work: Callable[[StageContext], Worked] | None = None
    num_shards: Callable[[Any], int] = _one_shard
    """Settings -> into how many shards the jobs are divided when an instance is begun; used with `work`."""
    keeps_journal: bool = False
    """Whether the journal of an instance outlives its results, and changes of settings and inputs, until it is begun
    from nothing. For a stage whose owners are named by digests of all that they depend on, and cost money. Such a stage
    is not divided into shards."""
    names_itself: bool = False
    """Whether results say of which instance they are, or are made, so that none can stand for that of another."""
    is_whole: Callable[[Mapping[str, Any]], bool] = _always
    """Metrics -> whether the result lacks nothing. One that does, because that was accepted, is made again whenever the
    instance is run, so that its gaps are filled."""

    def __post_init__(self) -> None:
        if self.keeps_journal and self.num_shards is not _one_shard:
            raise ValueError(f"stage {self.name} keeps its journal, so its jobs are not divided into shards")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A stage at an address, with all the settings it may read and the instances whose outputs it reads."""

    address: Address
    stage: Stage
    settings: Section
    inputs: Mapping[str, tuple[Address, ...]] = field(default_factory=dict)
