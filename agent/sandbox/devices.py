"""Device nodes for one sandbox: its own if root starts it, since sandboxes could meet at the machine's.

An ordinary user cannot make device nodes and shows those of the machine, where the system-call filter keeps locks,
times and notification from telling anything.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

DEVICES = {"null": (1, 3), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
"""Name -> major and minor number. Not `zero`: mapped, it is shared memory that nothing counts."""

_PREFIX = "treadle-devices-"
_LEFTOVER_AGE_S = 3600.0
"""No start takes so long."""


def make_nodes() -> Path | None:
    """Make a folder with new nodes, for the caller to delete once they are mounted; None if none can be made."""
    place = _place()
    return None if place is None else _make(place)


def delete_leftovers() -> None:
    """Delete folders that Treadle and the guardian left when both were killed during a start."""
    place = _place()
    for folder in Path(place).glob(f"{_PREFIX}*") if place is not None else ():
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < time.time() - _LEFTOVER_AGE_S:
                shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _place() -> str | None:
    """Where nodes can be made and opened: containers and mounts with `nodev` may refuse either."""
    if os.geteuid() != 0:
        return None
    for place in ("/dev/shm", tempfile.gettempdir()):
        folder = None
        try:
            folder = _make(place)
            os.close(os.open(folder / "null", os.O_WRONLY))
        except OSError:
            continue
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        return place
    return None


def _make(place: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    try:
        for name, (major, minor) in DEVICES.items():
            os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
            (folder / name).chmod(0o666)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder
