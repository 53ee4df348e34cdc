"""A lease has one holder at a time and remembers nothing of dead ones but their token."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from treadle.core.errors import RunError, StorageError
from treadle.core.store import locks
from treadle.core.store.locks import FileLease, hold, live_holder


def test_second_holder_gets_an_error_naming_the_first(tmp_path: Path) -> None:
    path = tmp_path / "1" / "rollouts@base.lock"
    with (
        hold(path, "1/rollouts@base"),
        pytest.raises(RunError, match=f"1/rollouts@base is being run by process {os.getpid()} on .* since"),
        hold(path, "1/rollouts@base"),
    ):
        pass


def test_briefly_held_lock_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, num_pauses = tmp_path / "1.lock", 20
    holder = FileLease(path, "1/pools", brief=True)
    pauses = iter(range(num_pauses))
    monkeypatch.setattr(locks.time, "sleep", lambda _: holder.release() if next(pauses) == num_pauses - 1 else None)
    with hold(path, "1/pools") as lease:
        lease.guard()
        # Who works at it is not: far fewer pauses than there were.
        pauses = iter(range(num_pauses))
        with pytest.raises(RunError, match="1/pools is being run by process"), hold(path, "1/pools"):
            pass
        assert next(pauses) < num_pauses - 1


def test_each_holder_gets_a_higher_token(tmp_path: Path) -> None:
    tokens = []
    for _ in range(3):
        with hold(tmp_path / "lock", "it") as lease:
            lease.guard()
            tokens.append(lease.token)
    assert tokens == [1, 2, 3]


def test_status_distinguishes_a_live_holder_from_a_former_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert live_holder(path) is None
    lease = FileLease(path, "it")
    holder = live_holder(path)
    assert holder is not None
    assert holder.pid == os.getpid()
    lease.release()
    lease.release()
    assert live_holder(path) is None
    with pytest.raises(RunError, match="no longer holds it"):
        lease.guard()


def test_damaged_lock_file_is_acquired(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"{")
    with hold(tmp_path / "lock", "it") as lease:
        assert lease.token == 1


def test_unreadable_lease_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot look up the lease .*file/lock: there is a file where a folder"):
        live_holder(tmp_path / "file" / "lock")
