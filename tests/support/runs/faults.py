"""A disk that counts operations and fails at a chosen one.

Everything that Treadle does below one folder goes through Python's own file functions here, parquet files included
(pyarrow gets them as Python files), so every step can be counted, refused, cut short, or be the last one.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

KINDS: dict[str, tuple[str, ...]] = {
    "write": ("ENOSPC", "EIO", "short", "full", "kill", "torn"),
    "create": ("ENOSPC", "EMFILE", "kill"),
    "mkdir": ("ENOSPC", "kill"),
    "open": ("EMFILE",),
    "read": ("EIO",),
    "sync": ("EIO", "kill"),
    "rename": ("EIO", "EACCES", "kill"),
    "remove": ("EIO", "kill"),
    "truncate": ("EIO", "kill"),
    "lock": ("ENOLCK",),
}
"""Step -> what can go wrong with it.

A name of `errno`: refused once. `short`: half is written and the count returned, as the system may do at any time.
`full`: the same, and nothing more fits from then on. `kill`: the process ends before the step; `torn`: in the midst.
"""
KILLED = 77
_GROWING = ("write", "create", "mkdir")
_PLAIN_WRITE = os.write


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure and its step."""

    at: int
    kind: str

    @property
    def kills(self) -> bool:
        """Return whether it kills the process."""
        return self.kind in ("kill", "torn")


class Disk:
    """The steps taken below a folder; `fault` happens at one of them."""

    def __init__(self, root: Path, fault: Fault | None = None, log: int | None = None) -> None:
        """`log`: descriptor of a file for the steps, for a process that ends on one of them."""
        self._root = str(root)
        self._fault = fault
        self._log = log
        self._full = False
        self._paths: dict[int, str] = {}
        self._lock = threading.RLock()
        self.steps: list[str] = []
        """What was done, such as `write runs/r1/run.json`; random names are written as `*`."""

    def owns(self, path: str) -> bool:
        """Return whether a path is below the folder."""
        return path == self._root or path.startswith(self._root + "/")

    def path_of(self, name: Any, dir_fd: int | None = None) -> str:
        """Return the path of a call; empty if it is not ours."""
        if isinstance(name, int):
            return self._paths.get(name, "")
        path = os.fsdecode(name)
        if dir_fd is not None:
            folder = self._paths.get(dir_fd, "")
            return f"{folder}/{path}" if folder else ""
        path = os.path.abspath(path)
        return path if self.owns(path) else ""

    def opened(self, descriptor: int, path: str) -> None:
        """Remember the path of a descriptor."""
        self._paths[descriptor] = path

    def closed(self, descriptor: int) -> None:
        """Forget it."""
        self._paths.pop(descriptor, None)

    def step(self, what: str, path: str, half: Callable[[], int] | None = None) -> int | None:
        """Count a step; raise, end the process, or return how much of a write was done instead of all of it."""
        with self._lock:
            at = len(self.steps)
            name = re.sub(r"[0-9a-f]{32}(-[0-9a-f]{8})?", "*", os.path.relpath(path, self._root))
            self.steps.append(f"{what} {name}")
            if self._log is not None:
                _PLAIN_WRITE(self._log, f"{what} {name}\n".encode())
            if self._full and what in _GROWING:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            if self._fault is None or self._fault.at != at:
                return None
            kind = self._fault.kind
        if self._fault.kills:
            if kind == "torn" and half is not None:
                half()
            os._exit(KILLED)
        if kind in ("short", "full"):
            self._full = kind == "full"
            return half() if half is not None else None
        number = getattr(errno, kind)
        raise OSError(number, os.strerror(number), path)


class _File(io.FileIO):
    """A file whose steps are counted."""

    disk: Disk
    path: str

    def write(self, data: Any) -> int:
        done = self.disk.step("write", self.path, lambda: io.FileIO.write(self, bytes(data)[: (len(data) + 1) // 2]))
        return io.FileIO.write(self, data) if done is None else done

    def readall(self) -> bytes:
        self.disk.step("read", self.path)
        return super().readall()

    def readinto(self, buffer: Any) -> int | None:
        self.disk.step("read", self.path)
        return super().readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self.disk.closed(self.fileno())
        super().close()


@contextmanager
def watched(disk: Disk) -> Iterator[Disk]:
    """Let everything that is done below the folder go through `disk` for the length of a block."""
    import pyarrow.parquet as pq

    plain_open, plain_writer = io.open, pq.ParquetWriter

    def open_(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **others: Any) -> Any:
        path = "" if isinstance(file, int) else disk.path_of(file)
        if not path:
            return plain_open(file, mode, buffering, *args, **others)
        disk.step("open" if mode.strip("bt") == "r" else "create", path)
        raw = _File(path, mode.replace("b", "").replace("t", ""))
        raw.disk, raw.path = disk, path
        disk.opened(raw.fileno(), path)
        buffered = io.BufferedReader(raw) if raw.mode == "rb" else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *args, **others)

    class Writer(plain_writer):  # type: ignore[misc]
        """Writes through a Python file, where pyarrow would take a name and use files of its own."""

        def __init__(self, where: str, *args: Any, **others: Any) -> None:
            self.file = open_(where, "wb")
            super().__init__(self.file, *args, **others)

        def close(self) -> None:
            # Once: what fails here would fail again, and aloud, when the object goes.
            if not self.file.closed:
                try:
                    super().close()
                finally:
                    self.file.close()

    with (
        mock.patch.multiple(os, **_functions(disk)),
        mock.patch.multiple(fcntl, flock=_flock(disk)),
        mock.patch.multiple(io, open=open_),
        mock.patch.multiple(builtins, open=open_),
        mock.patch.multiple(pq, ParquetWriter=Writer),
    ):
        yield disk


def _flock(disk: Disk) -> Callable[[Any, int], None]:
    plain = fcntl.flock

    def flock(file: Any, operation: int) -> None:
        if ours := disk.path_of(file if isinstance(file, int) else file.fileno()):
            disk.step("lock", ours)
        plain(file, operation)

    return flock


def _functions(disk: Disk) -> dict[str, Callable[..., Any]]:
    """Functions of `os` that take their steps on the disk."""
    plain = {name: getattr(os, name) for name in dir(os)}

    def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if ours := disk.path_of(path, dir_fd):
            disk.step("create" if flags & os.O_CREAT else "open", ours)
        descriptor = int(plain["open"](path, flags, mode, dir_fd=dir_fd))
        if ours:
            disk.opened(descriptor, ours)
        return descriptor

    def close(descriptor: int) -> None:
        disk.closed(descriptor)
        plain["close"](descriptor)

    def dup(descriptor: int) -> int:
        if ours := disk.path_of(descriptor):
            disk.step("open", ours)
        copy = int(plain["dup"](descriptor))
        if ours:
            disk.opened(copy, ours)
        return copy

    def write(descriptor: int, data: bytes) -> int:
        if ours := disk.path_of(descriptor):
            half = bytes(data)[: (len(data) + 1) // 2]
            done = disk.step("write", ours, lambda: plain["write"](descriptor, half))
            if done is not None:
                return done
        return int(plain["write"](descriptor, data))

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if ours := disk.path_of(descriptor):
            half = bytes(data)[: (len(data) + 1) // 2]
            done = disk.step("write", ours, lambda: plain["pwrite"](descriptor, half, offset))
            if done is not None:
                return done
        return int(plain["pwrite"](descriptor, data, offset))

    def counted(name: str, what: str) -> Callable[..., Any]:
        def call(path: Any, *args: Any, dir_fd: int | None = None, **others: Any) -> Any:
            if ours := disk.path_of(path, dir_fd):
                disk.step(what, ours)
            if dir_fd is not None:
                others["dir_fd"] = dir_fd
            return plain[name](path, *args, **others)

        return call

    steps = {"mkdir": "mkdir", "fsync": "sync", "rename": "rename", "replace": "rename"}
    steps |= {"unlink": "remove", "remove": "remove", "rmdir": "remove", "ftruncate": "truncate", "pread": "read"}
    functions = {name: counted(name, what) for name, what in steps.items()}
    return functions | {"open": open_, "close": close, "dup": dup, "write": write, "pwrite": pwrite}
