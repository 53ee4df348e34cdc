"""Measure memory and CPU of processes, and run measurements in processes of their own."""

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
    """Return `VmRSS` (current resident memory) or `VmHWM` (its peak) of a process, in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


class MemoryTimes:
    """Progress listener that records resident memory after N, 2N, 4N, … rollouts, and the peak before rows are written.

    N is `first`.
    """

    def __init__(self, first: int) -> None:
        self.resident_kib: dict[int, int] = {}
        self.peak_kib = 0
        self.seconds = 0.0
        self._next = first
        self._done = self._total = 0
        self._started = time.perf_counter()

    def start(self, total: int, done: int, unit: str) -> None:
        """Start the clock."""
        self._total = total
        self._started = time.perf_counter()

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        """Count finished rollouts, and record memory when due."""
        self._done += count
        if self._done in (self._next, self._total):
            self.resident_kib[self._done] = memory_kib("VmRSS")
            print(f"{self._done} rollouts: {self.resident_kib[self._done] / KIB:.1f} MiB", file=sys.stderr, flush=True)
            self._next *= 2
        if self._done == self._total:
            self.peak_kib = memory_kib("VmHWM")
            self.seconds = time.perf_counter() - self._started


Measurement = Callable[..., dict[str, Any]]
"""Function that runs in a process of its own, given a folder and further arguments; returns its measurements."""


def this_module() -> list[str]:
    """Return the command that runs the module of this process again, whether it was started by name or by path."""
    spec = sys.modules["__main__"].__spec__
    return [sys.executable, *(["-m", spec.name] if spec else sys.argv[:1])]


def start_child(name: str, folder: Path, *arguments: Any) -> subprocess.Popen[str]:
    """Start a measurement of this command in a new process."""
    call = json.dumps([name, str(folder), *arguments])
    return subprocess.Popen([*this_module(), "--child", call], stdout=subprocess.PIPE, text=True)


def measure(name: str, folder: Path, *arguments: Any) -> dict[str, Any]:
    """Run a measurement of this command in a new process and return its result."""
    folder.mkdir(parents=True, exist_ok=True)
    with start_child(name, folder, *arguments) as child:
        said, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"{name} ended with {child.returncode}")
    result: dict[str, Any] = json.loads(said.splitlines()[-1])
    return result


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far, user and system, including its finished children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def drop_from_cache(folder: Path) -> None:
    """Drop the files of a folder from the page cache."""
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
    """Run `command` on a temporary folder and print its figures. In a child process, run its measurement instead."""
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
