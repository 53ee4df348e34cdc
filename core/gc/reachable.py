"""Find the artifacts of a storage root that are in use: by records, by running attempts, by paths in configurations."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from treadle.core.errors import ConfigError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.records import AttemptRecord, InputRef, RunInfo, StageRecord, load_record
from treadle.core.runs.run import Run
from treadle.core.store.artifacts import ArtifactRef
from treadle.core.store.leases import LeaseWatch
from treadle.core.store.roots import Storage

_NAMED = re.compile(rb"artifacts[/\\]+([a-z0-9_]+)[/\\]+([0-9a-f]{16})")
_TEXTS = ("run.json", "config.json", "config.input.toml")
_RECORD = re.compile(r"records/(\d+/[^/]+)\.json")
_POLL_S = 1.0
_ATTEMPT = re.compile(r"attempts/(\d+/[^/]+)/(\d+)/attempt\.json")


@dataclass(slots=True)
class Reachable:
    """Artifacts that are in use, and problems that keep others from being ruled out."""

    folders: set[str] = field(default_factory=set)
    """Keys of the folders of artifacts."""
    problems: list[str] = field(default_factory=list)
    """Messages, each on an unreadable file. If there are any, every artifact may be in use."""
    busy_instances: set[str] = field(default_factory=set)
    """Keys of instances, such as `runs/first/1/pools`, that a process is working on."""


def reach(storage: Storage, watch: LeaseWatch) -> Reachable:
    """Return all artifacts that runs of a root reference now.

    These are the current results, their inputs, the inputs of running attempts, and artifacts whose paths are in
    configurations, such as a web record. Unknown files are skipped; a record that cannot be read is a problem. Waits,
    at most 30 s, if the last holder of a lease was on another machine and `watch` has not seen it yet.
    """
    found, attempts = Reachable(), dict[str, AttemptRecord]()
    for run_id in storage.names("runs"):
        prefix = f"runs/{run_id}/"
        for name in _TEXTS:
            found.folders.update(_named(storage.get(prefix + name) or b""))
        _of_records(storage, prefix, found)
        attempts.update(_last_attempts(storage, prefix, found))
    unfinished = {key: attempt for key, attempt in attempts.items() if attempt.state != "completed"}
    found.busy_instances = busy_instances(storage, unfinished, watch)
    for key in found.busy_instances:
        found.folders.update(ref.folder for ref in _read_by(unfinished[key].inputs))
    return found


def busy_instances(storage: Storage, instances: Iterable[str], watch: LeaseWatch) -> set[str]:
    """Return the keys of the instances of which a process holds the lease, or the lease of a shard."""
    leases = {}
    for key in instances:
        _, run_id, address = key.split("/", 2)
        locks = f"runs/{run_id}/locks/{address}"
        leases[key] = [f"{locks}.lock", *storage.keys(locks)]
    while True:
        looks = {key: {watch.look(lock) for lock in locks} for key, locks in leases.items()}
        if not any("unknown" in seen and "held" not in seen for seen in looks.values()):
            return {key for key, seen in looks.items() if "held" in seen}
        time.sleep(_POLL_S)


def _of_records(storage: Storage, prefix: str, found: Reachable) -> None:
    for name in (key.removeprefix(prefix) for key in storage.keys(f"{prefix}records")):
        if not (match := _RECORD.fullmatch(name)) or not is_address(match[1]):
            continue
        try:
            record = load_record(storage, prefix + name, StageRecord)
        except RunError as error:
            found.problems.append(str(error))
            continue
        if record is not None:
            found.folders.update(ref.folder for ref in (*record.outputs.values(), *_read_by(record.inputs)))


def _last_attempts(storage: Storage, prefix: str, found: Reachable) -> Iterator[tuple[str, AttemptRecord]]:
    """Yield the last attempt of each instance of a run, with the key of the instance."""
    last: dict[str, int] = {}
    for name in (key.removeprefix(prefix) for key in storage.keys(f"{prefix}attempts")):
        if (match := _ATTEMPT.fullmatch(name)) and is_address(match[1]):
            last[match[1]] = max(last.get(match[1], 0), int(match[2]))
    for address, number in last.items():
        try:
            attempt = load_record(storage, f"{prefix}attempts/{address}/{number}/attempt.json", AttemptRecord)
        except RunError as error:
            found.problems.append(str(error))
            continue
        if attempt is not None:
            yield prefix + address, attempt


def opened(storage: Storage, run_id: str) -> Run | None:
    """Return the run of this name, or None if it cannot be opened."""
    try:
        info = load_record(storage, f"runs/{run_id}/run.json", RunInfo)
    except RunError:
        return None
    return None if info is None else Run(storage, info)


def is_address(text: str) -> bool:
    """Return whether the text is the address of a stage instance."""
    try:
        Address.parse(text)
    except ConfigError:
        return False
    return True


def _read_by(inputs: Mapping[str, Iterable[InputRef]]) -> Iterator[ArtifactRef]:
    for refs in inputs.values():
        yield from (ref.artifact for ref in refs)


def _named(text: bytes) -> Iterator[str]:
    """Yield the artifact folders whose paths a text contains."""
    for match in _NAMED.finditer(text):
        yield f"artifacts/{match[1].decode()}/{match[2].decode()}"
