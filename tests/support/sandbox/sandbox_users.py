"""Run a sandbox's host process as root and as an ordinary user, whichever user runs the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from treadle.agent.sandbox.bubblewrap import find_bubblewraps

TESTS = Path(__file__).resolve().parents[2]
NOBODY = 65534
USERS = ["root", "ordinary user"] if os.geteuid() == 0 else ["ordinary user"]


def probes_command(user: str, task: dict[str, Any]) -> list[str]:
    """Return the command that does a task of `sandbox_probes` as one of the users; to be run in `TESTS`."""
    return user_command(user, "support.sandbox.sandbox_probes", task)


def user_command(user: str, module: str, task: dict[str, Any]) -> list[str]:
    """Return the command that does a task of a module as one of the users; to be run in `TESTS`."""
    python = [sys.executable, "-m", module]
    if os.geteuid() != 0:
        return [*python, json.dumps(task)]
    return [*openly_readable(), *python, json.dumps(task | {"uid": NOBODY if user == "ordinary user" else None})]


def report_of(user: str, task: dict[str, Any]) -> dict[str, Any]:
    """Do a task of `sandbox_probes` as one of the users."""
    done = subprocess.run(
        probes_command(user, task), capture_output=True, text=True, timeout=180, check=False, cwd=TESTS
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["uid"] == 0) == (user == "root")
    return report


def openly_readable() -> list[str]:
    """Return a prefix that shows a command the interpreter and this checkout even if only root may reach them."""
    needed = [Path(path).resolve() for path in (sys.base_prefix, sys.prefix, TESTS.parent)]
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
