"""Store runs and artifacts as whole objects under keys, in a local folder or an object store.

A key is a relative POSIX path such as `runs/r1/run.json`. A storage guarantees only what an object store can also
guarantee: an object is written atomically, a conditional put decides races, and a folder of files is published by
writing its manifest last. Code that needs a POSIX directory (journal, logs) gets one from `directory`.
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

from treadle.core.errors import StorageError
from treadle.core.os_errors import meaning_of

_TEMPORARY = ".tmp-"
_ABANDONED = re.compile(re.escape(_TEMPORARY) + "[0-9a-f]{32}")


@contextlib.contextmanager
def storage_errors(action: str, path: Path | str) -> Iterator[None]:
    """Turn an OSError into a StorageError that names the action, the path, its meaning and what to do."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {action} {path}: {meaning_of(error, path)}") from error


Identity = tuple[int, int]
"""Device and inode number."""


def file_identity(place: Path | int) -> Identity | None:
    """Return the identity of the file at a path or descriptor; None if there is none. Raises OSError."""
    try:
        facts = os.stat(place)
    except FileNotFoundError:
        return None
    return facts.st_dev, facts.st_ino


class WatchedPath:
    """A path with the identity of the file or folder that it first led to.

    It is checked before anything is written below the path. Otherwise a root that was renamed during a run would be
    created again, empty, under its old name.
    """

    def __init__(self, path: Path, what: str) -> None:
        """Watch a path; `what` is its name in messages."""
        self._path, self._what = path, what
        self._seen: Identity | None = None

    def check(self) -> None:
        """Raise StorageError if the path leads to something else than before; raise OSError if the check fails."""
        # Read before the look-up: another thread may store a newer identity than the one seen here.
        seen = self._seen
        now = file_identity(self._path)
        if seen is None:
            self._seen = self._seen or now
        elif now != seen:
            raise moved(self._what, self._path)


def moved(what: str, path: Path) -> StorageError:
    """Return the error for a file or folder that is no longer at its path."""
    return StorageError(
        f"{what} {path} was moved, renamed, deleted or replaced while it was in use; nothing more is written there. "
        "Put it back, or give its new path (--root, --run), then run the same command again"
    )


class LocalStorage:
    """A root on a local or network file system with POSIX rename and flock.

    All methods raise StorageError if the medium fails. `ObjectStorage` has the same methods.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))
        self._place = WatchedPath(self.root, "the root")

    def path(self, key: str) -> Path:
        """Return the file of a key.

        Raises StorageError if the key would leave the root, or if the root was moved or replaced: writing to its old
        path would create a second root.
        """
        path = self.root / checked_key(key, self.root)
        with storage_errors("look up", self.root):
            self._place.check()
        return path

    def _make_folder(self, folder: Path) -> None:
        """Create a folder, and remember the identity of the root, which may be created by this."""
        make_folder(folder)
        self._place.check()

    def location(self, key: str = "") -> str:
        """Return the path or URL of an object or folder, for display."""
        return str(self.path(key))

    def put(self, key: str, data: bytes) -> None:
        """Write a whole object; readers see the old one or the new one, never a part."""
        target = self.path(key)
        with storage_errors("write", target):
            self._make_folder(target.parent)
            write_atomically(target, data)

    def put_if(self, key: str, data: bytes, expected: bytes | None) -> bool:
        """Write an object if its content is `expected` (None: if it does not exist); return whether it did.

        Serialised by one lock per root.
        """
        guard = self.path(".put_if.lock")
        with storage_errors("write", self.path(key)):
            self._make_folder(self.root)
            with guard.open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if self.get(key) != expected:
                    return False
                self.put(key, data)
                return True

    def get(self, key: str) -> bytes | None:
        """Return the content of an object, or None if it does not exist."""
        path = self.path(key)
        with storage_errors("read", path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def open(self, key: str) -> io.BufferedIOBase:
        """Open an object for reading with random access; raise StorageError if it does not exist."""
        path = self.path(key)
        with storage_errors("read", path):
            return path.open("rb")

    def exists(self, key: str) -> bool:
        """Return whether an object exists."""
        path = self.path(key)
        with storage_errors("look up", path):
            return path.is_file()

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys of all objects below a folder in sorted order, without unpublished work."""
        start = self.path(prefix)
        with storage_errors("list", start):
            for folder, folders, files in os.walk(start):
                folders[:] = sorted(name for name in folders if not name.startswith(_TEMPORARY))
                place = Path(folder).relative_to(self.root)
                yield from sorted((place / name).as_posix() for name in files if not name.startswith(_TEMPORARY))

    def names(self, prefix: str) -> list[str]:
        """Return the sorted names of the folders directly below a folder."""
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
        """Delete an object, or all objects and growing files below it; do nothing if there is none."""
        path = self.path(key)
        with storage_errors("delete", path), contextlib.suppress(FileNotFoundError):
            # Renamed first, so that a kill in the middle leaves no partial folder under its own name. The new name is
            # derived from the old one, so the next deletion finds what a kill left.
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
        """Create an empty local folder in which objects for a folder below `prefix` can be prepared."""
        parent = self.path(prefix)
        with storage_errors("write", parent):
            self._make_folder(parent)
            folder = parent / _temporary_name()
            folder.mkdir()
            return folder

    def publish(self, staged: Path, folder: str, manifest: str, *, replace: bool = False) -> bool:
        """Publish a staged folder as `folder`, its file `manifest` last, and delete the staged files.

        Forces everything to disk, then publishes the folder with one rename. Returns False if the folder has been
        published before, unless `replace` is set.
        """
        target = self.path(folder)
        if replace:
            self.delete(folder)
        with storage_errors("write", target):
            force_folder_to_disk(staged)
            self._make_folder(target.parent)
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
        """Return the path of a local directory, which may not exist yet, for files that grow: journals, logs, locks."""
        return self.path(key)

    def local_copy(self, key: str) -> Path:
        """Return the local path of an object, fetching it if necessary; treat it as read-only. Raises StorageError."""
        return self.path(key)

    def keep(self, key: str) -> None:
        """Store the current content of a file below `directory` as an object; a local file already is one."""

    def discard(self, key: str) -> None:
        """Delete a folder of growing files on this machine."""
        self.delete(key)


def checked_key(key: str, root: Path | str) -> PurePosixPath:
    """Return the key as a path; raise StorageError if it would leave the root."""
    pure = PurePosixPath(key)
    if pure.is_absolute() or ".." in pure.parts or "\0" in key:
        raise StorageError(f"{key!r} is not a key inside of {root}")
    return pure


def make_folder(path: Path) -> None:
    """Create a folder and its parents durably, so that they survive a power loss; raise OSError if that fails."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        force_to_disk(path.parent)


def _temporary_name() -> str:
    return f"{_TEMPORARY}{uuid.uuid4().hex}"


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data, as the system may accept less at a time; raise OSError if that fails."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_atomically(target: Path, data: bytes) -> None:
    """Write a file whole or not at all, replacing an existing one; raise OSError if that fails."""
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
    """Create a file, locked while it is open, and return its path and descriptor.

    A temporary file without a lock has lost its writer.
    """
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
        os.close(descriptor)  # Another process took it for abandoned before it was locked, and deleted it.


def remove_abandoned(folder: Path) -> None:
    """Delete the temporary files of killed writers from a folder, as far as possible."""
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
    """Wait until a file, or the names in a folder, are on the disk; raise OSError if that fails."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def force_folder_to_disk(folder: Path) -> None:
    """Wait until a folder and all files below it are on the disk; raise OSError if that fails."""
    for path in folder.rglob("*"):
        force_to_disk(path)
    force_to_disk(folder)
