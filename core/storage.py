"""Where runs and artifacts are kept: whole objects under keys, in a local folder or an object store.

A key is a relative POSIX path such as `runs/r1/run.json`. The protocol asks only for what an object store can also
promise: an object appears whole or not at all, a conditional put decides races, a folder of files is published by
making its manifest appear last. What needs a POSIX directory (journal, logs) asks for one with `directory`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol

from treadle.core.errors import ConfigError, StorageError

_TEMPORARY = ".tmp-"
_ABANDONED = re.compile(re.escape(_TEMPORARY) + "[0-9a-f]{32}")

_REMEDIES = {
    errno.ENOSPC: "the disk is full: free space, then run the same command again; what was finished is kept",
    errno.EDQUOT: "the disk quota is used up: free space, then run the same command again; what was finished is kept",
    errno.EFBIG: "the file would grow larger than allowed: raise the limit with `ulimit -f`",
    errno.EROFS: "the file system is read-only: choose another root",
    errno.EACCES: "permission denied: choose a root that this user may write, or change its owner",
    errno.EPERM: "operation not permitted: choose a root that this user may write",
    errno.EMFILE: "too many open files: raise the limit with `ulimit -n`",
    errno.ENAMETOOLONG: "the name is too long for this file system: use shorter run and model names",
    errno.ENOTDIR: "a file lies where a folder is expected: choose another root",
    errno.EEXIST: "a file lies where a folder is expected: choose another root",
    errno.EIO: "the disk reports a read or write failure: check the device",
}


@contextlib.contextmanager
def storage_errors(action: str, path: Path | str) -> Iterator[None]:
    """Turn an OSError into a StorageError that names the action, the path, its meaning and what to do."""
    try:
        yield
    except OSError as error:
        meaning = _REMEDIES.get(error.errno or 0, os.strerror(error.errno) if error.errno else str(error))
        raise StorageError(f"cannot {action} {path}: {meaning}") from error


class Storage(Protocol):
    """A root under which objects are kept. All methods raise StorageError where the medium fails."""

    def location(self, key: str = "") -> str:
        """Path or URL of an object or folder, for people."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write a whole object; readers see the old one or the new one, never a part."""
        ...

    def put_if(self, key: str, data: bytes, expected: bytes | None) -> bool:
        """Write an object if it now equals `expected` (None: if there is none); False if it does not."""
        ...

    def get(self, key: str) -> bytes | None:
        """Content of an object, or None where there is none."""
        ...

    def open(self, key: str) -> io.BufferedIOBase:
        """Open an object for reading with random access; raises StorageError where there is none."""
        ...

    def exists(self, key: str) -> bool:
        """Whether there is such an object."""
        ...

    def keys(self, prefix: str) -> Iterator[str]:
        """Keys of all objects below a folder, sorted; unpublished work is left out."""
        ...

    def names(self, prefix: str) -> list[str]:
        """Names of the folders directly below a folder, sorted."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object, or all objects and growing files below it; nothing happens where there is none."""
        ...

    def prepare(self, prefix: str) -> Path:
        """Create an empty local folder in which objects for a folder below `prefix` can be prepared."""
        ...

    def publish(self, staged: Path, folder: str, manifest: str, *, replace: bool = False) -> bool:
        """Make a staged folder appear as `folder`, its file `manifest` last, and drop the staged files.

        Returns False where the folder has been published before, unless it is to be replaced.
        """
        ...

    def directory(self, key: str) -> Path:
        """Path of a POSIX directory, which may not exist yet, for files that grow: journals, logs, locks."""
        ...

    def bring(self, key: str) -> Path:
        """Path of an object on this machine, fetched if it is not there; to be read only. Raises StorageError."""
        ...

    def keep(self, key: str) -> None:
        """Make a file that grew below `directory` an object, as it is now; nothing happens where there is none."""
        ...

    def discard(self, key: str) -> None:
        """Remove a folder of files that grew on this machine."""
        ...


# One slash: a URL that went through a Path on its way here.
_OBJECT_STORE = re.compile(r"s3:/{1,2}([^/]+)(?:/(.*))?")


def is_object_store(root: str | Path) -> bool:
    """Whether a root is an `s3://` URL, also as a Path has it."""
    return _OBJECT_STORE.fullmatch(str(root)) is not None


def open_storage(root: str | Path) -> Storage:
    """The storage behind a local path or a URL `s3://bucket/prefix`; raises ConfigError for any other URL.

    Nothing is read or written yet. Endpoint, region and credentials come from the usual AWS variables.
    """
    text = str(root)
    if match := _OBJECT_STORE.fullmatch(text):
        from treadle.core.object_storage import ObjectStorage

        return ObjectStorage(match[1], (match[2] or "").strip("/"))
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
        raise ConfigError(f"{text} cannot be a root; give a local path, or s3://bucket/prefix")
    return LocalStorage(Path(root))


class LocalStorage:
    """A root on a local or network file system with POSIX rename and flock."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))

    def path(self, key: str) -> Path:
        """The file of a key; refuses keys that would leave the root."""
        return self.root / checked_key(key, self.root)

    def location(self, key: str = "") -> str:
        """See `Storage.location`."""
        return str(self.path(key))

    def put(self, key: str, data: bytes) -> None:
        """See `Storage.put`."""
        target = self.path(key)
        with storage_errors("write", target):
            make_folder(target.parent)
            _write_atomically(target, data)

    def put_if(self, key: str, data: bytes, expected: bytes | None) -> bool:
        """See `Storage.put_if`; decided under one lock per root."""
        guard = self.path(".put_if.lock")
        with storage_errors("write", self.path(key)):
            make_folder(self.root)
            with guard.open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if self.get(key) != expected:
                    return False
                self.put(key, data)
                return True

    def get(self, key: str) -> bytes | None:
        """See `Storage.get`."""
        path = self.path(key)
        with storage_errors("read", path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def open(self, key: str) -> io.BufferedIOBase:
        """See `Storage.open`."""
        path = self.path(key)
        with storage_errors("read", path):
            return path.open("rb")

    def exists(self, key: str) -> bool:
        """See `Storage.exists`."""
        path = self.path(key)
        with storage_errors("look up", path):
            return path.is_file()

    def keys(self, prefix: str) -> Iterator[str]:
        """See `Storage.keys`."""
        start = self.path(prefix)
        with storage_errors("list", start):
            for folder, folders, files in os.walk(start):
                folders[:] = sorted(name for name in folders if not name.startswith(_TEMPORARY))
                place = Path(folder).relative_to(self.root)
                yield from sorted((place / name).as_posix() for name in files if not name.startswith(_TEMPORARY))

    def names(self, prefix: str) -> list[str]:
        """See `Storage.names`."""
        folder = self.path(prefix)
        with storage_errors("list", folder):
            try:
                with os.scandir(folder) as entries:
                    return sorted(
                        item.name for item in entries if item.is_dir() and not item.name.startswith(_TEMPORARY)
                    )
            except FileNotFoundError:
                return []

    def delete(self, key: str) -> None:
        """See `Storage.delete`."""
        path = self.path(key)
        with storage_errors("delete", path), contextlib.suppress(FileNotFoundError):
            # Renamed first: a kill in the middle leaves no half of it behind under its own name. The new name follows
            # from the old one, so that the next deletion finds what that kill left.
            doomed = path.parent / f"{_TEMPORARY}deleted-{path.name}"
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(doomed)
            if path.is_dir():
                path.rename(doomed)
                shutil.rmtree(doomed)
            else:
                path.unlink(missing_ok=True)
            remove_abandoned(path.parent)

    def prepare(self, prefix: str) -> Path:
        """See `Storage.prepare`."""
        parent = self.path(prefix)
        with storage_errors("write", parent):
            make_folder(parent)
            folder = parent / _temporary_name()
            folder.mkdir()
            return folder

    def publish(self, staged: Path, folder: str, manifest: str, *, replace: bool = False) -> bool:
        """See `Storage.publish`: everything is forced to disk, then one rename makes it appear."""
        target = self.path(folder)
        if replace:
            self.delete(folder)
        with storage_errors("write", target):
            force_folder_to_disk(staged)
            make_folder(target.parent)
            try:
                os.rename(staged, target)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                shutil.rmtree(staged)
                return False
            force_to_disk(target.parent)
            return True

    def directory(self, key: str) -> Path:
        """See `Storage.directory`."""
        return self.path(key)

    def bring(self, key: str) -> Path:
        """See `Storage.bring`."""
        return self.path(key)

    def keep(self, key: str) -> None:
        """See `Storage.keep`; a growing file lies where it stays."""

    def discard(self, key: str) -> None:
        """See `Storage.discard`."""
        self.delete(key)


def checked_key(key: str, root: Path | str) -> PurePosixPath:
    """The key as a path; raises StorageError for one that would leave the root."""
    pure = PurePosixPath(key)
    if pure.is_absolute() or ".." in pure.parts or "\0" in key:
        raise StorageError(f"{key!r} is not a key inside of {root}")
    return pure


def make_folder(path: Path) -> None:
    """Create a folder and its parents so that a power loss does not take them back; raises OSError."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        force_to_disk(path.parent)


def _temporary_name() -> str:
    return f"{_TEMPORARY}{uuid.uuid4().hex}"


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data; the system may take less at a time. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _write_atomically(target: Path, data: bytes) -> None:
    temporary, descriptor = _locked_temporary(target.parent)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(descriptor)
    force_to_disk(target.parent)
    remove_abandoned(target.parent)


def _locked_temporary(folder: Path) -> tuple[Path, int]:
    """A new file and its descriptor, locked for as long as it is open: one without a lock has lost its writer."""
    while True:
        path = folder / _temporary_name()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # Taken for abandoned by another process, in the instant before it was locked.


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of killed writers from a folder; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{_TEMPORARY}*"):
            if _ABANDONED.fullmatch(path.name) and path.is_file():
                _remove_unlocked(path)


def _remove_unlocked(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)


def force_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def force_folder_to_disk(folder: Path) -> None:
    """Wait until a folder and all that is in it are on the disk; raises OSError."""
    for path in folder.rglob("*"):
        force_to_disk(path)
    force_to_disk(folder)
