"""Keep gc from deleting an artifact between its commit and the record that references it.

A commit passes the gate for that short time, together with other commits. A collector holds the gate alone, and checks
again what records reach before it deletes anything. On a local root the gate consists of two kernel locks, because with
a single one, back-to-back commits that share it could starve the collector. On an object root there is a lease for each
commit and one for the collector, and each side looks for the other's lease after taking its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator

from treadle.core.errors import RunError
from treadle.core.store.leases import Lease, LeaseWatch, hold_key, watch_leases
from treadle.core.store.object_storage import ObjectStorage
from treadle.core.store.roots import Storage
from treadle.core.store.storage import make_folder, storage_errors

_log = logging.getLogger(__name__)

_GATE = ".commits.lock"
_ENTRY_LOCK = ".collection.lock"
"""Held by a collector that waits for the gate: commits in progress leave, and no new ones enter."""
_COMMITS = "locks/commits"
_COLLECTOR = "locks/gc.lock"
_POLL_S = 0.2
_SHORT_WAIT_S = 10.0
"""Seconds that a collector waits for a commit that started just before it, while all other commits wait."""
MAX_WAIT_S = 600.0
"""Seconds that a collector waits for commits in progress; committing a large model to an object store takes minutes."""


@contextlib.contextmanager
def committing(storage: Storage, name: str) -> Iterator[None]:
    """Keep collectors out during a block; wait for one that is running.

    `name` identifies the stage instance and its run. Its lease is held, so no two processes use the same name.
    """
    if isinstance(storage, ObjectStorage):
        with _committing_objects(storage, name):
            yield
        return
    with _lock_file(storage, _GATE) as gate:
        with _lock_file(storage, _ENTRY_LOCK) as entry_lock, storage_errors("lock", storage.location()):
            _lock_shared(entry_lock)
            _lock_shared(gate)
        yield


@contextlib.contextmanager
def collecting(storage: Storage, *, max_wait_s: float = MAX_WAIT_S) -> Iterator[Callable[[], None]]:
    """Keep commits out during a block; yield a function that raises RunError if this process has lost the gate.

    Waits for commits in progress. Raise RunError if they do not end in time, or if another process collects.
    """
    if isinstance(storage, ObjectStorage):
        with _collecting_objects(storage, max_wait_s) as lease:
            yield lease.check
        return
    ends = time.monotonic() + max_wait_s
    while True:
        with _lock_file(storage, _ENTRY_LOCK) as entry_lock, _lock_file(storage, _GATE) as gate:
            brief_ends = min(ends, time.monotonic() + _SHORT_WAIT_S)
            with storage_errors("lock", storage.location()):
                is_taken = _lock_exclusive(entry_lock, brief_ends) and _lock_exclusive(gate, brief_ends)
            if is_taken:
                yield lambda: None
                return
        left_s = ends - time.monotonic()
        if left_s <= 0:
            raise _timeout_error("a stage is committing its result, or another garbage collection is running")
        # A commit that takes this long must not hold up all others until it ends.
        time.sleep(min(_SHORT_WAIT_S, left_s))


@contextlib.contextmanager
def _lock_file(storage: Storage, name: str) -> Iterator[int]:
    path = storage.directory(name)
    with storage_errors("lock", path):
        make_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock_shared(lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        _log.info("waiting for garbage collection to end")
        fcntl.flock(lock, fcntl.LOCK_SH)


def _lock_exclusive(lock: int, ends: float) -> bool:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= ends:
                return False
            time.sleep(_POLL_S)
        else:
            return True


@contextlib.contextmanager
def _committing_objects(storage: ObjectStorage, name: str) -> Iterator[None]:
    key, watch = f"{_COMMITS}/{name.replace('/', '~')}.lock", watch_leases(storage)
    while True:
        # Take the lease first, then look for the collector's: if both come at once, at least one sees the other.
        with hold_key(storage, key, f"the commit of {name}"):
            if watch.look(_COLLECTOR) == "free":
                yield
                return
        _log.info("waiting for garbage collection to end")
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _collecting_objects(storage: ObjectStorage, max_wait_s: float) -> Iterator[Lease]:
    """Hold the collector's lease, once all commits that started before it was taken have ended.

    The lease blocks all new commits. So it is taken when no commit is in progress, and released again if a commit that
    started in between takes long.
    """
    watch, ends = watch_leases(storage), time.monotonic() + max_wait_s
    while True:
        if watch.look(_COLLECTOR) != "held" and not _commits_end(storage, watch, ends):
            raise _timeout_error("a stage is committing its result")
        with hold_key(storage, _COLLECTOR, "garbage collection") as lease:
            if _commits_end(storage, watch, min(ends, time.monotonic() + _SHORT_WAIT_S)):
                yield lease
                return
        if time.monotonic() >= ends:
            raise _timeout_error("a stage is committing its result")


def _commits_end(storage: ObjectStorage, watch: LeaseWatch, ends: float) -> bool:
    """Wait until each commit that is in progress now has ended; return False if one has not by `ends`.

    All are checked in every round, because an abandoned lease is recognised only 30 s after the first check.
    """
    left = list(storage.keys(_COMMITS))
    while left := [key for key in left if watch.look(key) != "free"]:
        if time.monotonic() >= ends:
            return False
        time.sleep(_POLL_S)
    return True


def _timeout_error(cause: str) -> RunError:
    return RunError(f"{cause}; try again later")
