"""Between putting an artifact in place and the record that names it, nobody collects garbage.

Who commits passes the gate for that short while, together with others who do; who collects has it alone, and looks
again what records reach before anything goes. On a local root these are two locks of the kernel's, since one alone lets
those who share it pass for ever before who wants it alone; on an object root, a lease for each commit and one of the
collector, each of whom looks for the other's after taking its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator

from treadle.core.errors import RunError
from treadle.core.locks import Lease, LeaseWatch, hold_key, watch_leases
from treadle.core.object_storage import ObjectStorage
from treadle.core.storage import Storage, make_folder, storage_errors

_log = logging.getLogger(__name__)

_GATE = ".commits.lock"
_WAY_IN = ".collection.lock"
"""Closed by a collector that waits for the gate: who is inside leaves, and nobody comes after."""
_COMMITS = "locks/commits"
_COLLECTOR = "locks/gc.lock"
_POLL_S = 0.2
_BRIEF_S = 10.0
"""How long a collector for which all wait waits for a commit that came just before it."""
PATIENCE_S = 600.0
"""How long a collector waits for commits under way; that of a large model into an object store takes minutes."""


@contextlib.contextmanager
def committing(storage: Storage, name: str) -> Iterator[None]:
    """Keep collectors away for the length of a block; waits for one that is at work.

    `name`: of the stage instance and its run; its lease is held, so no two processes come with one name.
    """
    if isinstance(storage, ObjectStorage):
        with _committing_objects(storage, name):
            yield
        return
    with _lock_file(storage, _GATE) as gate:
        with _lock_file(storage, _WAY_IN) as way_in:
            _share(way_in)
            _share(gate)
        yield


@contextlib.contextmanager
def collecting(storage: Storage, *, patience_s: float = PATIENCE_S) -> Iterator[Callable[[], None]]:
    """Keep commits out for the length of a block; yields what raises RunError where this process has lost that.

    Waits for commits under way; raises RunError where they do not end in time, or another process collects.
    """
    if isinstance(storage, ObjectStorage):
        with _collecting_objects(storage, patience_s) as lease:
            yield lease.check
        return
    ends = time.monotonic() + patience_s
    while True:
        with _lock_file(storage, _WAY_IN) as way_in, _lock_file(storage, _GATE) as gate:
            brief_ends = min(ends, time.monotonic() + _BRIEF_S)
            if _taken(way_in, brief_ends) and _taken(gate, brief_ends):
                yield lambda: None
                return
        left_s = ends - time.monotonic()
        if left_s <= 0:
            raise _given_up("a stage is putting its result in force, or another collection is at work")
        # A commit that takes this long is not to hold up all others until it ends.
        time.sleep(min(_BRIEF_S, left_s))


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


def _share(lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        _log.info("waiting for the collection of garbage to end")
        fcntl.flock(lock, fcntl.LOCK_SH)


def _taken(lock: int, ends: float) -> bool:
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
        with hold_key(storage, key, f"the commit of {name}"):
            if watch.look(_COLLECTOR) == "free":
                yield
                return
        _log.info("waiting for the collection of garbage to end")
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _collecting_objects(storage: ObjectStorage, patience_s: float) -> Iterator[Lease]:
    """The collector's lease, with no commit left that may have missed it.

    Who has the lease holds up all who come to commit, so it is taken when nobody commits, and given back where one that
    came in between takes long.
    """
    watch, ends = watch_leases(storage), time.monotonic() + patience_s
    while True:
        if watch.look(_COLLECTOR) != "held" and not _commits_end(storage, watch, ends):
            raise _given_up("a stage is putting its result in force")
        with hold_key(storage, _COLLECTOR, "the collection of garbage") as lease:
            if _commits_end(storage, watch, min(ends, time.monotonic() + _BRIEF_S)):
                yield lease
                return
        if time.monotonic() >= ends:
            raise _given_up("a stage is putting its result in force")


def _commits_end(storage: ObjectStorage, watch: LeaseWatch, ends: float) -> bool:
    """Wait until each commit that is under way now is over; False where one is not by then.

    All are looked at each time: that one is dead is known 30 s after the first look.
    """
    left = list(storage.keys(_COMMITS))
    while left := [key for key in left if watch.look(key) != "free"]:
        if time.monotonic() >= ends:
            return False
        time.sleep(_POLL_S)
    return True


def _given_up(cause: str) -> RunError:
    return RunError(f"{cause}; try again when that is over")
