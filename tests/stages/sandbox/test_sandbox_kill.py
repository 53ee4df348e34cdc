"""No sandbox remains if the process that makes them is killed meanwhile."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.runs.processes import look, until
from support.sandbox.sandbox_kills import guardians, marked
from support.sandbox.sandbox_users import TESTS, USERS, user_command
from support.sweep import sampled

from treadle.agent.sandbox.guardian import Guardian, ProcessStatus

KINDS = ["bubblewrap", "landlock"]
PLACES = sampled(itertools.product(USERS, KINDS), [("root", "bubblewrap"), ("ordinary user", "landlock")])
POINTS = int(os.environ.get("TREADLE_KILL_POINTS", "4"))
STRIDE = max(1, 36 // POINTS)
"""Three sandboxes, made at once, take some thirty changes."""
LEFT_S = 10.0


class Host:
    """Something that makes sandboxes until it is killed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        # A number that no other test has, and a limit that the kernel takes.
        self.marker = random.SystemRandom().randrange(10**6, 10**9)
        self.pid = 0

    def ask(self, **request: Any) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        if request:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def begin(self, **request: Any) -> None:
        self.marker += 1
        self.pid = int(self.ask(marker=self.marker, **request))

    def begin_stuck(self) -> None:
        self.begin(stuck=True)
        until(self.half_made, "bubblewrap has made its child")

    def half_made(self) -> bool:
        """Return whether a bubblewrap has a child that waits for it."""
        found = [seen for seen in marked(self.marker) if seen.lives()]
        return any(one.parent == other.pid for one in found for other in found)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.ask() == "gone"

    def wait_until_orphans_end(self) -> None:
        def left() -> list[int]:
            return [seen.pid for seen in (*marked(self.marker), *guardians(self.pid)) if seen.lives()]

        until(lambda: not left(), f"the end of all that {self.pid} had started", LEFT_S)


@contextmanager
def host_of(user: str, kind: str) -> Iterator[Host]:
    command = user_command(user, "support.sandbox.sandbox_kills", {"kind": kind})
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TESTS) as process:
        yield Host(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.covers("flywheel-5")
@pytest.mark.parametrize("user", sampled(USERS, USERS[:1]))
def test_no_partially_started_sandbox_remains(user: str) -> None:
    """bubblewrap's child waits for its parent without limit: the parent is killed together with its starter."""
    with host_of(user, "bubblewrap") as host:
        host.begin_stuck()
        host.kill()
        host.wait_until_orphans_end()


@pytest.mark.parametrize("user", sampled(USERS, USERS[-1:]))
def test_partially_started_sandbox_is_killed_by_the_next_start(user: str) -> None:
    """Nothing else is: neither half-made ones whose guardian lives, nor what other users have."""
    with host_of(user, "bubblewrap") as host, host_of(user, "bubblewrap") as next_start:
        host.begin_stuck()
        assert next_start.ask(sweep=True) == "0"
        assert host.half_made()
        (guardian,) = guardians(host.pid)
        for pid in (guardian.pid, host.pid):
            os.kill(pid, signal.SIGSTOP)
        os.kill(guardian.pid, signal.SIGKILL)
        host.kill()
        until(lambda: not guardian.lives() and not host.half_made(), "the end of all that ends by itself", LEFT_S)
        left = [seen for seen in marked(host.marker) if seen.lives()]
        assert left, "bubblewrap's child no longer waits for it: then there is nothing to sweep"
        assert next_start.ask(sweep=True) == str(len(left))
        host.wait_until_orphans_end()


@pytest.mark.covers("flywheel-5")
@pytest.mark.parametrize(("user", "kind"), PLACES)
def test_no_process_remains_wherever_the_kill_occurs(user: str, kind: str) -> None:
    """A point is the n-th change of what the machine shows of the host's sandboxes and their guardian."""
    with host_of(user, kind) as host:
        for point in range(0, POINTS * STRIDE, STRIDE):
            host.begin()
            changes: list[set[tuple[int, str, int]]] = []

            def reached(point: int = point, changes: list[set[tuple[int, str, int]]] = changes) -> bool:
                assert look(host.pid), "the host has ended by itself: no sandbox can be started"
                seen = (*marked(host.marker), *guardians(host.pid))
                now = {(one.pid, one.name, one.session) for one in seen}
                if not changes or now != changes[-1]:
                    changes.append(now)
                return len(changes) > point

            until(reached, f"change {point} of what is seen of sandboxes that are made", pause_s=0.0)
            host.kill()
            host.wait_until_orphans_end()


def test_killed_guardian_is_detected_and_replaced(tmp_path: Path) -> None:
    with Guardian() as guardian:
        for _ in range(2):
            guarded = guardian.start(["/bin/cat"], env={}, cwd=tmp_path)
            pid = ProcessStatus.read(guarded.status_pipe.readline().decode()).pid
            (seen,) = (seen for seen in guardians(os.getpid()) if seen.parent == os.getpid())
            os.kill(seen.pid, signal.SIGKILL)
            assert guarded.status_pipe.read() == b""  # No exit code will follow.
            # An exiting process may close its other files before the socket, which takes requests until then.
            until(lambda seen=seen: not seen.lives(), "the guardian has ended")
            for stream in (guarded.stdin, guarded.stdout, guarded.stderr, guarded.status_pipe):
                stream.close()
            until(lambda pid=pid: not os.path.exists(f"/proc/{pid}/exe"), "it has ended with its input")
