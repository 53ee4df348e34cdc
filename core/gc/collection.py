"""Delete the garbage that `core.gc.garbage` finds, after checking each item again under a lock against its users."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from treadle.core.errors import RunError
from treadle.core.gc.commit_gate import MAX_WAIT_S, collecting
from treadle.core.gc.garbage import CollectionPlan, Garbage, needs_of, plan_collection
from treadle.core.gc.reachable import opened, reach
from treadle.core.runs.address import Address
from treadle.core.store.leases import hold_key, watch_leases
from treadle.core.store.locks import hold
from treadle.core.store.object_storage import ObjectStorage
from treadle.core.store.roots import Storage
from treadle.core.store.storage import remove_abandoned


@dataclass(slots=True)
class Collected:
    """Result of a collection: deleted items, and items that were left after all, with the reasons."""

    plan: CollectionPlan
    removed: list[Garbage] = field(default_factory=list)
    left: list[tuple[Garbage, str]] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Number of bytes freed."""
        return sum(item.num_bytes for item in self.removed)


def collect(storage: Storage, min_age_s: float, *, max_wait_s: float = MAX_WAIT_S) -> Collected:
    """Delete all garbage that has not changed for `min_age_s` seconds.

    Items that have become referenced meanwhile are left. The collection waits up to `max_wait_s` seconds for commits in
    progress. Raise StorageError; items deleted before it stay deleted, and the next collection finds the rest.
    """
    watch = watch_leases(storage)
    done = Collected(plan_collection(storage, min_age_s, watch=watch))
    artifacts = [item for item in done.plan.garbage if item.what == "artifact"]
    if artifacts:
        with _leaving(done, artifacts), collecting(storage, max_wait_s=max_wait_s) as check:
            # A commit may have taken up an artifact since the plan was made.
            again = reach(storage, watch)
            for item in artifacts:
                check()
                _remove_unless(done, item, storage, _reason_to_keep(item, again.folders, again.problems))
    others = [item for item in done.plan.garbage if item.what != "artifact"]
    for (run_id, address), items in itertools.groupby(sorted(others, key=_owner), key=_owner):
        if address:
            _of_instance(done, storage, run_id, address, list(items))
        elif run_id:
            _of_run(done, storage, run_id, list(items))
        else:
            for item in items:
                _remove(done, item, storage)
    return done


def _owner(item: Garbage) -> tuple[str, str]:
    return item.run_id, item.address


def _reason_to_keep(item: Garbage, folders: Iterable[str], problems: list[str]) -> str:
    if problems:
        return problems[0]
    return "a record now references it" if item.key in folders else ""


def _of_instance(done: Collected, storage: Storage, run_id: str, address: str, items: list[Garbage]) -> None:
    """Delete leftovers of an instance under its lease, so that no attempt starts or continues meanwhile."""
    run = opened(storage, run_id)
    if run is None:
        done.left += [(item, f"run {run_id} can no longer be opened") for item in items]
        return
    with _leaving(done, items), run.lease(Address.parse(address), brief=True) as lease:
        needs = needs_of(run, Address.parse(address))
        for item in items:
            lease.check()
            is_unneeded = needs.reason_unneeded(item.what, item.key.rsplit("/", 1)[-1])
            _remove_unless(done, item, storage, "" if is_unneeded else "it is needed again")


def _of_run(done: Collected, storage: Storage, run_id: str, items: list[Garbage]) -> None:
    """Delete the remains of a run under the lease of its creation."""
    key, what = f"runs/{run_id}/locks/run.lock", f"the creation of run {run_id}"
    # For items that exist on this machine only, nothing may be created on the root.
    is_here = all(item.here for item in items)
    lease = hold(storage.directory(key), what, brief=True) if is_here else hold_key(storage, key, what, brief=True)
    with _leaving(done, items), lease:
        there = storage.exists(f"runs/{run_id}/run.json")
        for item in items:
            _remove_unless(done, item, storage, "a run with this id exists again" if there else "")


@contextlib.contextmanager
def _leaving(done: Collected, items: Iterable[Garbage]) -> Iterator[None]:
    """List items that a block did not delete because of a RunError as left, with the error as the reason."""
    try:
        yield
    except RunError as error:
        seen = {id(item) for item in (*done.removed, *(item for item, _ in done.left))}
        done.left += [(item, str(error)) for item in items if id(item) not in seen]


def _remove_unless(done: Collected, item: Garbage, storage: Storage, why: str) -> None:
    if why:
        done.left.append((item, why))
    else:
        _remove(done, item, storage)


def _remove(done: Collected, item: Garbage, storage: Storage) -> None:
    path = storage.directory(item.key)
    if item.what == "temporary" and path.is_file():
        remove_abandoned(path.parent)
        if path.exists():
            done.left.append((item, "a process is writing it"))
            return
    elif item.here or item.what == "temporary":
        storage.discard(item.key)
    else:
        if item.what == "artifact" and isinstance(storage, ObjectStorage):
            # First, because without its manifest a partly deleted artifact is none. A folder is deleted by one rename.
            storage.delete(f"{item.key}/artifact.json")
        storage.delete(item.key)
    done.removed.append(item)
