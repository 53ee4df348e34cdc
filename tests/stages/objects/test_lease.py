"""A lease in an object store has one holder at a time, on clocks that no two machines share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from treadle.core.errors import RunError, StorageError
from treadle.core.store.leases import holder_of
from treadle.core.store.object_lease import LeaseTimes, ObjectLease, holder_on
from treadle.core.store.object_storage import ObjectStorage

KEY = "runs/r1/locks/1/count.lock"


class Time:
    """The time of the test; each machine has a clock that is set otherwise."""

    def __init__(self) -> None:
        self.now = 0.0
        self.each: Callable[[], object] = lambda: None

    def pass_(self, seconds: float) -> None:
        """Let time pass, second by second."""
        self.now += seconds
        self.each()

    def seen_by(self, offset_s: float) -> LeaseTimes:
        return LeaseTimes(clock=lambda: self.now + offset_s, sleep=self.pass_)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def machine(object_root: str, tmp_path: Path) -> Callable[[str], ObjectStorage]:
    """Return a function that opens the same root as another machine sees it."""
    bucket, _, prefix = object_root.removeprefix("s3://").partition("/")
    return lambda name: ObjectStorage(bucket, prefix, work=tmp_path / name)


Machines = Callable[[str], ObjectStorage]


def test_active_lease_on_another_machine_is_respected(machine: Machines, time: Time) -> None:
    first = ObjectLease(machine("a"), KEY, "it", times=time.seen_by(1e6))
    time.each = first.renew
    with pytest.raises(RunError, match=r"it is being run by process \d+ on .* since .*; wait until it ends"):
        ObjectLease(machine("b"), KEY, "it", times=time.seen_by(-1e6))
    assert first.is_held()
    assert first.token == 1


def test_silent_holder_notices_losing_the_lease_before_another_machine_gets_it(machine: Machines, time: Time) -> None:
    first = ObjectLease(machine("a"), KEY, "it", times=time.seen_by(-5000.0))
    time.pass_(3.0)
    assert first.renew()
    renewed_at, ended_at = time.now, []
    time.each = lambda: first.is_held() or ended_at.append(time.now)
    second = ObjectLease(machine("b"), KEY, "it", times=time.seen_by(5000.0))
    time.each = lambda: None
    assert second.token == 2
    assert time.now - renewed_at >= 30.0
    assert ended_at[0] < time.now
    with pytest.raises(RunError, match=r"no longer holds it \(meanwhile process \d+ on .* has it\)"):
        first.check()
    first.release()
    assert second.renew() and second.is_held()


def test_released_lease_is_acquired_immediately_with_a_higher_token(machine: Machines, time: Time) -> None:
    for number, name in enumerate(("a", "b", "a"), start=1):
        lease = ObjectLease(machine(name), KEY, "it", times=time.seen_by(0.0))
        assert lease.token == number
        lease.release()
        lease.release()
        assert not lease.is_held()
    assert time.now == 0.0


def test_tokens_increase_even_if_the_object_was_deleted_or_damaged(machine: Machines, time: Time) -> None:
    storage = machine("a")
    ObjectLease(storage, KEY, "it", times=time.seen_by(0.0)).release()
    for content in (None, b"{", b"{}"):
        storage.delete(KEY)
        if content is not None:
            storage.put(KEY, content)
        lease = ObjectLease(machine("b"), KEY, "it", above=41, times=time.seen_by(0.0))
        assert lease.token == 42
        lease.release()


def test_holder_that_slept_continues_if_the_lease_was_not_reassigned(machine: Machines, time: Time) -> None:
    lease = ObjectLease(machine("a"), KEY, "it", times=time.seen_by(0.0))
    time.pass_(3600.0)
    assert not lease.is_held()
    with pytest.raises(RunError, match="no longer holds it"):
        lease.guard()
    lease.check()
    lease.guard()
    assert lease.is_held()


class LostResponseStorage(ObjectStorage):
    """Does what is asked, and its answer is lost."""

    lost = False

    def with_retry_policy(self, *_: object) -> ObjectStorage:
        return self

    def put_if(self, key: str, data: bytes, expected: bytes | None) -> bool:
        done = super().put_if(key, data, expected)
        if self.lost:
            raise StorageError("no answer")
        return done


def test_renewal_with_a_lost_response_is_recognised_as_ours(
    object_root: str, machine: Machines, tmp_path: Path, time: Time
) -> None:
    bucket, _, prefix = object_root.removeprefix("s3://").partition("/")
    storage = LostResponseStorage(bucket, prefix, work=tmp_path / "a")
    lease = ObjectLease(storage, KEY, "it", times=time.seen_by(0.0))
    storage.lost = True
    assert not lease.renew()
    storage.lost = False
    assert [lease.renew(), lease.renew()] == [False, True]
    storage.lost = True
    time.pass_(25.0)
    with pytest.raises(RunError, match=r"no longer holds it \(it could not be renewed in time: no answer\)"):
        lease.check()


def test_one_of_concurrent_machines_gets_the_lease(machine: Machines, time: Time) -> None:
    def come(name: str) -> int | None:
        try:
            lease = ObjectLease(machine(name), KEY, "it", times=time.seen_by(0.0))
        except RunError:
            return None
        time.each = lease.renew
        return lease.token

    with ThreadPoolExecutor(4) as pool:
        tokens = list(pool.map(come, "abcd"))
    assert sorted(token or 0 for token in tokens) == [0, 0, 0, 1]


HOLDER = """
import sys
from pathlib import Path
from treadle.core.store.object_lease import ObjectLease
from treadle.core.store.object_storage import ObjectStorage
bucket, _, prefix = sys.argv[1].removeprefix("s3://").partition("/")
lease = ObjectLease(ObjectStorage(bucket, prefix, work=Path(sys.argv[2])), sys.argv[3], "it")
print(lease.token, flush=True)
sys.stdin.read()
"""


def test_lease_of_a_dead_process_on_the_same_machine_is_not_waited_for(
    object_root: str, machine: Machines, tmp_path: Path, time: Time
) -> None:
    command = [sys.executable, "-c", HOLDER, object_root, str(tmp_path / "a"), KEY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "1\n"
        with pytest.raises(RunError, match=f"process {child.pid} "):
            ObjectLease(machine("a"), KEY, "it", times=time.seen_by(0.0))
        holder = holder_of(machine("a"), KEY)
        assert holder is not None and holder.pid == child.pid
        child.kill()
        child.wait()
    assert holder_of(machine("a"), KEY) is None
    assert ObjectLease(machine("a"), KEY, "it", times=time.seen_by(0.0)).token == 2
    assert time.now == 0.0


def test_reading_a_lease_from_another_machine_waits_for_a_renewal(machine: Machines, time: Time) -> None:
    times = time.seen_by(7.0)
    assert holder_on(machine("b"), KEY, times) is None
    lease = ObjectLease(machine("a"), KEY, "it", times=time.seen_by(0.0))
    assert holder_on(machine("b"), KEY, times) is None
    assert time.now == 10.0
    time.each = lease.renew
    holder = holder_on(machine("b"), KEY, times)
    assert holder is not None and holder.token == 1
    lease.release()
    assert holder_on(machine("b"), KEY, times) is None
