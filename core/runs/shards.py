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
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from treadle.core.errors import StorageError
from treadle.core.journal.journal import Journal, finished_owners, finished_rows
from treadle.core.journal.segments import segments
from treadle.core.journal.upload import count_recorded, fetch_journal
from treadle.core.runs.records import as_json
from treadle.core.runs.stage import JournalView, WorkResult, shard_of
from treadle.core.store.leases import Lease, LeaseWatch, write_fenced
from treadle.core.store.roots import Storage
from treadle.core.store.storage import storage_errors

_log = logging.getLogger(__name__)

MAX_SHARDS = 256
POLL_S = 1.0
_READERS = 512
"""Number of files that all journals of an instance together keep open for reading."""


class ShardPlan(BaseModel):
    """The content of `shards.json`: how the jobs of an instance are divided."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    num_shards: int
    first_attempt: int
    """Number of the attempt that divided the jobs."""
    attempt: int
    """Number of the latest attempt, which works again on the jobs that earlier ones left pending."""
    token: int
    """Fencing token of the latest attempt."""
    fingerprint: str
    """Fingerprint of the latest attempt; another fingerprint may mean other jobs."""
    reuse_results: bool
    """Whether jobs in earlier results count as finished."""


class ShardResult(BaseModel):
    """The content of `result.json`: how a shard was finished."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    token: int
    """Fencing token of the shard's lease."""
    attempt: int
    fingerprint: str
    """Fingerprint that the plan had when the shard was finished."""
    causes: dict[str, str]
    first: str
    retryable: bool
    facts: dict[str, object]

    def work_result(self) -> WorkResult:
        """Return the shard's result in the form in which `Stage.work` returned it."""
        return WorkResult(self.causes, self.first, self.retryable, self.facts)


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
        """Return the plan by which the jobs are divided into shards; None if they are not divided."""
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
        write_fenced(self.storage, f"{self.key}/shards.json", as_json(plan), lease.token, lease)
        return plan

    def open(self, plan: ShardPlan) -> Iterator[int]:
        """Iterate over the indices of the unfinished shards; each is looked up when it is reached."""
        return (index for index in range(plan.num_shards) if self.result(plan, index) is None)

    def any_free(self, plan: ShardPlan, watch: LeaseWatch) -> bool:
        """Return whether a process could claim an open shard now; waits for the state of other machines' leases."""
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

    def write_result(self, plan: ShardPlan, index: int, worked: WorkResult, lease: Lease) -> None:
        """Record how a shard was finished."""
        result = ShardResult(token=lease.token, attempt=plan.attempt, fingerprint=plan.fingerprint, **asdict(worked))
        key = f"{self.shard_key(plan, index)}/result.json"
        write_fenced(self.storage, key, as_json(result), lease.token, lease)

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
        """Return the number of owners, such as jobs, finished in the instance's journals, with or without shards."""
        return sum(count_recorded(self.storage, key) for key in self._journal_keys())

    def finished_owners(self) -> set[str]:
        """Return the keys of the owners, such as jobs, that are finished in the instance's journals on this machine."""
        return {owner for key in self._journal_keys() for owner in finished_owners(self.storage.directory(key))}

    def finished_rows(self, max_owners: int) -> list[bytes]:
        """Return the final rows of up to `max_owners` finished owners from the journals that are on this machine."""
        rows: list[bytes] = []
        for key in self._journal_keys():
            rows += finished_rows(self.storage.directory(key), max_owners - len(rows))
        return rows

    def _journal_keys(self) -> list[str]:
        plan = self.plan()
        return [self.key] if plan is None else [self.shard_key(plan, index) for index in range(plan.num_shards)]

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


class _AllShards:
    """A read-only view of the journals of all shards; implements `core.runs.stage.JournalView`."""

    def __init__(self, journals: Sequence[Journal]) -> None:
        self._journals = journals

    def _of(self, owner: str) -> Journal:
        return self._journals[shard_of(owner, len(self._journals))]

    def is_finished(self, owner: str) -> bool:
        return self._of(owner).is_finished(owner)

    def get(self, owner: str, unit: str) -> bytes | None:
        return self._of(owner).get(owner, unit)

    def units(self, owner: str) -> list[str]:
        return self._of(owner).units(owner)

    def finished(self, owner: str) -> bytes:
        return self._of(owner).finished(owner)

    def append(self, owner: str, unit: str, value: bytes) -> None:
        raise ValueError("all shards are finished, so their journals are read-only")

    def finish(self, owner: str, value: bytes) -> None:
        raise ValueError("all shards are finished, so their journals are read-only")


def _merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the facts of several shards: the last non-empty value of each name wins; objects are merged by entry."""
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
