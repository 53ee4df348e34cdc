"""A killed run leaves no process behind, although it had started a server and programs of a model."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.runs.command_line import TREADLE, Desk, environment, set_up
from support.runs.endless_agent import NAME
from support.runs.processes import Seen, end_family, family, kill_alone, look, remaining, until
from support.sweep import sampled

LEFT_S = 10.0
TESTS = Path(__file__).resolve().parents[2]
OWN_SERVER = (
    'models.tutor={model="treadle-tutor",endpoints=[],server={type="tutor",module="support.runs.endless_agent"}}'
)
ENDLESS = ("--set", OWN_SERVER, "--set", "environment.python.time_limit_s=600", "--set", "rollouts.max_questions=1")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return set_up(tmp_path / "desk", "http://127.0.0.1:9/v1", python=True)


def at_work(pid: int) -> list[Seen]:
    """Return all descendants of a process once its server is up and a sandboxed program runs; empty until then."""
    members = family(pid)
    return members if sum(seen.name == NAME for seen in members) >= 2 else []


@contextmanager
def started(desk: Desk, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process with the desk's run somewhere below it, in a session without a terminal, as in a CI job."""
    with (desk.folder / "err").open("wb") as err:
        process = subprocess.Popen(
            command,
            cwd=desk.folder,
            env=environment(PYTHONPATH=os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])),
            stdout=err,
            stderr=err,
            start_new_session=True,
            # The tests themselves may have been started with `nohup`, which a run would take for its own.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                end_family(process)


def wait_until_orphans_end(of: list[Seen]) -> None:
    until(lambda: not remaining(of), f"the end of {[seen.name for seen in of]}", LEFT_S)


def test_killed_run_takes_down_its_server_and_programs(desk: Desk) -> None:
    with started(desk, TREADLE, "run", "run.toml", "--run", "r", *ENDLESS) as run:
        until(lambda: bool(at_work(run.pid)), "a program is at work", 120.0)
        orphans = kill_alone(run)
    assert orphans is not None and {"bwrap", NAME} <= {seen.name for seen in orphans}
    wait_until_orphans_end(orphans)


def shell(desk: Desk, prefix: str = "") -> tuple[str, ...]:
    """Return a shell that waits for a run rather than becoming it."""
    command = shlex.join([TREADLE, "run", "run.toml", "--run", "r", *ENDLESS])
    return ("sh", "-c", f"{prefix} {command}; true")


def test_killed_shell_takes_down_its_run(desk: Desk) -> None:
    with started(desk, *shell(desk)) as parent:
        until(lambda: bool(at_work(parent.pid)), "a program is at work", 120.0)
        orphans = kill_alone(parent)
    assert orphans is not None and "treadle" in {seen.name for seen in orphans}
    wait_until_orphans_end(orphans)
    (state,) = [item for item in desk.treadle("status", "--run", "r", "--json").json() if "rollouts" in item["address"]]
    assert state["state"] == "interrupted"


WATCHING = """
import signal
from treadle.core.parent_watch import end_with_parent
end_with_parent()
print("watching", flush=True)
signal.pause()
"""


def wait_for_parent_watchers() -> None:
    """Wait as long as one more process takes to notice the loss of its parent: by then all others have noticed, too."""
    command = f"{shlex.join([sys.executable, '-c', WATCHING])} & echo $!; wait"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        watching = look(int(parent.stdout.readline()))
        assert watching is not None and parent.stdout.readline() == "watching\n"
        parent.kill()
    until(lambda: not watching.lives(), "the end of a process that watches its parent", LEFT_S)


@pytest.mark.parametrize("prefix", sampled(["nohup", "setsid --wait"], ["nohup"]))
def test_detached_run_outlives_its_shell(desk: Desk, prefix: str) -> None:
    with started(desk, *shell(desk, prefix)) as parent:
        until(lambda: bool(at_work(parent.pid)), "a program is at work", 120.0)
        orphans = kill_alone(parent)
    assert orphans is not None
    (run,) = [seen for seen in orphans if seen.name == "treadle"]
    try:
        until(lambda: look(run.pid).parent != parent.pid, "the run has another parent")
        wait_for_parent_watchers()
        assert run.lives()
        (state,) = [
            item for item in desk.treadle("status", "--run", "r", "--json").json() if "rollouts" in item["address"]
        ]
        assert state["state"] == "running"
    finally:
        os.kill(run.pid, signal.SIGKILL)
    wait_until_orphans_end(orphans)
