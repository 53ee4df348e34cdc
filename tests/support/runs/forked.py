"""A function in a forked process, in a session of its own, that can be watched and killed like a started command."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path


class Forked:
    """Replaces `subprocess.Popen` in `support.runs.processes`."""

    def __init__(self, work: Callable[[], None], said: Path) -> None:
        """Fork; `said` is the file for the output; the exit code is 0 if `work` returns, else 1."""
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            self._work(work, said)

    @staticmethod
    def _work(work: Callable[[], None], said: Path) -> None:
        code = 1
        try:
            os.setsid()
            descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - pytest has put its own there
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - as the interpreter does: shown, then the end
            traceback.print_exc()
        finally:
            os._exit(code)

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end, but no longer than `timeout`; its exit code, or None."""
        end = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        return self.returncode

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, 9)
