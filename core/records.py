"""What a run writes down about itself: its identity, the stage records, the attempts.

These models are the format of the JSON files; `docs/behaviour/runs.md` says which file means what.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from treadle.core.artifacts import ArtifactRef

FORMAT = 1
"""Version of the JSON files; raised when a key changes its meaning, not when one is added."""

AttemptState = Literal["running", "completed", "failed", "interrupted"]
InstanceState = Literal["completed", "running", "failed", "interrupted", "crashed", "absent"]


class _Record(BaseModel):
    # `ignore`: a newer Treadle may add keys; status and lineage of an older one go on working.
    model_config = ConfigDict(frozen=True, extra="ignore")


class StoredRecord(_Record):
    """What lies in a file of its own."""

    format: int = FORMAT
    """Version of the file's meaning; a file without one is of version 1."""


class RunInfo(StoredRecord):
    """`run.json`: written when the run is created, and again with what may change of its configuration."""

    run_id: str
    created_at: str
    """UTC, ISO 8601."""
    seed: int | None
    treadle_version: str
    git: str | None
    """Commit of the source tree, `-dirty` if changed; None outside of a checkout."""
    packages: dict[str, str]
    semantic: dict[str, Any]
    """The configuration without operational keys; locked once anything has been made, but for revisable sections."""


class InputRef(_Record):
    """One artifact that a stage instance read, and the instance that made it."""

    address: str
    artifact: ArtifactRef


class StageRecord(StoredRecord):
    """The result of a stage instance; exists only when everything that it names has been committed."""

    address: str
    stage: str
    version: int
    fingerprint: str
    """Hex digits: what was done."""
    settings: Any
    """The semantic settings."""
    inputs: dict[str, tuple[InputRef, ...]]
    outputs: dict[str, ArtifactRef]
    telemetry: dict[str, str]
    """Kind -> file below the root."""
    metrics: dict[str, Any]
    attempt: int
    """Number of the attempt that completed it."""
    token: int = 0
    """Fencing token of the lease under which it was made; one with a lower token does not replace it."""
    started_at: str
    finished_at: str
    versions: dict[str, str]
    same_as: str = ""
    """Address of an earlier iteration whose result this is: what would have been done was the same. `attempt` is 0, and
    telemetry and metrics are those of that result, so that sums over a run leave this one out."""
    reused: bool = False
    """Set on the copy that `execute` returns when nothing had to be done; never stored."""

    def outputs_in_words(self) -> str:
        """Its artifacts with their numbers of rows, for a log."""
        return ", ".join(f"{ref.folder} ({ref.num_rows} rows)" for ref in self.outputs.values())

    @property
    def imported_from(self) -> str | None:
        """Name of the file of another program that the result was read from; None where the stage made it."""
        name = self.metrics.get("imported_from")
        return name if isinstance(name, str) else None


class AttemptRecord(StoredRecord):
    """`attempt.json`: one try at a stage instance."""

    address: str
    number: int
    state: AttemptState
    fingerprint: str
    journal: str = ""
    """Name of its journal, where that is not the fingerprint's."""
    fills_gaps: bool = False
    """Whether it is to make up for what was accepted as missing in the result in force."""
    inputs: dict[str, tuple[InputRef, ...]] | None = None
    """What it reads; None where an earlier version wrote this."""
    forced: bool
    pid: int
    host: str
    token: int
    """Fencing token of the lease under which it ran."""
    started_at: str
    finished_at: str | None = None
    error: str | None = None
    """One line."""

    @property
    def journal_name(self) -> str:
        """What its journal goes by, for `Run.journal_key` and `Run.shards`."""
        return self.journal or self.fingerprint


class InstanceStatus(_Record):
    """What is known of a stage instance at one moment."""

    address: str
    state: InstanceState
    num_rows: dict[str, int]
    """Per output table of the record in force; empty where there is none."""
    num_finished: int
    """Owners finished in the journal of an attempt that has not completed."""
    num_attempts: int
    error: str | None
    """Of the last attempt, where it did not complete."""
    forced_state: InstanceState | None = None
    """How a later, forced attempt at the result in force ended, where it did not complete."""
    gaps_state: InstanceState | None = None
    """The same of a later attempt to fill the gaps that were accepted in it."""
    same_as: str = ""
    """Address of an earlier iteration that has the same result; empty where it was made here, or is only here now."""
    was_same_as: str = ""
    """Address of the earlier iteration that it was taken over from, where that has been made anew since."""
    imported_from: str = ""
    """Name of the file of another program that the result was read from; empty where a stage made it."""
    waits_for: str = ""
    """The GPU that a process of this machine, which is about to make it, waits for."""
    log: str | None
    """Log of the last attempt, below the root."""
    started_at: str | None
    finished_at: str | None
