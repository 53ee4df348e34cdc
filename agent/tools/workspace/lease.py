"""Keep a folder of the host for the workspaces of this process, and remove those of processes that have ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from treadle.core.errors import ToolError

_LOCK_SUFFIX = ".lock"


class Lease:
    """Folder that belongs to this process as long as the process holds a lock on the file next to the folder.

    The kernel releases the lock when the process ends.
    """

    def __init__(self, base: Path | None) -> None:
        """Use a folder in `base`; None for the system's folder for temporary files."""
        self._base = (base or Path(tempfile.gettempdir())) / f"treadle-workspaces-{os.geteuid()}"
        self._lock: int | None = None
        self.folder = self._base

    @property
    def lock_file(self) -> Path:
        """File that is locked as long as the process lives."""
        return self.folder.with_name(self.folder.name + _LOCK_SUFFIX)

    def take(self) -> int:
        """Make the folder, remove the folders of ended processes, and return their number. Raises ToolError."""
        try:
            self._base.mkdir(mode=0o700, parents=True, exist_ok=True)
            own = self._base.lstat()
            if own.st_uid != os.geteuid() or not self._base.is_dir() or self._base.is_symlink():
                raise ToolError(f"{self._base} belongs to another user; set `folder` of the workspace")
            with _locked(self._base / "base.lock"):
                dead = [lock for lock in self._base.glob(f"*[0-9a-f]{_LOCK_SUFFIX}") if not is_held(lock)]
                for lock in dead:
                    remove(lock.with_suffix(""))
                    lock.unlink(missing_ok=True)
                self.folder = self._base / os.urandom(8).hex()
                self._lock = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                self.folder.mkdir(mode=0o700)
        except OSError as error:
            raise ToolError(f"workspaces cannot be kept in {self._base}: {error}") from error
        return len(dead)

    def release(self) -> None:
        """Delete the folder."""
        if self._lock is not None:
            remove(self.folder)
            self.lock_file.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def is_held(lock_file: Path) -> bool:
    """Return whether a running process holds a lock file; a missing file is not held."""
    try:
        lock = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # An error such as too many open files does not show whether a process holds it.
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def remove(folder: Path) -> None:
    """Delete a folder with hostile content, which may be nested deeper than Python's own functions can go."""
    if os.geteuid() != 0:
        subprocess.run(["chmod", "-R", "u+rwX", "--", folder], capture_output=True, check=False)
    subprocess.run(["rm", "-rf", "--one-file-system", "--", folder], capture_output=True, check=False)
