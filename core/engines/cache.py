"""Locate and lock the cache of this machine: engine environments, unpacked models, copies of Treadle's own code."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from treadle.core.errors import EngineError

Notify = Callable[[str], None]
"""Callback that takes one line about progress."""


def quiet(line: str) -> None:
    """Ignore a line about progress."""


def cache_root() -> Path:
    """Return `$TREADLE_CACHE`, else `~/.cache/treadle`."""
    given = os.environ.get("TREADLE_CACHE", "")
    return Path(given).expanduser().absolute() if given else Path.home() / ".cache" / "treadle"


@contextlib.contextmanager
def cache_lock(path: Path, notify: Notify = quiet) -> Iterator[None]:
    """Hold `<path>.lock`, so that no two processes build the same cache entry; wait until the other one is done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(path.name + ".lock").open("w")
    except OSError as error:
        raise EngineError(f"the cache {path.parent} cannot be written ({error}); set TREADLE_CACHE") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            notify(f"waiting for another process that makes {path.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
