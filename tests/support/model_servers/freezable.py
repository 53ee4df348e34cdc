"""Servers in processes of their own, which stand still (SIGSTOP) with a request on the wire if a file tells them to."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.runs.processes import look


@dataclass
class FreezableProcess:
    """A running server with the log of its requests."""

    pid: int
    log: Path

    def is_frozen(self) -> bool:
        """Return whether it stands still."""
        seen = look(self.pid)
        return seen is not None and seen.state == "T"

    def thaw(self) -> None:
        """Let it continue."""
        os.kill(self.pid, signal.SIGCONT)


@contextlib.contextmanager
def server_process(module: str, log: Path, *arguments: str) -> Iterator[tuple[int, str]]:
    """Run `python -m MODULE LOG ...` for the duration of the block; yield its pid and the line that it prints first."""
    log.touch()
    command = [sys.executable, "-m", module, str(log), *arguments]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.kill()


def trigger_of(log: Path) -> Path:
    """Return the file that makes a server stand still."""
    return log.with_suffix(".freeze")


def stand_still() -> None:
    """Stop this process until another one lets it continue."""
    os.kill(os.getpid(), signal.SIGSTOP)
