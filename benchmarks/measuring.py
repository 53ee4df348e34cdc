"""What a process takes, and measurements that have a process of their own."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

KIB = 1024


def memory_kib(field: str, pid: str | int = "self") -> int:
    """`VmRSS` (resident now) or `VmHWM` (its peak) of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


class MemoryTimes:
    """A progress listener that notes resident memory after so many rollouts, and the peak before the rows are written.

    Every note after the first doubles the number of rollouts.
    """

    def __init__(self, first: int) -> None:
        self.resident_kib: dict[int, int] = {}
        self.peak_kib = 0
        self.seconds = 0.0
        self._next = first
        self._done = self._total = 0
        self._started = time.perf_counter()

    def start(self, total: int, done: int, unit: str) -> None:
        """Work begins."""
        self._total = total
        self._started = time.perf_counter()

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        """One more is finished."""
        self._done += count
        if self._done in (self._next, self._total):
            self.resident_kib[self._done] = memory_kib("VmRSS")
            print(f"{self._done} rollouts: {self.resident_kib[self._done] / KIB:.1f} MiB", file=sys.stderr, flush=True)
            self._next *= 2
        if self._done == self._total:
            self.peak_kib = memory_kib("VmHWM")
            self.seconds = time.perf_counter() - self._started


Measurement = Callable[..., dict[str, Any]]
"""What runs in a process of its own, told a folder and further arguments; returns what it measured."""


def start_child(name: str, folder: Path, *arguments: Any) -> subprocess.Popen[str]:
    """Start one of this command's measurements."""
    call = json.dumps([name, str(folder), *arguments])
    return subprocess.Popen([sys.executable, sys.argv[0], "--child", call], stdout=subprocess.PIPE, text=True)


def measure(name: str, folder: Path, *arguments: Any) -> dict[str, Any]:
    """What one of this command's measurements came to."""
    folder.mkdir(parents=True, exist_ok=True)
    with start_child(name, folder, *arguments) as child:
        said, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"{name} ended with {child.returncode}")
    result: dict[str, Any] = json.loads(said.splitlines()[-1])
    return result


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, user and system, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def drop_from_cache(folder: Path) -> None:
    """Let the kernel forget the files' pages."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def run_command(
    parser: argparse.ArgumentParser,
    measurements: Sequence[Measurement],
    command: Callable[[Path, argparse.Namespace], dict[str, Any]],
) -> None:
    """Print what `command` makes of a temporary folder and the options; in a child, what its measurement came to."""
    if sys.argv[1:2] == ["--child"]:
        name, where, *arguments = json.loads(sys.argv[2])
        (measurement,) = (one for one in measurements if one.__name__ == name)
        print(json.dumps(measurement(Path(where), *arguments)))
        return
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="treadle-scale-", dir=options.folder))
    try:
        figures = command(folder, options)
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(figures))
    else:
        _show(figures)


def _show(figures: dict[str, Any], indent: str = "") -> None:
    """Print one figure per line."""
    for name, value in figures.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            _show(value, f"{indent}  ")
        else:
            print(f"{indent}{name}: {value}")
