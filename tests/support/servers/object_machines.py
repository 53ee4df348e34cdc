"""Machines that share a run on an object root: what another one sees, and one that is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.runs.counting_stage import counting
from support.servers.object_server import in_environment

from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import StageContext
from treadle.core.store.object_lease import LeaseTimes

ADDRESS = Address(1, "count")


def on_machine(root: str, folder: Path) -> Run:
    """Return the run as another machine sees it."""
    with in_environment({"TREADLE_WORK": str(folder)}):
        return Run.open(root, "r1")


class Time:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    @classmethod
    def of_leases(cls, monkeypatch: pytest.MonkeyPatch) -> Time:
        """Replace the clock of all leases for the length of a test, and disable automatic renewals."""
        time = cls()
        times = LeaseTimes(renew_s=1e6, clock=lambda: time.now, sleep=time.pass_)
        monkeypatch.setattr("treadle.core.store.object_lease.TIMES", times)
        return time

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


def execute_interrupted(run: Run, num_finished: int, **options: Any) -> None:
    """Run an attempt that is interrupted after this number of units."""

    def cut_off(context: StageContext) -> Mapping[str, Any]:
        for number in range(num_finished):
            context.journal.finish(f"n{number}", str(number).encode())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(counting(cut_off), run, **options)


SHARED_TIME = """
import os, sys, time
from pathlib import Path
from treadle.core.store import object_lease

def now():
    return float(Path(sys.argv[2]).read_text())

def wait(seconds):
    if sys.argv[3] == "passes":
        new = Path(f"{sys.argv[2]}.{os.getpid()}")
        new.write_text(str(now() + object_lease.LeaseTimes().length_s))
        new.replace(sys.argv[2])
    time.sleep(0.1)

object_lease.TIMES = object_lease.LeaseTimes(renew_s=0.2, clock=now, sleep=wait)
"""
"""Beginning of the programs of machines: leases expire by a clock that stands still unless one of them passes time."""


class Machine:
    """A process on its own machine: it prints what it starts, and continues after each input line."""

    def __init__(self, program: str, root: str, work: Path, *, passes_time: bool = False) -> None:
        """Start a program after `SHARED_TIME`; machines whose `work` is in the same folder share a clock.

        If `passes_time`, leases without renewals expire while it waits.
        """
        clock = work.parent / "clock"
        if not clock.exists():
            clock.write_text("0.0")
        environment = {**os.environ, "TREADLE_WORK": str(work), "PYTHONPATH": str(Path(__file__).parents[2])}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", SHARED_TIME + program, root, str(clock), "passes" if passes_time else "stands"],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=environment,
        )

    def line(self) -> str:
        """Return its next output line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        """Give it one line."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> tuple[list[str], str]:
        """Let it run to its end; return the rest of its output, and its failure messages."""
        out, err = self.process.communicate("\n" * 50)
        return out.split(), err
