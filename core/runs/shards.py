"""Divide the jobs of a stage instance into shards, so that several processes can work on them.

    <journal key>/shards.json                               number of shards; fixed until the instance is done or forced
    <journal key>/shards/<first_attempt>/<n>/               journal of a shard; `first_attempt` divided the jobs
    <journal key>/shards/<first_attempt>/<n>/result.json    result of the shard, written when it is finished

Each shard has a lease, and only its holder works on the shard. A shard is finished when every job of it is finished or
left pending for a later attempt; until that attempt, no process writes to its journal any more. The rules are in
`docs/behaviour/runs.md`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from treadle.core.errors import RunError, StorageError
from treadle.core.journal.journal import Journal, finished_owners, finished_rows
from treadle.core.journal.segments import segments
from treadle.core.journal.upload import count_recorded, fetch_journal, last_token, open_journal
from treadle.core.runs.stage import JournalView, WorkResult
from treadle.core.store.leases import Lease, LeaseWatch, hold_key, watch_leases, write_fenced
from treadle.core.store.roots import Storage
from treadle.core.store.storage import storage_errors

_log = logging.getLogger(__name__)

MAX_SHARDS = 256
POLL_S = 1.0
_READERS = 512
"""Number of files that all journals of an instance together keep open for reading."""


def shard_of(key: str, num_shards: int) -> int:
    """Return the shard of a job by its owner; it is the same on every machine."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") % num_shards


class ShardPlan(BaseModel):
    """The content of `shards.json`: how the jobs of an instance are divided."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    num_shards: int
    first_attempt: int
    """Number of the attempt that divided the jobs."""
    attempt: int
    """Number of the latest attempt, which works again on the jobs that earlier ones left pending."""
    token: int
    """Fencing token of that attempt."""
    fingerprint: str
    """Fingerprint of that attempt; another fingerprint may mean other jobs."""
    reuse_results: bool
    """Whether jobs in earlier results count as finished."""


class ShardResult(BaseModel):
    """The content of `result.json`: how a shard was finished."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    token: int
    """Fencing token of the shard's lease."""
    attempt: int
    fingerprint: str
    """Fingerprint of the plan at that time."""
    causes: dict[str, str]
    first: str
    retryable: bool
    facts: dict[str, object]

    def work_result(self) -> WorkResult:
        """Return the result in the form in which the stage returned it."""
        return WorkResult(self.causes, self.first, self.retryable, self.facts)


Work = Callable[[JournalView, ShardPlan, int], WorkResult]
"""Function that works on one shard, given its journal, the plan and the shard's index in it."""
OnProgress = Callable[[int, int], None]
"""Callback while waiting for other processes, with the number of finished shards and of all shards."""


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of one stage instance, as any process sees them.

    Attributes:
        storage: The root.
        key: Key of the instance's journal.
        locks: Key of the folder with the leases.
        what: Description of the instance, for messages.
    """

    storage: Storage
    key: str
    locks: str
    what: str

    def plan(self) -> ShardPlan | None:
        """Return how the jobs are divided; None if they are not."""
        return _load(self.storage, f"{self.key}/shards.json", ShardPlan)

    def begin(
        self, num_shards: int, *, attempt: int, fingerprint: str, lease: Lease, from_scratch: bool, reuse_results: bool
    ) -> ShardPlan | None:
        """Return the plan of a new attempt, which holds the instance's lease; None if it uses a single journal.

        Work that was started in a single journal, or with another number of shards, continues that way unless
        `from_scratch`.
        """
        plan = self.plan()
        if from_scratch:
            self.delete(lease.token)
            plan = None
        latest = {"attempt": attempt, "token": lease.token, "fingerprint": fingerprint, "reuse_results": reuse_results}
        if plan is not None:
            plan = plan.model_copy(update=latest)
        elif num_shards > 1 and (from_scratch or not self.has_one_journal()):
            plan = ShardPlan.model_validate({"num_shards": num_shards, "first_attempt": attempt, **latest})
        if plan is None:
            return None
        if plan.num_shards != num_shards:
            _log.info("%s was started with %d shards and keeps that number", self.what, plan.num_shards)
        write_fenced(self.storage, f"{self.key}/shards.json", _as_json(plan), lease.token, lease)
        return plan

    def work(
        self,
        work: Work,
        *,
        wait: bool,
        growing: Sequence[str] = (),
        on_progress: OnProgress | None = None,
        watch: LeaseWatch | None = None,
    ) -> int:
        """Work on open shards, one after the other, until none is left; return the number finished by this process.

        If living processes hold all remaining shards, the call returns. With `wait` it waits instead, takes over the
        shards of processes that have died, and returns when all shards are finished. For `growing` see `open_journal`.
        `watch` is a watch that has already observed the leases of these shards.
        """
        return _ShardWorker(self, work, growing, watch or watch_leases(self.storage)).run(wait, on_progress or _silent)

    def open(self, plan: ShardPlan) -> Iterator[int]:
        """Iterate over the indices of the unfinished shards; each is looked up when it is reached."""
        return (index for index in range(plan.num_shards) if self.result(plan, index) is None)

    def any_free(self, plan: ShardPlan, watch: LeaseWatch) -> bool:
        """Return whether a process could claim an open shard now; waits for leases of other machines to be known."""
        left = list(self.open(plan))
        while left:
            looks = {watch.look(self.lock_key(index)) for index in left}
            if "unknown" not in looks or "free" in looks:
                return "free" in looks
            time.sleep(POLL_S)
        return False

    def result(self, plan: ShardPlan, index: int) -> ShardResult | None:
        """Return how a shard was finished; None if it is open.

        A result counts if it is of the plan's attempt, or of an earlier one with the same fingerprint that left nothing
        pending.
        """
        result = _load(self.storage, f"{self.shard_key(plan, index)}/result.json", ShardResult)
        if result is None or result.fingerprint != plan.fingerprint:
            return None
        return None if result.first and result.attempt < plan.attempt else result

    def work_result(self, plan: ShardPlan) -> WorkResult:
        """Return the combined result of all shards, once all are finished."""
        results = [self.result(plan, index) for index in range(plan.num_shards)]
        parts = [result.work_result() for result in results if result is not None]
        return WorkResult(
            causes={key: cause for part in parts for key, cause in part.causes.items()},
            first=next((part.first for part in parts if part.first), ""),
            retryable=any(part.retryable for part in parts),
            facts=_merged(part.facts for part in parts),
        )

    @contextlib.contextmanager
    def read(self, plan: ShardPlan) -> Iterator[JournalView]:
        """Open the journals of all finished shards as one read-only journal."""
        with contextlib.ExitStack() as stack:
            journals = []
            for index in range(plan.num_shards):
                folder = fetch_journal(self.storage, self.shard_key(plan, index))
                journal = Journal(folder, max_readers=max(1, _READERS // plan.num_shards))
                journals.append(stack.enter_context(journal))
            yield _AllShards(journals)

    def count_finished(self) -> int:
        """Return the number of finished owners in the instance's journals, whether it is divided or not."""
        plan = self.plan()
        if plan is None:
            return count_recorded(self.storage, self.key)
        return sum(count_recorded(self.storage, self.shard_key(plan, index)) for index in range(plan.num_shards))

    def finished_owners(self) -> set[str]:
        """Return the finished owners in those of the instance's journals that are on this machine."""
        plan = self.plan()
        keys = [self.key] if plan is None else [self.shard_key(plan, index) for index in range(plan.num_shards)]
        return {owner for key in keys for owner in finished_owners(self.storage.directory(key))}

    def finished_rows(self, max_owners: int) -> list[bytes]:
        """Return the final rows of up to `max_owners` finished owners from the journals that are on this machine."""
        plan, rows = self.plan(), list[bytes]()
        keys = [self.key] if plan is None else [self.shard_key(plan, index) for index in range(plan.num_shards)]
        for key in keys:
            rows += finished_rows(self.storage.directory(key), max_owners - len(rows))
        return rows

    def delete(self, token: int) -> None:
        """Delete the plan and the shards' journals, unless the plan has a later fencing token than `token`."""
        plan = self.plan()
        if plan is None or plan.token > token:
            return
        # The plan first, because without it no process claims a shard that is partly deleted.
        self.storage.delete(f"{self.key}/shards.json")
        self.storage.delete(f"{self.key}/shards")

    def shard_key(self, plan: ShardPlan, index: int) -> str:
        """Return the key of a shard's journal."""
        return f"{self.key}/shards/{plan.first_attempt}/{index}"

    def lock_key(self, index: int) -> str:
        """Return the key of a shard's lease."""
        return f"{self.locks}/{index}.lock"

    def describe(self, plan: ShardPlan, index: int) -> str:
        """Return a description of a shard, for messages."""
        return f"shard {index + 1} of {plan.num_shards} of {self.what}"

    def has_one_journal(self) -> bool:
        """Return whether the undivided journal of the instance has records."""
        folder = self.storage.directory(self.key)
        with storage_errors("list", folder):
            if segments(folder):
                return True
        prefix = f"{self.key}/"
        names = (key.removeprefix(prefix) for key in self.storage.keys(self.key))
        return any(name.endswith(".journal") and "/" not in name for name in names)


def _silent(num_through: int, num_shards: int) -> None:
    """Ignore the progress."""


class _ShardWorker:
    """One process that works on the shards of an instance."""

    def __init__(self, shards: Shards, work: Work, growing: Sequence[str], watch: LeaseWatch) -> None:
        self._shards, self._work, self._growing, self._watch = shards, work, growing, watch
        self._through: set[int] = set()
        self._plan: ShardPlan | None = None
        self._num_done = 0

    def run(self, wait: bool, on_progress: OnProgress) -> int:
        told = -1
        while (plan := self._shards.plan()) is not None:
            if plan != self._plan:
                self._plan, self._through = plan, set()
            left = self._open(plan)
            if not left:
                break
            looks = {index: self._watch.look(self._shards.lock_key(index)) for index in left}
            free = next((index for index in left if looks[index] == "free"), None)
            if free is not None:
                self._num_done += self._claim(plan, free)
            elif wait or "unknown" in looks.values():
                if told != (told := len(self._through)):
                    on_progress(told, plan.num_shards)
                time.sleep(POLL_S)
            else:
                break
        return self._num_done

    def _open(self, plan: ShardPlan) -> list[int]:
        """Return the unfinished shards; each process starts with another one, so that few try the same."""
        for index in range(plan.num_shards):
            if index not in self._through and self._shards.result(plan, index) is not None:
                self._through.add(index)
        first = os.getpid() % plan.num_shards
        order = [*range(first, plan.num_shards), *range(first)]
        return [index for index in order if index not in self._through]

    def _claim(self, plan: ShardPlan, index: int) -> bool:
        """Work on a shard if its lease is available; return whether this process finished it."""
        shards, storage, key = self._shards, self._shards.storage, self._shards.shard_key(plan, index)
        what, lock = shards.describe(plan, index), shards.lock_key(index)
        with contextlib.ExitStack() as stack:
            try:
                held = hold_key(storage, lock, what, above=last_token(storage, key), seen=self._watch.seen(lock))
                lease = stack.enter_context(held)
            except RunError:
                return False  # Another process was faster.
            # Another process may have changed the plan, or finished the shard, before the lease was taken.
            if shards.plan() != plan or shards.result(plan, index) is not None:
                return False
            _log.info("working at %s", what)
            with open_journal(storage, key, lease, growing=self._growing) as journal:
                worked = self._work(journal, plan, index)
            # Written after the journal is closed, so that other processes find all of its records.
            result = ShardResult(
                token=lease.token, attempt=plan.attempt, fingerprint=plan.fingerprint, **asdict(worked)
            )
            write_fenced(storage, f"{key}/result.json", _as_json(result), lease.token, lease)
            _log.info("finished %s%s", what, f"; first cause of failure: {worked.first}" * bool(worked.first))
            return True


class _AllShards:
    """A read-only view of the journals of all shards; implements `core.stage.JournalView`."""

    def __init__(self, journals: Sequence[Journal]) -> None:
        self._journals = journals

    def _of(self, owner: str) -> Journal:
        return self._journals[shard_of(owner, len(self._journals))]

    def is_finished(self, owner: str) -> bool:
        return self._of(owner).is_finished(owner)

    def get(self, owner: str, unit: str) -> bytes | None:
        return self._of(owner).get(owner, unit)

    def finished(self, owner: str) -> bytes:
        return self._of(owner).finished(owner)

    def append(self, owner: str, unit: str, value: bytes) -> None:
        raise ValueError("all shards are finished, so their journals are read-only")

    def finish(self, owner: str, value: bytes) -> None:
        raise ValueError("all shards are finished, so their journals are read-only")


def _merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the facts of several shards: per name the last non-empty value, for objects per entry."""
    merged: dict[str, Any] = {}
    for part in parts:
        for name, fact in part.items():
            known = merged.get(name)
            if isinstance(known, dict) and isinstance(fact, dict):
                merged[name] = known | fact
            elif name not in merged or fact not in (None, "", {}, []):
                merged[name] = fact
    return merged


T_Model = TypeVar("T_Model", bound=BaseModel)


def _load(storage: Storage, key: str, model: type[T_Model]) -> T_Model | None:
    content = storage.get(key)
    try:
        return None if content is None else model.model_validate_json(content)
    except ValidationError:
        raise StorageError(f"{storage.location(key)} is damaged; rerun the instance with --force") from None


def _as_json(model: BaseModel) -> bytes:
    return orjson.dumps(model.model_dump(mode="json"), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
