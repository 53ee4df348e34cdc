"""Refusals of the operating system are reported with location, meaning and remedy."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from treadle.core.errors import StorageError
from treadle.core.os_errors import explained
from treadle.core.store.locks import FileLease, live_holder
from treadle.core.store.storage import LocalStorage, storage_errors

WORDS = {
    errno.ENOSPC: ("the disk is full", "free space"),
    errno.EDQUOT: ("quota", "number of files"),
    errno.EROFS: ("read-only", "choose another root"),
    errno.EMFILE: ("too many open files in this process", "ulimit -n"),
    errno.ENFILE: ("too many open files on this machine", "fs.file-max"),
    errno.EACCES: ("permission denied", "read and write"),
    errno.EPERM: ("not permitted", "choose a root"),
    errno.ESTALE: ("stale file handle", "check the mount"),
    errno.ENAMETOOLONG: ("name is too long", "shorter run and model names"),
    errno.ENOLCK: ("no lock", "NFS", "another file system"),
    errno.EOPNOTSUPP: ("cannot do this", "mount it with that option"),
    errno.ENOSYS: ("cannot do this", "mount it with that option"),
    errno.ENOTCONN: ("does not answer", "mount it again"),
    errno.ETIMEDOUT: ("does not answer", "mount it again"),
    errno.ENOMEM: ("no memory", "end other programs"),
    errno.ENOENT: ("does not exist", "put it back"),
    errno.EIO: ("read or write failure", "check the device"),
}


@pytest.mark.parametrize("number", WORDS, ids=lambda number: errno.errorcode[number])
def test_os_error_is_reported_with_location_meaning_and_remedy(number: int, tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught, storage_errors("write", tmp_path / "x"):
        raise OSError(number, os.strerror(number), str(tmp_path / "x"))
    line = str(caught.value)
    assert line.startswith(f"cannot write {tmp_path / 'x'}: ") and "\n" not in line
    for word in WORDS[number]:
        assert word in line, line


def long_name(storage: LocalStorage) -> None:
    storage.put("x" * 300, b"")


def circle(storage: LocalStorage) -> None:
    storage.put("a", b"")
    (storage.root / "loop").symlink_to("loop")
    storage.get("loop/x")


def file_for_folder(storage: LocalStorage) -> None:
    storage.put("a", b"")
    storage.put("a/b", b"")


def folder_for_file(storage: LocalStorage) -> None:
    storage.put("a/b", b"")
    storage.get("a")


def no_descriptor(storage: LocalStorage) -> None:
    storage.put("a", b"")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        storage.get("a")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (long_name, "the name is too long"),
        (circle, "symbolic links lead in a circle"),
        (file_for_folder, "there is a file where a folder is expected"),
        (folder_for_file, "there is a folder where a file is expected"),
        (no_descriptor, "too many open files in this process"),
    ],
)
def test_system_errors_are_named(work: Callable[[LocalStorage], None], said: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=said):
        work(LocalStorage(tmp_path / "root"))


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_named(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "locks" / "1.lock"
    FileLease(lock, "1/x of run r").release()

    def refuse(descriptor: object, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    for work in (lambda: FileLease(lock, "1/x of run r"), lambda: live_holder(lock)):
        with pytest.raises(StorageError, match=r"locks/1\.lock: the file system .*another") as caught:
            work()
        assert "lock" in str(caught.value)


@pytest.mark.parametrize("number", [errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ENOTCONN, errno.EACCES, errno.EPERM])
def test_error_without_a_file_name_is_not_a_file_system_error(number: int) -> None:
    assert explained(OSError(number, os.strerror(number))) == ""
    assert explained(OSError(number, os.strerror(number), "/root/x")).startswith("cannot use /root/x: ")


def test_deleted_working_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = OSError(errno.ENOENT, "")
    assert explained(gone) == "", "a socket, as long as the current folder is there"
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    (tmp_path / "x").rmdir()
    assert explained(gone).startswith("cannot use the current folder: it does not exist")


def test_output_or_process_error_is_explained_without_a_file_name() -> None:
    assert explained(OSError(errno.ENOSPC, "")).startswith("cannot use the output: the disk is full")
    assert explained(OSError(errno.EMFILE, "")).startswith("too many open files in this process")
