"""Leases: at most one process at a time works on a stage instance.

A lease has a fencing token, a number that grows with every holder of the same name, so that what a holder writes that
lost its lease without noticing can be told from what the next one writes. The local lease stands on `flock`: the
kernel drops it with its process, so nothing of a dead holder has to be cleaned up or waited for. That of an object
store is in `core/object_lease.py`; `hold` takes the one that the root has.
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
from typing import Literal, Protocol

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from treadle.core.errors import RunError
from treadle.core.harmless import one_line
from treadle.core.object_storage import ObjectStorage
from treadle.core.storage import Storage, storage_errors, write_all

_HOLDER_BYTES = 512
_DOING_CHARS = 80
# Looking who holds a lease takes a shared lock for an instant; taking it must not fail over that.
_TRIES = 5
_PAUSE_S = 0.02
_BRIEF_TRIES = 3000
"""At one who holds it briefly, such as who removes leftovers: a minute."""


class Holder(BaseModel):
    """Who holds a lease, or held it last."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    token: int
    pid: int
    host: str
    started_at: str
    """UTC, ISO 8601."""
    doing: str = ""
    """What for, where that does not follow from what is held."""
    brief: bool = False
    """Whether it will be over in moments, so that others wait for it instead of giving up."""


class Lease(Protocol):
    """Permission to work on one thing until it is released, lost or expired."""

    token: int
    """Grows with every holder of the same lease."""

    def is_held(self) -> bool:
        """Whether work may go on."""
        ...

    def guard(self) -> None:
        """Raise RunError unless this process knows that it is held; asks nobody, so an event loop may call it."""
        ...

    def check(self) -> None:
        """Raise RunError where it is no longer held; may ask an endpoint, and wait for it."""
        ...

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        ...


class FileLease:
    """A lease held by `flock` on one file, which also names its holder. The file stays when it is released."""

    def __init__(self, path: Path, what: str, *, doing: str = "", brief: bool = False) -> None:
        """Take the lease on `path`, for the thing named `what`; raises RunError naming a living holder.

        `doing` is for others to read: what it is held for. One who holds it briefly (`brief`) is waited for.
        """
        self._path, self._what, self._doing, self._brief = path, what, doing, brief
        with storage_errors("lock", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._lock(what)
                self.token = self._announce()
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
                    raise busy(what, holder) from None
            time.sleep(_PAUSE_S)

    def _announce(self) -> int:
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
        # One write of one size: a kill leaves the old holder or the new one, and the token never goes back.
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        write_all(self._descriptor, holder.model_dump_json().encode().ljust(_HOLDER_BYTES))
        return holder.token

    def is_held(self) -> bool:
        """See `Lease.is_held`; a local lease is never lost before it is released."""
        return self._descriptor is not None

    def guard(self) -> None:
        """See `Lease.guard`."""
        if self._descriptor is None:
            raise RunError(f"this process no longer holds {self._what}")

    def check(self) -> None:
        """See `Lease.check`; the kernel need not be asked."""
        self.guard()

    def release(self) -> None:
        """See `Lease.release`."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def busy(what: str, holder: Holder | None) -> RunError:
    """What a user is told who meets a living holder."""
    who = f"process {holder.pid} on {holder.host} since {holder.started_at}" if holder else "another process"
    return RunError(f"{what} is being run by {who}; wait until it ends, or stop it, then try again")


@contextlib.contextmanager
def hold(path: Path, what: str, *, brief: bool = False) -> Iterator[Lease]:
    """Hold the lease on `path` for the length of a block; raises RunError where a living process has it."""
    lease = FileLease(path, what, brief=brief)
    try:
        yield lease
    finally:
        lease.release()


@contextlib.contextmanager
def hold_key(
    storage: Storage,
    key: str,
    what: str,
    *,
    above: int = 0,
    seen: tuple[bytes, float] | None = None,
    brief: bool = False,
) -> Iterator[Lease]:
    """The same for a lease of a root; its token is greater than `above` where the root is an object store.

    `seen`: what a watch of it has seen, see `LeaseWatch`.
    """
    if not isinstance(storage, ObjectStorage):
        with hold(storage.directory(key), what, brief=brief) as local:
            yield local
        return
    from treadle.core.object_lease import ObjectLease

    lease = ObjectLease(storage, key, what, above=above, seen=seen, brief=brief)
    try:
        lease.keep_renewing()
        yield lease
    finally:
        lease.release()


def holder_of(storage: Storage, key: str) -> Holder | None:
    """Who holds a lease of a root now, or None where nobody does."""
    if not isinstance(storage, ObjectStorage):
        return living_holder(storage.directory(key))
    from treadle.core.object_lease import holder_on

    return holder_on(storage, key)


def living_holder(path: Path) -> Holder | None:
    """Who holds the lease on `path` now, or None where nobody does."""
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


def write_fenced(storage: Storage, key: str, data: bytes, token: int, lease: Lease | None) -> None:
    """Replace what the same or an earlier holder wrote into a JSON object; the tokens in one object never go down.

    `data` bears the token. Raises RunError where a later holder wrote there, and where the lease is lost.
    """
    while True:
        if lease is not None:
            lease.check()
        current = storage.get(key)
        later = _token_in(current)
        if later > token:
            raise RunError(
                f"{storage.location(key)} was written by a process that took over meanwhile "
                f"(its token is {later}, ours {token}); see `treadle status`"
            )
        if storage.put_if(key, data, current):
            return


def _token_in(content: bytes | None) -> int:
    """0 where there is none, or something else."""
    try:
        token = orjson.loads(content or b"{}")["token"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return 0
    return token if isinstance(token, int) else 0


Look = Literal["free", "held", "unknown"]
"""Of a lease: nobody has it or it has run out, a living process has it, or that cannot be told yet."""


class LeaseWatch(Protocol):
    """Leases that are looked at now and then by somebody who would like to have one; no look waits."""

    def look(self, key: str) -> Look:
        """How it is with a lease."""
        ...

    def seen(self, key: str) -> tuple[bytes, float] | None:
        """For `hold_key`, which need not watch again what was watched: what was seen first, and when."""
        ...


def watch_leases(storage: Storage) -> LeaseWatch:
    """A watch of the leases of a root."""
    if not isinstance(storage, ObjectStorage):
        return _FileLeaseWatch(storage)
    from treadle.core.object_lease import ObjectLeaseWatch

    return ObjectLeaseWatch(storage)


class _FileLeaseWatch:
    """The kernel knows at once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def look(self, key: str) -> Look:
        return "free" if living_holder(self._storage.directory(key)) is None else "held"

    def seen(self, key: str) -> None:
        return None


def _read(path: Path) -> Holder | None:
    try:
        return Holder.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
