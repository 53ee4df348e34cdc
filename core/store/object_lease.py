"""Implement a lease in an object store: a conditional put decides who holds it, and it expires without renewals.

Clocks of two machines are never compared; each interval is measured on one monotonic clock that counts suspended time.
The holder stops `length_s - safety_s` after it *sent* its last successful renewal. A waiting process sees that renewal
later, and takes the lease at least `length_s` after it saw it, by an answer requested after that. So the holder stops
before any other process may start; `safety_s` allows for clocks of different speed. A late renewal fails, since its
ETag is outdated.

A process that stops between checking its lease and writing does no harm: records, attempt states and `result.json` are
replaced by compare-and-set only if the token there is not higher, attempt numbers are put if absent, artifacts are
named by content, and journal segments count only if they are listed.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import ValidationError

from treadle.core.errors import RunError, StorageError
from treadle.core.store.locks import FileLease, Holder, LeaseStatus, held_error, live_holder
from treadle.core.store.object_storage import ObjectStorage, RetryPolicy

_log = logging.getLogger(__name__)

_RETRY_POLICY = RetryPolicy(connect_s=3.0, request_s=6.0, retries=1, retrying_s=4.0)
"""Short retry policy, because a renewal that hangs is useless."""
_POLL_S = 1.0


def since_boot() -> float:
    """Return the seconds since boot, including time suspended, as the clocks of waiting machines include it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The intervals of a lease, and its clock."""

    length_s: float = 30.0
    """Time without a renewal after which another process takes the lease."""
    renew_s: float = 5.0
    safety_s: float = 5.0
    """Time by which the holder stops before the lease expires, because clocks may run at different speeds."""
    clock: Callable[[], float] = since_boot
    sleep: Callable[[float], None] = time.sleep


TIMES = LeaseTimes()


class LeaseState(Holder):
    """The content of the lease object."""

    machine: str
    """Identifier of the holder's working folder and of the boot of its machine."""
    nonce: str
    beat: int
    """Number of the renewal; it makes all contents of the object distinct."""
    length_s: float
    renew_s: float
    released: bool = False


class ObjectLease:
    """A lease on one object. It includes a local lease, so that a working folder has one process at a time."""

    def __init__(
        self,
        storage: ObjectStorage,
        key: str,
        what: str,
        *,
        above: int = 0,
        seen: tuple[bytes, float] | None = None,
        brief: bool = False,
        times: LeaseTimes | None = None,
    ) -> None:
        """Take the lease `key` for the thing named `what`, with a token greater than `above`.

        If another machine has it, waits until that machine renews it (then raises RunError, after some seconds), or
        until it has not been renewed for its length, counted from the first observation (`seen`). Raises StorageError
        if the endpoint fails.
        """
        self._storage, self._key, self._what = storage.with_retry_policy(_RETRY_POLICY), key, what
        self._times = times or TIMES
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._valid_until = -1.0
        self._lost = False
        self._last_error = "it could not be renewed in time"
        self._local = FileLease(storage.directory(key), what, brief=brief)
        try:
            self._state, self._content = self._acquire(above, seen)
        except BaseException:
            self._local.release()
            raise
        self.token = self._state.token

    def _acquire(self, above: int, watched: tuple[bytes, float] | None) -> tuple[LeaseState, bytes]:
        clock, machine = self._times.clock, self._storage.machine()
        seen, seen_at = watched or (None, 0.0)
        while True:
            asked_at = clock()
            content = self._storage.get(self._key)
            holder = _parse(content)
            # Same machine: this process has the local lease, so the previous holder has ended or lost it.
            free = holder is None or holder.released or holder.machine == machine
            if free or (content == seen and holder is not None and asked_at - seen_at >= holder.length_s):
                taken = self._take(content, max(above, holder.token if holder else 0) + 1, machine)
                if taken is not None:
                    return taken
                continue
            if content != seen:
                if seen is not None:
                    raise held_error(self._what, holder)
                seen, seen_at = content, clock()
                _log.info("waiting to see if %s is still in use: another machine held its lease last", self._what)
            self._times.sleep(_POLL_S)

    def _take(self, content: bytes | None, token: int, machine: str) -> tuple[LeaseState, bytes] | None:
        state = LeaseState(
            token=token,
            pid=os.getpid(),
            host=socket.gethostname(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=machine,
            nonce=uuid.uuid4().hex,
            beat=0,
            length_s=self._times.length_s,
            renew_s=self._times.renew_s,
        )
        began, data = self._times.clock(), _as_bytes(state)
        if not self._storage.put_if(self._key, data, content):
            return None
        self._valid_until = began + self._times.length_s - self._times.safety_s
        return state, data

    def keep_renewing(self) -> None:
        """Renew the lease in the background until it is released or lost."""
        self._thread = threading.Thread(target=self._renew_until_stopped, name="treadle-lease", daemon=True)
        self._thread.start()

    def _renew_until_stopped(self) -> None:
        pause_s = self._times.renew_s
        while not self._stopped.wait(pause_s) and not self._lost:
            pause_s = self._times.renew_s if self.renew() else min(_POLL_S, self._times.renew_s)

    def renew(self) -> bool:
        """Renew the lease for its length from now, if no other process has taken it; return False if that failed."""
        with self._lock:
            if self._lost or self._stopped.is_set():
                return False
            began, state = self._times.clock(), self._state.model_copy(update={"beat": self._state.beat + 1})
            data = _as_bytes(state)
            try:
                renewed = self._storage.put_if(self._key, data, self._content)
                found = None if renewed else self._storage.get(self._key)
            except StorageError as error:
                self._last_error = f"it could not be renewed in time: {error}"
                return False
            if renewed:
                self._state, self._content = state, data
                self._valid_until = began + self._times.length_s - self._times.safety_s
                return True
            holder = _parse(found)
            if found is not None and holder is not None and holder.nonce == self._state.nonce:
                # The renewal took effect, but its answer was lost; the next renewal builds on it.
                self._state, self._content = holder, found
                return False
            self._lost = True
            who = f"process {holder.pid} on {holder.host} has it" if holder else f"{self._key} was deleted"
            self._last_error = f"meanwhile {who}"
            return False

    def is_held(self) -> bool:
        """Return whether work may continue; becomes False before another process can take the lease."""
        return not self._lost and not self._stopped.is_set() and self._times.clock() < self._valid_until

    def check(self) -> None:
        """Raise RunError if the lease is lost; after a suspension, try one renewal to find out whether it was taken."""
        if not self.is_held():
            self.renew()
        self.guard()

    def guard(self) -> None:
        """See `FileLease.guard`; decided by the local clock alone, so it works while a renewal hangs."""
        if not self.is_held():
            raise RunError(
                f"this process no longer holds {self._what} ({self._last_error}); what was recorded is kept: "
                "run the same command again"
            )

    def release(self) -> None:
        """See `FileLease.release`; if the endpoint fails, others wait until the lease expires."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        try:
            if not self._lost:
                data = _as_bytes(self._state.model_copy(update={"released": True}))
                self._storage.put_if(self._key, data, self._content)
        except StorageError as error:
            _log.warning("the lease of %s could not be released; it expires by itself: %s", self._what, error)
        finally:
            self._local.release()


class ObjectLeaseWatch:
    """A watch of leases in an object store; a lease of another machine needs several looks."""

    def __init__(self, storage: ObjectStorage, times: LeaseTimes | None = None) -> None:
        self._storage, self._times = storage, times or TIMES
        self._seen: dict[str, tuple[bytes, float]] = {}
        self._living: set[str] = set()

    def look(self, key: str) -> LeaseStatus:
        """Return the state of a lease without waiting.

        It is also `held` if an earlier look saw a renewal and the lease has not expired since.
        """
        asked_at = self._times.clock()
        content = self._storage.get(key)
        state = _parse(content)
        if content is None or state is None or state.released:
            return "free"
        if state.machine == self._storage.machine():
            return "held" if live_holder(self._storage.directory(key)) else "free"
        seen = self._seen.get(key)
        if seen is not None and content == seen[0]:
            if asked_at - seen[1] >= state.length_s:
                return "free"
            return "held" if key in self._living else "unknown"
        self._seen[key] = content, self._times.clock()
        if seen is None:
            return "unknown"
        self._living.add(key)
        return "held"

    def seen(self, key: str) -> tuple[bytes, float] | None:
        """Return the first observation of a lease and its time, so that `hold_key` need not wait as long again."""
        return self._seen.get(key)


def holder_on(storage: ObjectStorage, key: str, times: LeaseTimes | None = None) -> Holder | None:
    """Return the holder of the lease `key`, or None.

    Exact if the last holder is on this machine. For another machine, waits for a renewal, 10 s at most.
    """
    times = times or TIMES
    first = storage.get(key)
    state = _parse(first)
    if state is None or state.released:
        return None
    if state.machine == storage.machine():
        return live_holder(storage.directory(key))
    end = times.clock() + 2 * state.renew_s
    while times.clock() < end:
        times.sleep(_POLL_S)
        now = storage.get(key)
        state = _parse(now)
        if state is None or state.released:
            return None
        if now != first:
            return state
    return None


def _as_bytes(state: LeaseState) -> bytes:
    return state.model_dump_json(indent=2).encode() + b"\n"


def _parse(content: bytes | None) -> LeaseState | None:
    """Parse the content of a lease object; return None if there is none or it is something else."""
    try:
        return None if content is None else LeaseState.model_validate_json(content)
    except ValidationError:
        return None
