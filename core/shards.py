"""Shards: the jobs of one stage instance divided among several processes, each shard with a journal and a lease.

    <journal key>/shards.json                  how many there are: fixed until the instance is done, or forced
    <journal key>/shards/<begun>/<n>/          journal of a shard; `begun` is the attempt that divided the jobs
    <journal key>/shards/<begun>/<n>/result.json    what came of it, when it has been worked through

Who may work at a shard holds its lease. It is worked through when every job of it is finished, or owed to a later
attempt; then nobody records in it any more until there is such an attempt. The rules: `docs/behaviour/runs.md`.
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
from treadle.core.journal import Journal, finished_rows
from treadle.core.journal_format import segments
from treadle.core.journal_upload import count_recorded, fetch_journal, last_token, open_journal
from treadle.core.locks import Lease, LeaseWatch, hold_key, watch_leases, write_fenced
from treadle.core.stage import JournalView, Worked
from treadle.core.storage import Storage, storage_errors

_log = logging.getLogger(__name__)

MAX_SHARDS = 256
POLL_S = 1.0
_READERS = 512
"""Files that all journals of an instance keep open for reading."""


def shard_of(key: str, num_shards: int) -> int:
    """The shard of a job, by its owner; the same on every machine."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") % num_shards


class ShardPlan(BaseModel):
    """`shards.json`: how the jobs of an instance are divided."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    num_shards: int
    begun: int
    """Attempt that divided them."""
    attempt: int
    """The latest attempt: what an earlier one left owed is worked at again."""
    token: int
    """Fencing token of that attempt."""


class ShardResult(BaseModel):
    """`result.json`: how a shard was worked through."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    token: int
    """Fencing token of its lease."""
    attempt: int
    causes: dict[str, str]
    first: str
    retryable: bool
    facts: dict[str, object]

    def worked(self) -> Worked:
        """As the stage gave it."""
        return Worked(self.causes, self.first, self.retryable, self.facts)


Work = Callable[[JournalView, ShardPlan, int], Worked]
"""Works at one shard, given its journal, and its index in the plan."""
Tell = Callable[[int, int], None]
"""Told, while others are waited for, how many shards of how many are worked through."""


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of one stage instance, as any process sees them.

    Attributes:
        storage: The root.
        key: Key of the instance's journal.
        locks: Key of the folder with the leases.
        what: The instance, for people.
    """

    storage: Storage
    key: str
    locks: str
    what: str

    def plan(self) -> ShardPlan | None:
        """How the jobs are divided; None where they are not."""
        return _load(self.storage, f"{self.key}/shards.json", ShardPlan)

    def begin(self, num_shards: int, *, attempt: int, lease: Lease, from_nothing: bool) -> ShardPlan | None:
        """The plan of a new attempt, whose process holds the instance's lease; None for one journal.

        What was begun in one journal, or with another number of shards, goes on so, unless it begins `from_nothing`.
        """
        plan = self.plan()
        if from_nothing:
            self.delete(lease.token)
            plan = None
        if plan is not None:
            plan = plan.model_copy(update={"attempt": attempt, "token": lease.token})
        elif num_shards > 1 and (from_nothing or not self.has_one_journal()):
            plan = ShardPlan(num_shards=num_shards, begun=attempt, attempt=attempt, token=lease.token)
        if plan is None:
            return None
        if plan.num_shards != num_shards:
            _log.info("%s was begun with %d shards and goes on with them", self.what, plan.num_shards)
        write_fenced(self.storage, f"{self.key}/shards.json", _as_json(plan), lease.token, lease)
        return plan

    def work(
        self,
        work: Work,
        *,
        wait: bool,
        growing: Sequence[str] = (),
        tell: Tell | None = None,
        watch: LeaseWatch | None = None,
    ) -> int:
        """Work at open shards, one after the other, until none is left; returns how many were worked through here.

        Where all that are left are held by living processes: with `wait` they are waited for, a dead one's shard is
        taken over, and all are worked through at the end. Otherwise this ends. `growing`: see `open_journal`. `watch`:
        one that has looked at leases of these shards already.
        """
        return _Round(self, work, growing, watch or watch_leases(self.storage)).run(wait, tell or _silent)

    def open(self, plan: ShardPlan) -> Iterator[int]:
        """Indices of the shards that are not worked through; each is looked up when it is reached."""
        return (index for index in range(plan.num_shards) if self.result(plan, index) is None)

    def any_free(self, plan: ShardPlan, watch: LeaseWatch) -> bool:
        """Whether a process may claim an open shard now; of a lease of another machine that takes a while to tell."""
        left = list(self.open(plan))
        while left:
            looks = {watch.look(self.lock_key(index)) for index in left}
            if "unknown" not in looks or "free" in looks:
                return "free" in looks
            time.sleep(POLL_S)
        return False

    def result(self, plan: ShardPlan, index: int) -> ShardResult | None:
        """How a shard was worked through: in the plan's attempt, or earlier with nothing owed; None if open."""
        result = _load(self.storage, f"{self.shard_key(plan, index)}/result.json", ShardResult)
        return None if result is None or (result.first and result.attempt < plan.attempt) else result

    def worked(self, plan: ShardPlan) -> Worked:
        """What came of all shards together, once all are worked through."""
        results = [self.result(plan, index) for index in range(plan.num_shards)]
        parts = [result.worked() for result in results if result is not None]
        return Worked(
            causes={key: cause for part in parts for key, cause in part.causes.items()},
            first=next((part.first for part in parts if part.first), ""),
            retryable=any(part.retryable for part in parts),
            facts=_merged(part.facts for part in parts),
        )

    @contextlib.contextmanager
    def read(self, plan: ShardPlan) -> Iterator[JournalView]:
        """All jobs of an instance whose shards are worked through, as one journal that takes no records."""
        with contextlib.ExitStack() as stack:
            journals = []
            for index in range(plan.num_shards):
                folder = fetch_journal(self.storage, self.shard_key(plan, index))
                journal = Journal(folder, max_readers=max(1, _READERS // plan.num_shards))
                journals.append(stack.enter_context(journal))
            yield _AllShards(journals)

    def count_finished(self) -> int:
        """Number of finished owners in the instance's journals, however it is divided."""
        plan = self.plan()
        if plan is None:
            return count_recorded(self.storage, self.key)
        return sum(count_recorded(self.storage, self.shard_key(plan, index)) for index in range(plan.num_shards))

    def finished_rows(self, most: int) -> list[bytes]:
        """Final rows of up to so many owners, as far as this machine has them."""
        plan, rows = self.plan(), list[bytes]()
        keys = [self.key] if plan is None else [self.shard_key(plan, index) for index in range(plan.num_shards)]
        for key in keys:
            rows += finished_rows(self.storage.directory(key), most - len(rows))
        return rows

    def delete(self, token: int) -> None:
        """Remove the shards' journals and the plan, but no plan of a later holder than `token`."""
        plan = self.plan()
        if plan is None or plan.token > token:
            return
        # The plan first: without it nobody claims a shard of which a part is gone.
        self.storage.delete(f"{self.key}/shards.json")
        self.storage.delete(f"{self.key}/shards")

    def shard_key(self, plan: ShardPlan, index: int) -> str:
        """Key of a shard's journal."""
        return f"{self.key}/shards/{plan.begun}/{index}"

    def lock_key(self, index: int) -> str:
        """Key of a shard's lease."""
        return f"{self.locks}/{index}.lock"

    def describe(self, plan: ShardPlan, index: int) -> str:
        """A shard, for people."""
        return f"shard {index + 1} of {plan.num_shards} of {self.what}"

    def has_one_journal(self) -> bool:
        """Whether something has been recorded in the journal of an instance that is not divided."""
        folder = self.storage.directory(self.key)
        with storage_errors("list", folder):
            if segments(folder):
                return True
        prefix = f"{self.key}/"
        names = (key.removeprefix(prefix) for key in self.storage.keys(self.key))
        return any(name.endswith(".journal") and "/" not in name for name in names)


def _silent(num_through: int, num_shards: int) -> None:
    """Tell nobody."""


class _Round:
    """One process at the shards of an instance."""

    def __init__(self, shards: Shards, work: Work, growing: Sequence[str], watch: LeaseWatch) -> None:
        self._shards, self._work, self._growing, self._watch = shards, work, growing, watch
        self._through: set[int] = set()
        self._plan: ShardPlan | None = None
        self._num_done = 0

    def run(self, wait: bool, tell: Tell) -> int:
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
                    tell(told, plan.num_shards)
                time.sleep(POLL_S)
            else:
                break
        return self._num_done

    def _open(self, plan: ShardPlan) -> list[int]:
        """Shards that are not worked through; each process begins elsewhere among them, so that few meet."""
        for index in range(plan.num_shards):
            if index not in self._through and self._shards.result(plan, index) is not None:
                self._through.add(index)
        first = os.getpid() % plan.num_shards
        order = [*range(first, plan.num_shards), *range(first)]
        return [index for index in order if index not in self._through]

    def _claim(self, plan: ShardPlan, index: int) -> bool:
        """Work at a shard if its lease is still to be had; whether it was."""
        shards, storage, key = self._shards, self._shards.storage, self._shards.shard_key(plan, index)
        what, lock = shards.describe(plan, index), shards.lock_key(index)
        with contextlib.ExitStack() as stack:
            try:
                held = hold_key(storage, lock, what, above=last_token(storage, key), seen=self._watch.seen(lock))
                lease = stack.enter_context(held)
            except RunError:
                return False  # Somebody else was faster.
            if shards.plan() != plan or shards.result(plan, index) is not None:
                return False
            _log.info("working at %s", what)
            with open_journal(storage, key, lease, growing=self._growing) as journal:
                worked = self._work(journal, plan, index)
            # Behind the journal: all of it is where others find it.
            result = ShardResult(token=lease.token, attempt=plan.attempt, **asdict(worked))
            write_fenced(storage, f"{key}/result.json", _as_json(result), lease.token, lease)
            _log.info(
                "worked through %s%s", what, f"; first cause of what is owed: {worked.first}" * bool(worked.first)
            )
            return True


class _AllShards:
    """Implements `core.stage.JournalView` over the journals of all shards, for reading."""

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
        raise ValueError("the shards are worked through: nothing is recorded any more")

    def finish(self, owner: str, value: bytes) -> None:
        raise ValueError("the shards are worked through: nothing is recorded any more")


def _merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Facts of several shards: of each name what the last shard said that knew anything; objects entry by entry."""
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
        raise StorageError(
            f"{storage.location(key)} is damaged; run the instance with --force, which does everything again"
        ) from None


def _as_json(model: BaseModel) -> bytes:
    return orjson.dumps(model.model_dump(mode="json"), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
