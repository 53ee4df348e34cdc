"""What is left of sandboxes when the process that makes them is killed while it does: nothing."""

from __future__ import annotations

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
from support.processes import until
from support.sandbox_kills import guardians, marked
from support.sandbox_users import TESTS, USERS, user_command

from treadle.agent.sandbox.guardian import Guardian, News

KINDS = ["bubblewrap", "landlock"]
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

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.ask() == "gone"

    def nothing_is_left(self) -> None:
        def left() -> list[int]:
            return [seen.pid for seen in (*marked(self.marker), *guardians(self.pid)) if seen.lives()]

        until(lambda: not left(), f"the end of all that {self.pid} had started", LEFT_S)


@contextmanager
def host_of(user: str, kind: str) -> Iterator[Host]:
    command = user_command(user, "support.sandbox_kills", {"kind": kind})
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TESTS) as process:
        yield Host(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.covers("flywheel-5")
@pytest.mark.parametrize("user", USERS)
def test_no_half_made_sandbox_is_left(user: str) -> None:
    """bubblewrap's child waits for its parent, and would for ever: the parent dies with what started it."""
    with host_of(user, "bubblewrap") as host:
        host.begin(stuck=True)

        def half_made() -> bool:
            found = marked(host.marker)
            return any(one.parent == other.pid for one in found for other in found)

        until(half_made, "bubblewrap has made its child")
        host.kill()
        host.nothing_is_left()


@pytest.mark.covers("flywheel-5")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("user", USERS)
def test_nothing_is_left_wherever_the_kill_comes(user: str, kind: str) -> None:
    """A point is the n-th change of what the machine shows of the host's sandboxes and their guardian."""
    with host_of(user, kind) as host:
        for point in range(0, POINTS * STRIDE, STRIDE):
            host.begin()
            changes, before = 0, None
            while changes <= point:
                now = {(seen.pid, seen.name, seen.session) for seen in (*marked(host.marker), *guardians(host.pid))}
                changes += now != before
                before = now
            host.kill()
            host.nothing_is_left()


def test_a_killed_guardian_is_noticed_and_replaced(tmp_path: Path) -> None:
    with Guardian() as guardian:
        for _ in range(2):
            guarded = guardian.start(["/bin/cat"], env={}, cwd=tmp_path)
            pid = News.read(guarded.news.readline().decode()).pid
            (seen,) = (seen for seen in guardians(os.getpid()) if seen.parent == os.getpid())
            os.kill(seen.pid, signal.SIGKILL)
            assert guarded.news.read() == b""  # Nobody says how it will end.
            for stream in (guarded.stdin, guarded.stdout, guarded.stderr, guarded.news):
                stream.close()
            until(lambda pid=pid: not os.path.exists(f"/proc/{pid}/exe"), "it has ended with its input")
