"""Everything that may happen to a flow in the middle of a run, and what an operator does about it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from support.flow_site import HANG_S, FlowRun, Site, answers, command_of
from support.runs.processes import Seen, family, until

from treadle.tasks.prefect.settings import HEARTBEAT_TIMEOUT_S

LOOKED_AT_S = 5.0
"""How often Prefect's server looks for silence: its `proactive_granularity`."""
TOLERANCE_S = 15.0
"""What the documented times get on top here: server, worker and flow run share two cores with the rest of a test."""
GONE_S = 10.0
"""How long something may live whose parent was killed, and how long a worker may not say so: see the same page."""
LOCKED_S = 30.0
_LOCK = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
time.sleep(float(sys.argv[2]))
database.execute("ROLLBACK")
"""


def true_within_s(heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S) -> float:
    """Return how long after a kill the UI may still show a flow run as running: see docs/behaviour/prefect.md."""
    return heartbeat_timeout_s + LOOKED_AT_S + TOLERANCE_S


class Chaos:
    """Faults by name. Each one is injected, repaired by an operator, and returns whether the flow run should
    continue.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.kinds: dict[str, Callable[[FlowRun], bool]] = {
            "flow process": self._kill_flow_process,
            "worker": lambda flow_run: self._kill_child("worker", flow_run),
            "server": lambda flow_run: self._kill_child("server", flow_run),
            "model server": lambda _: self._kill_service("tutor", site.start_tutor),
            "retriever": lambda _: self._kill_service("retriever", site.start_retriever),
            "database locked": lambda _: self._lock_database(),
            "disk full": self._fill_disk,
        }

    def inject_fault(self, kind: str, flow_run: FlowRun) -> bool:
        """Inject a fault into an active flow run, and wait until the UI shows the outcome.

        Returns whether this flow run continues according to docs/behaviour/chaos.md.
        """
        goes_on = self.kinds[kind](flow_run)
        if not flow_run.lives():
            true = lambda: self.site.has_ended(flow_run)  # noqa: E731
            until(true, f"{kind}: the UI says that {flow_run.id} ended", true_within_s(), 0.2)
        return goes_on

    def _kill_flow_process(self, flow_run: FlowRun) -> bool:
        if flow_run.process is None:
            return False
        by_worker = not flow_run.terminal and not self.site.has_ended(flow_run)
        members = [flow_run.process, *family(flow_run.process.pid)]
        kill(flow_run.process)
        gone(members)
        if by_worker:
            until(lambda: self.site.has_ended(flow_run), "the worker says so", GONE_S + TOLERANCE_S, 0.2)
            message = self.site.state(flow_run)["message"]
            assert "No heartbeat for" not in message, f"the worker did not say it: {message}"
        return False

    def _kill_child(self, part: str, flow_run: FlowRun) -> bool:
        site, victim = self.site, self.site.child(part)
        assert victim is not None
        up, members = site.processes["up"], family(site.processes["up"].pid)
        below = [victim, *family(victim.pid)]
        kill(victim)
        gone(below)

        def is_mended() -> bool:
            child = site.child(part)
            again = child is not None and child.pid != victim.pid
            return up.poll() is not None or (again and answers(f"{site.api}/health"))

        until(is_mended, f"{part} is started again", HANG_S, 0.2)
        if up.poll() is None:
            return part == "server" or flow_run.terminal
        # It was young: the command ends with the end of its log, and with all its flow runs.
        assert "ended with code" in (site.folder / "up.log").read_text()[-6000:]
        gone(members)
        site.begin_prefect()()
        return False

    def _kill_service(self, name: str, start: Callable[[], None]) -> bool:
        process = self.site.processes[name]
        process.kill()
        process.wait()
        start()
        return True

    def _lock_database(self) -> bool:
        lock_database(self.site.folder / "prefect" / "prefect.db")
        return True

    def _fill_disk(self, flow_run: FlowRun) -> bool:
        def is_over() -> bool:
            self.site.disk.fill()
            return self.site.is_over(flow_run)

        until(is_over, "a full disk ends the flow run", HANG_S, 0.2)
        self.site.disk.free()
        return False


def lock_database(database: Path) -> None:
    """Keep everyone from writing to an SQLite file for a while."""
    subprocess.run([sys.executable, "-c", _LOCK, str(database), str(LOCKED_S)], check=True)


def kill(process: Seen) -> None:
    """Send SIGKILL, unless the process has just ended."""
    if process.lives():
        os.kill(process.pid, signal.SIGKILL)


def gone(members: list[Seen]) -> None:
    """Wait for the end of a killed process, and of all that it had started."""
    words = {seen.pid: " ".join(command_of(seen.pid))[:200] for seen in members}
    living = lambda: [words[seen.pid] for seen in members if seen.lives()]  # noqa: E731
    end = time.monotonic() + GONE_S
    while left := living():
        assert time.monotonic() < end, f"{GONE_S:g} s after its parent was killed, of {len(words)} processes: {left}"
        time.sleep(0.02)
