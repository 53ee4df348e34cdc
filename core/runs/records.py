"""Define the records that a run stores: its identity, stage records and attempts.

These models are the format of the JSON files, which have a digest; `docs/behaviour/runs.md` describes each file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from treadle.core.config import digest_json
from treadle.core.errors import RunError
from treadle.core.store.artifacts import ArtifactRef
from treadle.core.store.roots import Storage

FORMAT = 2
"""Version of the JSON files; raised when a key changes its meaning, not when one is added."""

AttemptState = Literal["running", "completed", "failed", "interrupted"]
InstanceState = Literal["completed", "running", "failed", "interrupted", "crashed", "absent"]


class _Record(BaseModel):
    # A newer Treadle may add keys.
    model_config = ConfigDict(frozen=True, extra="ignore")


class StoredRecord(_Record):
    """A record that is stored in a file of its own."""

    format: int = FORMAT
    """Version of the file's format."""


class RunInfo(StoredRecord):
    """The content of `run.json`: written when the run is created, and again if changeable configuration changes."""

    run_id: str
    created_at: str
    """Time at which the run was created, in UTC, ISO 8601."""
    seed: int | None
    treadle_version: str
    git: str | None
    """Commit of the source tree, with `-dirty` if changed; None outside of a checkout."""
    packages: dict[str, str]
    semantic: dict[str, Any]
    """Configuration without operational keys; locked except for revisable sections once the run has results."""


class InputRef(_Record):
    """One artifact that a stage instance read, and the instance that made it."""

    address: str
    artifact: ArtifactRef


class StageRecord(StoredRecord):
    """The result of a stage instance; it exists only if all artifacts that it names are committed."""

    address: str
    stage: str
    version: int
    fingerprint: str
    """Hex digest of the work that was done."""
    settings: Any
    """Settings without operational keys."""
    inputs: dict[str, tuple[InputRef, ...]]
    outputs: dict[str, ArtifactRef]
    telemetry: dict[str, str]
    """Files below the root by kind of telemetry table."""
    metrics: dict[str, Any]
    attempt: int
    """Number of the attempt that completed it."""
    token: int = 0
    """Fencing token of the lease under which the result was made; a record with a lower token does not replace it."""
    started_at: str
    finished_at: str
    versions: dict[str, str]
    reused_from: str = ""
    """Address of the earlier iteration whose result is reused, because the work would have been the same. `attempt` is
    then 0. Telemetry and metrics are those of the original result, so sums over a run skip this record."""
    reused: bool = False
    """Whether nothing had to be done; set only on the copy that `execute` returns, never stored."""

    def describe_outputs(self) -> str:
        """Return the artifacts with their numbers of rows, for a log."""
        return ", ".join(f"{ref.folder} ({ref.num_rows} rows)" for ref in self.outputs.values())

    @property
    def imported_from(self) -> str | None:
        """Name of the other program's file that the result was imported from; None if the stage made it."""
        name = self.metrics.get("imported_from")
        return name if isinstance(name, str) else None


class AttemptRecord(StoredRecord):
    """The content of `attempt.json`: one attempt at a stage instance."""

    address: str
    number: int
    state: AttemptState
    fingerprint: str
    journal: str = ""
    """Name of the attempt's journal; empty if the journal is named by the fingerprint."""
    fills_gaps: bool = False
    """Whether the attempt fills gaps that were accepted in the current result."""
    retried: tuple[str, ...] = ()
    """Statuses whose rows in the current result the attempt retries."""
    inputs: dict[str, tuple[InputRef, ...]]
    """Artifacts that it reads."""
    forced: bool
    pid: int
    host: str
    token: int
    """Fencing token of the lease under which it ran."""
    started_at: str
    finished_at: str | None = None
    error: str | None = None
    """One line; None unless the attempt failed or was interrupted."""

    @property
    def journal_name(self) -> str:
        """Name of the attempt's journal, for `Run.journal_key` and `Run.shards`."""
        return self.journal or self.fingerprint


class ModelServerStatus(_Record):
    """State of one endpoint of a model that a running stage uses; the counts are those of the attempt."""

    model: str
    """Name of the model in the configuration."""
    url: str
    health: str
    """`healthy`, `trial` (just back) or `down`."""
    in_flight: int
    """Requests on the wire."""
    queued: int
    """Requests that wait for a slot."""
    answered: int
    """Requests that it answered."""
    tokens_per_s: float
    """Tokens sampled per second in the last minute."""
    errors: dict[str, int] = {}
    """Failed attempts by class of failure."""
    last_error: str = ""
    """Last failure that counted against its health."""


class LiveStatus(_Record):
    """What a running stage does at one moment."""

    doing: str = ""
    """What the stage works on, such as the rollouts of a training's step by state; empty if it does not report it."""
    model_servers: tuple[ModelServerStatus, ...] = ()
    """Endpoints that it uses."""


class InstanceStatus(_Record):
    """The state of a stage instance at one moment."""

    address: str
    state: InstanceState
    num_rows: dict[str, int]
    """Number of rows per output table of the current result; empty if there is none."""
    num_finished: int
    """Number of jobs or other owners finished in the journal of an attempt that has not completed."""
    num_attempts: int
    error: str | None
    """Error of the last attempt, if it did not complete."""
    forced_state: InstanceState | None = None
    """State of a later forced attempt that did not complete, while the earlier result stays current."""
    gaps_state: InstanceState | None = None
    """State of a later attempt to fill accepted gaps in the current result that did not complete."""
    retry_state: InstanceState | None = None
    """State of a later attempt to retry rows with certain statuses that did not complete."""
    retried: tuple[str, ...] = ()
    """Statuses of the rows that the attempt of `retry_state` retries."""
    reused_from: str = ""
    """Address of an earlier iteration with the same result; empty if the result was made here or now exists only
    here."""
    was_reused_from: str = ""
    """Address of the earlier iteration that the result was reused from, if that one has since been rerun."""
    imported_from: str = ""
    """Name of the other program's file that the result was imported from; empty if a stage made it."""
    waits_for: str = ""
    """GPU that a process on this machine waits for in order to run the instance."""
    doing: str = ""
    """What the running attempt works on, as of the last seconds; only on its machine."""
    model_servers: tuple[ModelServerStatus, ...] = ()
    """Model endpoints that the running attempt uses, as of the last seconds; only on its machine."""
    log: str | None
    """Key of the last attempt's log, below the root."""
    started_at: str | None
    finished_at: str | None


T_Record = TypeVar("T_Record", bound=StoredRecord)

_DIGEST = "digest"


def json_round_trip(value: Mapping[str, Any]) -> Any:
    """Convert a value as if written to JSON and read back, so that tuples and paths compare equal to stored ones."""
    return orjson.loads(orjson.dumps(value, default=str))


def as_json(value: BaseModel | dict[str, Any], exclude: set[str] | None = None) -> bytes:
    """Return the content of the file, with a digest if it is a stored record; `exclude` are keys to leave out."""
    data = value.model_dump(mode="json", exclude=exclude) if isinstance(value, BaseModel) else value
    if isinstance(value, StoredRecord):
        data = _with_digest(json_round_trip(data))
    return orjson.dumps(data, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def load_record(storage: Storage, key: str, model: type[T_Record]) -> T_Record | None:
    """Read a record, or return None if the file does not exist.

    Raises RunError if the record cannot be read, has another format version, or was changed after it was written.
    """
    content = storage.get(key)
    return None if content is None else parse_record(content, key, model)


def parse_record(content: bytes, key: str, model: type[T_Record]) -> T_Record:
    """Parse the content of a record's file, which `key` names in errors; raise RunError as `load_record` does."""
    # Check the format first, because a file of another format may lack keys of this one.
    _check_format(content, key)
    try:
        loaded = model.model_validate_json(content)
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join(str(part) for part in detail["loc"])
        problem = f"{where}: {detail['msg']}" if where else detail["msg"]
        raise RunError(f"{key} cannot be read ({problem}); restore it or delete it") from None
    if not _is_unchanged(orjson.loads(content)):
        raise RunError(
            f"{key} has changed since it was written; restore it or delete it (if you changed it on purpose, remove "
            'its "digest")'
        )
    return loaded


def _check_format(content: bytes, key: str) -> None:
    """Raise RunError for a record of another format or without one; leave other problems to the validation."""
    try:
        data = orjson.loads(content)
    except orjson.JSONDecodeError:
        return
    if isinstance(data, dict) and (found := data.get("format")) != FORMAT:
        has = "no format" if found is None else f"format {found!r}"
        raise RunError(f"{key} has {has}; this Treadle reads format {FORMAT}: use the version that wrote it")


def _with_digest(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON-able content of a stored record with the digest of its other keys."""
    return {**data, _DIGEST: digest_json({key: value for key, value in data.items() if key != _DIGEST})}


def _is_unchanged(data: Mapping[str, Any]) -> bool:
    """Return whether a stored record is unchanged; also true if its digest was removed to change it on purpose."""
    return _DIGEST not in data or _with_digest(data) == data
