"""Find the files of a storage root that are no longer needed, with the reasons, without touching them.

Apart from unreferenced artifacts, these are leftovers of stage instances (journals, workspaces, work folders),
temporary files of killed writers, and remains of deleted runs. On an object root, the working folder of this machine is
searched as well. The rules: `docs/behaviour/gc.md`.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from treadle.core.errors import ArtifactError, RunError
from treadle.core.gc.reachable import Reachable, is_address, opened, reach
from treadle.core.runs.address import Address
from treadle.core.runs.run import FINGERPRINT_DIGITS, Run
from treadle.core.runs.stage import KEPT
from treadle.core.store.artifacts import parse_manifest
from treadle.core.store.leases import LeaseWatch, watch_leases
from treadle.core.store.object_storage import ObjectStorage
from treadle.core.store.roots import Storage
from treadle.core.store.storage import storage_errors

What = Literal["artifact", "journal", "workspace", "work folder", "temporary", "remains of a run"]

_ARTIFACT = re.compile(r"(artifacts/[^/]+/[^/.][^/]*)/.+")
_OF_INSTANCE = re.compile(r"runs/([^/]+)/(journal|workspaces|attempts)/([^/]+/[^/]+)/([^/]+)/(.+)")
_TEMPORARY = re.compile(r"(?:.*/)?\.tmp-(?:[0-9a-f]{32}|deleted-[^/]*)(?=/|$)")
_OF_RUN = re.compile(r"(runs/([^/]+))/.+")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_SECTIONS: dict[str, What] = {"journal": "journal", "workspaces": "workspace", "attempts": "work folder"}
_WORK = "work/"


class StoredFile(NamedTuple):
    """File or object on a root."""

    key: str
    num_bytes: int
    changed_at: float
    """Time of the last change in Unix time."""


@dataclass(slots=True)
class _GroupTotals:
    """Totals of files that belong together; they are not kept one by one, as a root may hold millions."""

    num_bytes: int = 0
    num_files: int = 0
    changed_at: float = 0.0
    has_results: bool = False
    """For a run: whether there is a file below `records`."""

    def add(self, seen: StoredFile) -> None:
        """Add one file to the totals."""
        self.num_bytes += seen.num_bytes
        self.num_files += 1
        self.changed_at = max(self.changed_at, seen.changed_at)


@dataclass(frozen=True, slots=True)
class Garbage:
    """Item that can be deleted."""

    key: str
    """Key of the file or folder, relative to the root."""
    what: What
    why: str
    num_bytes: int
    num_files: int
    here: bool = False
    """Whether it is in this machine's working folder for an object root, and not on the root itself."""
    run_id: str = ""
    address: str = ""
    """Address of the stage instance whose lease must be held for the deletion."""


@dataclass(slots=True)
class CollectionPlan:
    """Items that can be deleted, and notes on what stays."""

    garbage: list[Garbage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_artifacts_kept: int = 0
    bytes_kept: int = 0
    """Size of the artifacts that are kept."""
    num_recent: int = 0
    """Number of items that would be garbage if they were older."""
    bytes_recent: int = 0

    @property
    def num_bytes(self) -> int:
        """Number of bytes that would be freed."""
        return sum(item.num_bytes for item in self.garbage)


def plan_collection(storage: Storage, min_age_s: float, *, watch: LeaseWatch | None = None) -> CollectionPlan:
    """Return a plan with all items that are unneeded and did not change for `min_age_s` seconds. Raise StorageError."""
    plan, reached = CollectionPlan(), reach(storage, watch or watch_leases(storage))
    before = time.time() - min_age_s
    for files, here in _sources(storage):
        _Scan(storage, plan, reached, before, here).at(files)
    if reached.problems:
        plan.notes.append(f"no artifacts are deleted, as references to them cannot be read: {reached.problems[0]}")
    plan.garbage.sort(key=lambda item: (-item.num_bytes, item.key, item.here))
    return plan


def _sources(storage: Storage) -> Iterator[tuple[Iterator[StoredFile], bool]]:
    """Yield the root's files and False; then, on an object root, the files of the local working folder and True."""
    if isinstance(storage, ObjectStorage):
        yield (StoredFile(*entry) for entry in storage.listed("")), False
        yield _walk(storage.work), True
    else:
        yield _walk(storage.directory("")), False


def _walk(root: Path) -> Iterator[StoredFile]:
    """Yield the files below a folder, and the temporary folders among them; skip what disappears meanwhile."""
    with storage_errors("list", root):
        for folder, folders, files in os.walk(root):
            temporary = [name for name in folders if _TEMPORARY.fullmatch(name)]
            for name in (*files, *temporary):
                path = Path(folder, name)
                try:
                    status = path.lstat()
                except FileNotFoundError:
                    continue
                size = status.st_size if name not in temporary else 0
                yield StoredFile(path.relative_to(root).as_posix(), size, status.st_mtime)


class _Scan:
    """Search of one source for garbage."""

    def __init__(self, storage: Storage, plan: CollectionPlan, reached: Reachable, before: float, here: bool) -> None:
        self._storage, self._plan, self._reached, self._before, self._here = storage, plan, reached, before, here
        self._needs: dict[tuple[str, str], Needs | None] = {}

    def at(self, files: Iterable[StoredFile]) -> None:
        """Group files by the item that they belong to, and add each item that is garbage to the plan."""
        groups: defaultdict[tuple[What, str], _GroupTotals] = defaultdict(_GroupTotals)
        runs: defaultdict[str, _GroupTotals] = defaultdict(_GroupTotals)
        for seen in files:
            if match := _OF_RUN.fullmatch(seen.key):
                runs[match[2]].add(seen)
                runs[match[2]].has_results |= seen.key.startswith(f"{match[1]}/records/")
            if (group := _group_of(seen.key)) is not None:
                groups[group].add(seen)
        gone = {run_id for run_id in runs if not self._storage.exists(f"runs/{run_id}/run.json")}
        for run_id in sorted(gone):
            self._remains(run_id, runs[run_id])
        for (what, key), totals in groups.items():
            if (match := _OF_RUN.fullmatch(key)) is None or match[2] not in gone:
                self._judge(what, key, totals)

    def _judge(self, what: What, key: str, totals: _GroupTotals) -> None:
        if what == "artifact":
            self._artifact(key, totals)
        elif what == "temporary":
            self._add(key, what, "left by a process that was killed", totals)
        else:
            self._of_instance(key, what, totals)

    def _artifact(self, key: str, totals: _GroupTotals) -> None:
        if self._reached.problems:
            return
        if key in self._reached.folders:
            if not self._here:
                self._plan.num_artifacts_kept += 1
                self._plan.bytes_kept += totals.num_bytes
        elif self._here:
            self._add(key, "artifact", "cached copy of an unreferenced artifact", totals)
        elif (maker := self._made_by(key)) is not None and not _FINGERPRINT.fullmatch(maker):
            self._plan.notes.append(f"{key} was created on request ({maker}) and is kept; delete it yourself")
        else:
            self._add(key, "artifact", "no record or running attempt references it", totals)

    def _made_by(self, key: str) -> str | None:
        """Return `made_by` of an artifact's manifest; None if there is no valid one."""
        try:
            content = self._storage.get(f"{key}/artifact.json")
            return None if content is None else parse_manifest(content, key).made_by
        except ArtifactError:
            return None

    def _of_instance(self, key: str, what: What, totals: _GroupTotals) -> None:
        match = _OF_INSTANCE.fullmatch(f"{key}/.")
        assert match is not None
        run_id, address, name = match[1], match[3], match[4]
        if f"runs/{run_id}/{address}" in self._reached.busy_instances or not is_address(address):
            return
        if (run_id, address) not in self._needs:
            self._needs[run_id, address] = self._needs_of(run_id, address)
        needs = self._needs[run_id, address]
        if needs is not None and (why := needs.reason_unneeded(what, name)):
            self._add(key, what, why, totals, run_id=run_id, address=address)

    def _needs_of(self, run_id: str, address: str) -> Needs | None:
        run = opened(self._storage, run_id)
        if run is None:
            self._plan.notes.append(f"leftovers of {address} of run {run_id} are kept: its run.json cannot be read")
            return None
        try:
            return needs_of(run, Address.parse(address))
        except RunError as error:
            self._plan.notes.append(f"leftovers of {address} of run {run_id} are kept: {error}")
            return None

    def _remains(self, run_id: str, totals: _GroupTotals) -> None:
        prefix = f"runs/{run_id}/"
        if totals.has_results:
            self._plan.notes.append(
                f"{prefix}run.json is missing, but there are results: restore it, or delete {prefix}"
            )
        else:
            self._add(prefix.rstrip("/"), "remains of a run", "there is no such run", totals, run_id=run_id)

    def _add(
        self, key: str, what: What, why: str, totals: _GroupTotals, *, run_id: str = "", address: str = ""
    ) -> None:
        if totals.changed_at > self._before:
            self._plan.num_recent += 1
            self._plan.bytes_recent += totals.num_bytes
            return
        size, files = totals.num_bytes, totals.num_files
        self._plan.garbage.append(Garbage(key, what, why, size, files, self._here, run_id=run_id, address=address))


def _group_of(key: str) -> tuple[What, str] | None:
    """Return the kind and the key of the item that a file belongs to; None if it is never garbage."""
    if match := _OF_INSTANCE.fullmatch(key):
        section, rest = match[2], match[5]
        key_of = f"runs/{match[1]}/{section}/{match[3]}/{match[4]}"
        if section != "attempts":
            return _SECTIONS[section], key_of
        if rest.startswith(_WORK):
            return _SECTIONS[section], f"{key_of}/{_WORK.rstrip('/')}"
    if match := _TEMPORARY.match(key):
        return "temporary", _outermost(match[0])
    if match := _ARTIFACT.fullmatch(key):
        return "artifact", match[1]
    return None


def _outermost(key: str) -> str:
    """Return the key up to its first part that is the name of a temporary file or folder."""
    parts = key.split("/")
    first = next(index for index, part in enumerate(parts) if _TEMPORARY.fullmatch(part))
    return "/".join(parts[: first + 1])


@dataclass(frozen=True, slots=True)
class Needs:
    """Leftovers of an idle instance that may still be needed."""

    journals: frozenset[str] | None
    """Names of journals; None means all."""
    workspaces: frozenset[str]

    def reason_unneeded(self, what: What, name: str) -> str:
        """Return why a leftover is not needed; empty if it is needed."""
        if what == "journal":
            if self.journals is None or name in self.journals:
                return ""
            return "of an attempt older than the current result"
        if what == "workspace":
            return "" if name in self.workspaces else "nothing continues it"
        return "of an attempt that has ended"


def needs_of(run: Run, address: Address) -> Needs:
    """Return the leftovers that the next attempt at an instance may resume from; raise RunError for a damaged file.

    Without a result all journals stay: they hold completions that were paid for, and an earlier input may return.
    """
    record, attempts = run.record(address), run.attempts(address)
    last = attempts[-1] if attempts else None
    workspaces = {last.fingerprint[:FINGERPRINT_DIGITS]} if last is not None and last.state != "completed" else set()
    own = next((attempt for attempt in attempts if record is not None and attempt.number == record.attempt), None)
    if record is None or own is None:
        return Needs(None, frozenset(workspaces))
    needed = [attempt.journal_name for attempt in attempts if attempt.number > own.number]
    needed += [own.journal] if own.journal.startswith(KEPT) else []
    return Needs(frozenset(name[:FINGERPRINT_DIGITS] for name in needed), frozenset(workspaces))
