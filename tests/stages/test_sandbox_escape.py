"""No hostile program gets out of the sandbox or outlives it, whether Treadle runs as root or as an ordinary user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import sandbox_probes

from treadle.agent.sandbox.bubblewrap import find_bubblewraps

PROBES = Path(sandbox_probes.__file__)
NOBODY = 65534
USERS = ["root", "ordinary user"] if os.geteuid() == 0 else ["ordinary user"]
WITHOUT_ISOLATION = [
    "host_files",
    "network_tcp",
    "abstract_socket_of_the_host",
    "write_outside_scratch",
    "nested_namespaces",
]


def _command(user: str, task: dict[str, Any]) -> list[str]:
    python = [sys.executable, str(PROBES)]
    if user == "ordinary user" and os.geteuid() == 0:
        return [*_openly_readable(), *python, json.dumps(task | {"uid": NOBODY})]
    return [*python, json.dumps(task)]


def _openly_readable() -> list[str]:
    """A prefix that shows a command the interpreter and this checkout even where only root may reach them."""
    needed = [Path(path).resolve() for path in (sys.base_prefix, sys.prefix, PROBES.parents[2])]
    closed = {path: parent for path in needed for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001}
    arguments = [str(find_bubblewraps()[0]), "--die-with-parent", "--dev-bind", "/", "/"]
    for parent in sorted(set(closed.values())):
        arguments += ["--perms", "0755", "--tmpfs", str(parent)]
    for path, hidden in closed.items():
        for between in reversed(
            [parent for parent in path.parents if parent.is_relative_to(hidden) and parent != hidden]
        ):
            arguments += ["--perms", "0755", "--dir", str(between)]
        arguments += ["--bind", str(path), str(path)]
    return [*arguments, "--"]


@cache
def _outcomes(user: str) -> dict[str, Any]:
    done = subprocess.run(_command(user, {}), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["uid"] == 0) == (user == "root")
    return report


@pytest.mark.covers("flywheel-6")
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("probe", sandbox_probes.ENDING)
def test_probe_gets_nothing(probe: str, user: str) -> None:
    outcome = _outcomes(user)["outcomes"][probe]
    assert (outcome["status"], outcome["text"]) == ("ok", "held")
    assert outcome["survivors"] == 0


@pytest.mark.covers("flywheel-5")
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("probe", sandbox_probes.ENDLESS)
def test_endless_program_is_ended_at_the_limit(probe: str, user: str) -> None:
    outcome = _outcomes(user)["outcomes"][probe]
    assert (outcome["status"], outcome["text"]) == ("timeout", "Execution Timeout")
    assert outcome["survivors"] == 0


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("probe", sandbox_probes.FLOODS)
def test_flood_is_cut_and_ended(probe: str, user: str) -> None:
    outcome = _outcomes(user)["outcomes"][probe]
    assert outcome["status"] == "error"
    assert outcome["text"].endswith("[killed: it printed too much]")
    assert len(outcome["text"]) <= 1000


@pytest.mark.covers("flywheel-5")
@pytest.mark.parametrize("user", USERS)
def test_no_process_is_left_when_the_tool_is_closed(user: str) -> None:
    assert _outcomes(user)["left"] == []


def test_probes_do_escape_where_nothing_holds_them() -> None:
    """The probes can succeed, so their failing in the sandbox means something."""
    task = {"kind": "none", "names": WITHOUT_ISOLATION}
    if os.geteuid() == 0:
        task["names"] = [name for name in WITHOUT_ISOLATION if name != "write_outside_scratch"]
    done = subprocess.run(_command("ordinary user", task), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for name, outcome in json.loads(done.stdout)["outcomes"].items():
        assert "ESCAPED" in outcome["text"], name


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.covers("flywheel-5")
@pytest.mark.parametrize("user", USERS)
def test_nothing_is_left_after_a_kill_of_the_host_process(user: str) -> None:
    command = _command(user, {"hold": True})
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        report = json.loads(process.stdout.readline())
        held = report["held"]
        assert len(held) >= 4
        os.kill(report["pid"], signal.SIGKILL)
    until = time.monotonic() + 10
    while any(map(_is_running, held)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(_is_running, held))
