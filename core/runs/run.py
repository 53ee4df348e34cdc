"""Store a run: one configuration, and the state of its stage instances.

    <root>/artifacts/<kind>/<digest>/                    shared by all runs
    <root>/runs/<run_id>/run.json                        identity and locked configuration
                         config.json, config.input.toml  as resolved, and as given
                         records/<address>.json          one result per stage instance
                         attempts/<address>/<n>/         attempt.json, log.txt, telemetry
                         journal/<address>/<fingerprint> work in progress
                         store/<name>/<3 digits>/<key>   values by key, such as web responses
                         locks/<address>.lock            and locks/<address>/<n>.lock of its shards

All files are readable without this program, and paths in them are relative to the root, so the root can be moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from treadle.core.errors import ConfigError, RunError, UnknownRun, closest
from treadle.core.runs.address import Address
from treadle.core.runs.live_status import read_live_status
from treadle.core.runs.provenance import git_state, package_versions
from treadle.core.runs.records import (
    AttemptRecord,
    InstanceState,
    InstanceStatus,
    RunInfo,
    StageRecord,
    as_json,
    load_record,
)
from treadle.core.runs.reused import result_origin
from treadle.core.runs.shards import Shards
from treadle.core.runs.stage import SCRATCH_FOLDER
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.core.store.artifacts import ArtifactRef, verify_artifact
from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.leases import Lease, hold_key, holder_of, write_fenced
from treadle.core.store.locks import live_holder
from treadle.core.store.roots import Storage, open_storage
from treadle.core.store.storage import LocalStorage

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CUT_OFF = ("failed", "interrupted", "crashed")
FINGERPRINT_DIGITS = 12


class Run:
    """A run on a root; get one with `create`, `open` or `core.locked_config.create_or_open_run`."""

    def __init__(self, storage: Storage, info: RunInfo) -> None:
        self.storage = storage
        self.info = info

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return self.info.run_id

    @classmethod
    def create(
        cls,
        root: str | Path,
        run_id: str,
        config_json: Mapping[str, Any],
        semantic_json: Mapping[str, Any],
        config_input: str = "",
        *,
        seed: int | None = None,
    ) -> Run:
        """Create a run; raise RunError if it exists, StorageError if the root cannot be written.

        `config_json` is the resolved configuration, `semantic_json` the same without operational keys, `config_input`
        the file as the user wrote it.
        """
        storage = open_storage(root)
        info = RunInfo(
            run_id=checked_id(run_id),
            created_at=utc_now(),
            seed=seed,
            treadle_version=package_versions(("treadle",)).get("treadle", "unknown"),
            git=git_state(),
            packages=package_versions(),
            semantic=dict(semantic_json),
        )
        run = cls(storage, info)
        # With the lease, of two concurrent processes the loser cannot put its configuration next to the winner's
        # identity.
        taken = RunError(f"run {run_id} already exists in {root}; resume it, or choose another run id")
        with hold_key(storage, run.key("locks/run.lock"), f"the creation of run {run_id}") as lease:
            if storage.exists(run.key("run.json")):
                raise taken
            run.write_config(config_json, config_input)
            lease.check()
            if not storage.put_if(run.key("run.json"), as_json(info), None):
                raise taken
        return run

    @classmethod
    def open(cls, root: str | Path, run_id: str) -> Run:
        """Open a run; raise UnknownRun if it does not exist."""
        storage = open_storage(root)
        info = load_record(storage, f"runs/{checked_id(run_id)}/run.json", RunInfo)
        if info is None:
            known = list_runs(root)
            there = ", ".join(known) or "none"
            raise UnknownRun(f"there is no run {run_id} in {root}{closest(run_id, known)}; runs there: {there}")
        return cls(storage, info)

    def key(self, name: str) -> str:
        """Return the key, relative to the root, of something that belongs to this run."""
        return f"runs/{self.run_id}/{name}"

    def config(self) -> dict[str, Any]:
        """Return the resolved configuration as last written; raise RunError if it is damaged."""
        content = self.storage.get(self.key("config.json"))
        if content is None:
            return {}
        try:
            config = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise self._damaged_config(str(error)) from None
        if not isinstance(config, dict):
            raise self._damaged_config(f"it holds a {type(config).__name__} instead of an object")
        return config

    def readable_config(self) -> dict[str, Any]:
        """Return the resolved configuration, or {} if it is damaged, for callers that are about to write it again."""
        try:
            return self.config()
        except RunError:
            return {}

    def _damaged_config(self, problem: str) -> RunError:
        return RunError(
            f"{self.storage.location(self.key('config.json'))} cannot be read ({problem}); run the command with the "
            f"configuration file of the run, which writes it again: treadle run CONFIG.toml --run {self.run_id}"
        )

    def record(self, address: Address) -> StageRecord | None:
        """Return the current result of a stage instance, or None."""
        return load_record(self.storage, self.key(f"records/{address}.json"), StageRecord)

    def records(self) -> list[StageRecord]:
        """Return all current results, sorted by address."""
        found = (self.record(address) for address in self._addresses("records"))
        return [record for record in found if record is not None]

    def readable_records(self) -> tuple[list[StageRecord], dict[str, str]]:
        """Return all readable results, sorted by address, and the problem with each unreadable file, by key."""
        records, problems = [], {}
        for address in self._addresses("records"):
            try:
                record = self.record(address)
            except RunError as error:
                problems[self.key(f"records/{address}.json")] = str(error)
            else:
                records += [record] if record is not None else []
        return records, problems

    def write_record(self, record: StageRecord, lease: Lease | None = None) -> None:
        """Make a record the current result of its instance; raise RunError if a later lease holder wrote it."""
        key = self.key(f"records/{record.address}.json")
        write_fenced(self.storage, key, as_json(record, exclude={"reused"}), record.token, lease)

    def rows(self, ref: ArtifactRef) -> ArtifactReader:
        """Open an artifact; raise ArtifactError if it is missing or damaged."""
        return ArtifactReader(self.storage, ref)

    def attempts(self, address: Address) -> list[AttemptRecord]:
        """Return all attempts at a stage instance, oldest first."""
        prefix = self.key(f"attempts/{address}")
        numbers = sorted(
            int(match[1])
            for key in self.storage.keys(prefix)
            if (match := re.fullmatch(re.escape(prefix) + r"/(\d+)/attempt\.json", key))
        )
        found = (
            load_record(self.storage, self.attempt_key(address, number, "attempt.json"), AttemptRecord)
            for number in numbers
        )
        return [attempt for attempt in found if attempt is not None]

    def attempt_key(self, address: Address, number: int, name: str = "") -> str:
        """Return the key of an attempt's folder, or of a file in it."""
        return self.key(f"attempts/{address}/{number}" + (f"/{name}" if name else ""))

    def open_attempt(self, attempt: AttemptRecord, lease: Lease) -> AttemptRecord:
        """Write the first state of an attempt; increase its number if another process has taken it meanwhile."""
        address = Address.parse(attempt.address)
        lease.check()
        while not self.storage.put_if(
            self.attempt_key(address, attempt.number, "attempt.json"), as_json(attempt), None
        ):
            lease.check()
            attempt = attempt.model_copy(update={"number": attempt.number + 1})
        return attempt

    def write_attempt(self, attempt: AttemptRecord, lease: Lease | None = None) -> None:
        """Write the state of an attempt."""
        key = self.attempt_key(Address.parse(attempt.address), attempt.number, "attempt.json")
        write_fenced(self.storage, key, as_json(attempt), attempt.token, lease)

    def journal_key(self, address: Address, name: str) -> str:
        """Return the key of a journal of a stage instance; `name` is a fingerprint or the name of a kept journal."""
        return self.key(f"journal/{address}/{name[:FINGERPRINT_DIGITS]}")

    def workspace_key(self, address: Address, fingerprint: str) -> str:
        """Return the key of a stage instance's workspace for one fingerprint, see `StageContext.workspace`."""
        return self.key(f"workspaces/{address}/{fingerprint[:FINGERPRINT_DIGITS]}")

    def store(self, name: str) -> KeyedStore:
        """Return a store of the run by name, such as `web`; all instances share it, and values are never removed."""
        return KeyedStore(self.storage, self.key(f"store/{name}"))

    def shards(self, address: Address, name: str) -> Shards:
        """Return the shards of a journal of a stage instance (see `journal_key`), whether it is divided or not."""
        return Shards(
            storage=self.storage,
            key=self.journal_key(address, name),
            locks=self.key(f"locks/{address}"),
            what=f"{address} of run {self.run_id}",
        )

    def lease(self, address: Address, *, brief: bool = False) -> AbstractContextManager[Lease]:
        """Hold a stage instance during a block; raise RunError if a living process has it.

        Processes of this machine wait for a holder that holds it only briefly.
        """
        # The lock object may have been deleted by hand; tokens must grow nevertheless.
        above = 0 if isinstance(self.storage, LocalStorage) else self._last_token(address)
        return hold_key(
            self.storage, self._lock_key(address), f"{address} of run {self.run_id}", above=above, brief=brief
        )

    def waiting_path(self, address: Address) -> Path:
        """Return the path of a lock file on this machine, which a process holds while the stage instance waits.

        The `doing` of the lock's holder names the GPU that the instance waits for.
        """
        return self.storage.directory(self.key(f"locks/waiting/{address}.lock"))

    def _lock_key(self, address: Address) -> str:
        return self.key(f"locks/{address}.lock")

    def _last_token(self, address: Address) -> int:
        record = self.record(address)
        return max([record.token if record else 0, *(attempt.token for attempt in self.attempts(address))])

    def verify(self) -> dict[str, list[str]]:
        """Verify the hashes of the artifacts of all records; return the problems by folder, none for an intact one.

        A damaged record is listed by its key.
        """
        records, damaged = self.readable_records()
        refs = {ref.folder: ref for record in records for ref in record.outputs.values()}
        problems = {folder: verify_artifact(self.storage, ref) for folder, ref in sorted(refs.items())}
        return problems | {key: [problem] for key, problem in damaged.items()}

    def statuses(self, known: Iterable[Address] = ()) -> list[InstanceStatus]:
        """Return the state of each instance in `known`, and of each further one that has a record or an attempt."""
        addresses = dict.fromkeys(known)
        for name in ("records", "attempts"):
            addresses.update(dict.fromkeys(self._addresses(name)))
        return [self.status(address) for address in addresses]

    def status(self, address: Address) -> InstanceStatus:
        """Return the state of one instance; an attempt in state running without a lease has crashed.

        A forced attempt that did not complete leaves the instance completed, because the earlier result is still
        current. The same is true of attempts to fill gaps and to retry rows.
        """
        record, attempts, state = self._latest(address)
        last = attempts[-1] if attempts else None
        later: dict[str, Any] = {}
        if record and last and last.fingerprint == record.fingerprint and state in _CUT_OFF:
            if last.forced:
                later = {"forced_state": state}
            elif last.retried:
                later = {"retry_state": state, "retried": last.retried}
            elif last.fills_gaps:
                later = {"gaps_state": state}
        if later:
            state = "completed"
        unfinished = bool(later) or state not in ("completed", "absent")
        num_finished = 0
        if last is not None and unfinished:
            num_finished = self.shards(address, last.journal_name).count_finished()
        reused_from = result_origin(record, self.record) if record else ""
        scratch = self.storage.directory(self.attempt_key(address, last.number, SCRATCH_FOLDER)) if last else None
        return InstanceStatus(
            address=str(address),
            state=state,
            num_rows={kind: ref.num_rows for kind, ref in record.outputs.items()} if record else {},
            num_finished=num_finished,
            num_attempts=len(attempts),
            error=last.error if last and unfinished else None,
            **later,
            **(dict(read_live_status(scratch)) if scratch and state == "running" else {}),
            reused_from=reused_from,
            was_reused_from=record.reused_from if record and not reused_from else "",
            waits_for=waiting.doing if (waiting := live_holder(self.waiting_path(address))) else "",
            imported_from=(record.imported_from if record else None) or "",
            log=self.attempt_key(address, last.number, "log.txt") if last else None,
            started_at=last.started_at if last else None,
            finished_at=last.finished_at if last else record.finished_at if record else None,
        )

    def _latest(self, address: Address) -> tuple[StageRecord | None, list[AttemptRecord], InstanceState]:
        """Return the result, the attempts and the state of an instance, consistent with each other.

        An attempt writes its result, then how it ended, and then releases the lease. They are read in an
        order in which an attempt that ends meanwhile is not reported as crashed, or as completed without a result.
        """
        unheld: AttemptRecord | None = None
        while True:
            attempts = self.attempts(address)
            record, last = self.record(address), attempts[-1] if attempts else None
            if last is None:
                return record, attempts, "completed" if record else "absent"
            if record and (record.attempt == last.number or (record.reused_from and record.token > last.token)):
                # Also if the process was stopped after writing the record and before writing the attempt's last state.
                return record, attempts, "completed"
            if last.state != "running":
                return record, attempts, last.state
            if last == unheld:
                return record, attempts, "crashed"
            if holder_of(self.storage, self._lock_key(address)) is not None:
                return record, attempts, "running"
            unheld = last

    def _addresses(self, name: str) -> Iterator[Address]:
        """Yield the addresses below `records` or `attempts` in order, ignoring other files."""
        prefix = self.key(name) + "/"
        texts = {
            "/".join(key.removeprefix(prefix).removesuffix(".json").split("/")[:2])
            for key in self.storage.keys(self.key(name))
        }
        found = []
        for text in texts:
            try:
                found.append(Address.parse(text))
            except ConfigError:
                continue
        yield from sorted(found, key=lambda address: (address.iteration, address.stage, address.qualifier or ""))

    def write_config(self, config_json: Mapping[str, Any], config_input: str) -> None:
        """Write the resolved configuration, and the file as the user wrote it unless that is empty."""
        self.storage.put(self.key("config.json"), as_json(dict(config_json)))
        if config_input:
            self.storage.put(self.key("config.input.toml"), config_input.encode())


def list_runs(root: str | Path) -> list[str]:
    """Return the names of the runs on a root."""
    storage = open_storage(root)
    return [name for name in storage.names("runs") if _is_run(storage, name)]


def run_exists(root: str | Path, run_id: str) -> bool:
    """Return whether a run exists; cheaper than `list_runs` on a root with many runs."""
    return _is_run(open_storage(root), run_id)


def _is_run(storage: Storage, name: str) -> bool:
    return bool(_RUN_ID.fullmatch(name)) and storage.exists(f"runs/{name}/run.json")


def utc_now() -> str:
    """Return the current time in the format of all records: UTC, ISO 8601, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def checked_id(run_id: str) -> str:
    """Return the run id; raise UnknownRun if it is not valid."""
    if not _RUN_ID.fullmatch(run_id):
        raise UnknownRun(
            f"{run_id[:100]!r} cannot be a run id; use 1 to 100 letters, digits, dots, dashes and underscores, "
            "beginning with a letter or digit"
        )
    return run_id
