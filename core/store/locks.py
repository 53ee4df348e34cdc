"""Provide leases, so that at most one process at a time works on a stage instance.

A lease has a fencing token, a number that grows with every holder. It distinguishes what a former holder writes, after
losing its lease without noticing, from what its successor writes. The local lease uses `flock`: the kernel releases it
with the process, so a dead holder leaves nothing to clean up or to wait for. The lease for
object stores is in `core/store/object_lease.py`; `core/store/leases.py` picks the right one for a root.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from treadle.core.errors import RunError
from treadle.core.store.storage import LocalStorage, file_identity, moved, storage_errors, write_all
from treadle.core.untrusted.sanitize import one_line

_HOLDER_BYTES = 512
_DOING_CHARS = 80
# `live_holder` takes a shared lock for an instant, which must not make taking the lease fail.
_TRIES = 5
_PAUSE_S = 0.02
_BRIEF_TRIES = 3000
"""Attempts if the holder holds the lease only briefly, such as a process that deletes leftovers: a minute."""


class Holder(BaseModel):
    """The current or last holder of a lease."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    token: int
    pid: int
    host: str
    started_at: str
    """Time at which the holder took the lease, in UTC, ISO 8601."""
    doing: str = ""
    """Purpose of the lease, if it does not follow from the name of the lease."""
    brief: bool = False
    """Whether the lease ends in moments, so that others wait for it instead of giving up."""


class FileLease:
    """The right to work on one thing until it is released, held by `flock` on one file, which also names its holder.

    The file stays when the lease is released. `token` is the fencing token, which grows with every holder.
    """

    def __init__(self, path: Path, what: str, *, doing: str = "", brief: bool = False) -> None:
        """Take the lease on `path` for the thing named `what`; raise RunError naming a living holder.

        `doing` tells other processes the purpose. Others wait for a lease that is held only briefly (`brief`).
        """
        self._path, self._what, self._doing, self._brief = path, what, doing, brief
        with storage_errors("lock", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._lock(what)
                self._identity = file_identity(self._descriptor)
                self._check_file()
                self.token = self._write_holder()
            except BaseException:
                self.release()
                raise

    def _lock(self, what: str) -> None:
        assert self._descriptor is not None
        for number in itertools.count(1):
            try:
                return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _read(self._path)
                if number >= (_BRIEF_TRIES if holder and holder.brief else _TRIES):
                    raise held_error(what, holder) from None
            time.sleep(_PAUSE_S)

    def _write_holder(self) -> int:
        assert self._descriptor is not None
        last = _read(self._path)
        holder = Holder(
            token=last.token + 1 if last else 1,
            pid=os.getpid(),
            host=socket.gethostname(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            doing=one_line(self._doing)[:_DOING_CHARS],
            brief=self._brief,
        )
        # One write of fixed size: a kill leaves the old holder or the new one, and the token never decreases.
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        write_all(self._descriptor, holder.model_dump_json().encode().ljust(_HOLDER_BYTES))
        return holder.token

    def _check_file(self) -> None:
        """Raise StorageError if the path of the lock file no longer leads to the file that is locked."""
        with storage_errors("look up the lease", self._path):
            if file_identity(self._path) != self._identity:
                raise moved(f"the lock file of {self._what},", self._path)

    def guard(self) -> None:
        """Raise RunError unless the lease is known to be held; sends no request, so an event loop may call it.

        A local lease is never lost before it is released.
        Also raises StorageError if the lock file was moved, for example with the root or the run.
        """
        if self._descriptor is None:
            raise RunError(f"this process no longer holds {self._what}")
        self._check_file()

    def check(self) -> None:
        """Raise as `guard` does; a local lease needs no further check."""
        self.guard()

    def release(self) -> None:
        """Release the lease; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def held_error(what: str, holder: Holder | None) -> RunError:
    """Return the error for a lease that a living process holds."""
    who = f"process {holder.pid} on {holder.host} since {holder.started_at}" if holder else "another process"
    return RunError(f"{what} is being run by {who}; wait until it ends, or stop it, then try again")


@contextlib.contextmanager
def hold(path: Path, what: str, *, brief: bool = False) -> Iterator[FileLease]:
    """Hold the lease on `path` during a block; raise RunError if a living process has it."""
    lease = FileLease(path, what, brief=brief)
    try:
        yield lease
    finally:
        lease.release()


def live_holder(path: Path) -> Holder | None:
    """Return the current holder of the lease on `path`, or None."""
    with storage_errors("look up the lease", path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(path) or Holder(token=0, pid=0, host="unknown", started_at="unknown")
        finally:
            os.close(descriptor)
        return None


LeaseStatus = Literal["free", "held", "unknown"]
"""State of a lease: available or expired, held by a living process, or not yet known."""


class FileLeaseWatch:
    """A watch of local leases by a process that tries to get one; the kernel reports their state at once."""

    def __init__(self, storage: LocalStorage) -> None:
        self._storage = storage

    def look(self, key: str) -> LeaseStatus:
        """Return the state of a lease."""
        return "free" if live_holder(self._storage.directory(key)) is None else "held"

    def seen(self, key: str) -> None:
        """Return None: no earlier observation is needed."""
        return None


def _read(path: Path) -> Holder | None:
    try:
        return Holder.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
