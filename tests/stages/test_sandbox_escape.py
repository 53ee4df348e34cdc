"""No hostile program gets out of the sandbox or outlives it, whether Treadle runs as root or as an ordinary user."""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import sandbox_probes
from support.sandbox_programs import ENDLESS, ESCAPE_UNCONFINED, FATAL, FLOODS, GLIMPSES

from treadle.agent.sandbox.bubblewrap import find_bubblewraps
from treadle.agent.sandbox.seccomp import filter_program

PROBES = Path(sandbox_probes.__file__)
NOBODY = 65534
USERS = ["root", "ordinary user"] if os.geteuid() == 0 else ["ordinary user"]
KINDS = ["bubblewrap", "landlock"]
PATIENT_LIMIT_S = 30.0


def _command(user: str, task: dict[str, Any]) -> list[str]:
    python = [sys.executable, "-m", "support.sandbox_probes"]
    if os.geteuid() != 0:
        return [*python, json.dumps(task)]
    return [*_openly_readable(), *python, json.dumps(task | {"uid": NOBODY if user == "ordinary user" else None})]


def _report(user: str, task: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        _command(user, task), capture_output=True, text=True, timeout=180, check=False, cwd=PROBES.parents[1]
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["uid"] == 0) == (user == "root")
    return report


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


def _allowed(name: str, outcome: dict[str, Any]) -> bool:
    """Whether a program ended as it has to."""
    status, text = outcome["status"], outcome["text"]
    if name in ENDLESS:
        return (status, text) == ("timeout", "Execution Timeout")
    if name in FLOODS:
        return status == "error" and text.endswith("[killed: it printed too much]") and len(text) <= 1000
    if name in FATAL:
        return status == "error" and "ESCAPED" not in text
    return (status, text) == ("ok", "held")


@pytest.mark.covers("flywheel-5")
@pytest.mark.covers("flywheel-6")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("user", USERS)
def test_no_probe_gets_anything(user: str, kind: str) -> None:
    report = _report(user, {"kind": kind})
    outcomes = report["outcomes"]
    assert set(outcomes) == set(sandbox_probes.ALL)
    assert len(outcomes) >= 40
    wrong = {name: outcome for name, outcome in outcomes.items() if not _allowed(name, outcome)}
    seen = {name for name in GLIMPSES if wrong.pop(name, {"status": ""})["status"] == "ok"}
    assert wrong == {}
    # What the documentation says of the second level is neither more nor less than the truth.
    assert seen == (set(GLIMPSES) if kind == "landlock" else set())
    assert {name: outcome["survivors"] for name, outcome in outcomes.items() if outcome["survivors"]} == {}
    assert report["left"] == []
    assert report["harm"] == []
    limits = {name: sandbox_probes.ENDLESS_LIMIT_S if name in ENDLESS else PATIENT_LIMIT_S for name in outcomes}
    assert {name for name, outcome in outcomes.items() if outcome["seconds"] > limits[name] + 1} == set()
    assert report["host_memory_mib"] <= 64


def test_probes_do_escape_where_nothing_holds_them() -> None:
    """The probes can succeed, so their failing in the sandbox means something."""
    report = _report("ordinary user", {"kind": "none", "names": ESCAPE_UNCONFINED})
    assert {name for name, outcome in report["outcomes"].items() if "ESCAPED" not in outcome["text"]} == set()
    assert "the victim is dead" in report["harm"]


def _where_namespaces_are_refused(filter_end: int) -> list[str]:
    """A prefix that runs a command as most containers do: system calls that make namespaces are refused."""
    return [*_openly_readable()[:-1], "--seccomp", str(filter_end), "--"]


def _check(kind: str, filter_program: bytes) -> str:
    code = (
        "from treadle.agent.sandbox.bubblewrap import check\nfrom treadle.agent.sandbox.config import SandboxSettings\n"
    )
    code += f"print(check(SandboxSettings(kind={kind!r}, packages=())))"
    inlet, outlet = os.pipe()
    with os.fdopen(outlet, "wb") as stream:
        stream.write(filter_program)
    try:
        command = [*_where_namespaces_are_refused(inlet), sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, pass_fds=[inlet])
    finally:
        os.close(inlet)
    return done.stdout.strip()


def test_where_namespaces_are_refused_the_second_level_works_and_is_offered() -> None:
    assert _check("landlock", filter_program()) == "None"
    message = _check("bubblewrap", filter_program())
    assert "programs cannot be isolated here" in message
    assert "kernel.unprivileged_userns_clone=1" in message
    assert 'write `kind = "landlock"`' in message


def test_where_landlock_is_missing_too_it_is_refused_and_not_offered() -> None:
    create_ruleset = struct.pack("=HBBI", 0x15, 0, 1, 444) + struct.pack("=HBBI", 0x06, 0, 0, 0x00050000 | errno.ENOSYS)
    begin = 4 * 8  # Behind the instruction that loads the number of the call.
    without = filter_program()[:begin] + create_ruleset + filter_program()[begin:]
    message = _check("landlock", without)
    assert "no Landlock" in message
    assert "older than Linux 5.13" in message
    message = _check("bubblewrap", without)
    assert "programs cannot be isolated here" in message
    assert 'kind = "landlock"' not in message


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.covers("flywheel-5")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("user", USERS)
def test_nothing_is_left_after_a_kill_of_the_host_process(user: str, kind: str) -> None:
    command = _command(user, {"hold": True, "kind": kind})
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROBES.parents[1]) as process:
        assert process.stdout is not None
        report = json.loads(process.stdout.readline())
        held = report["held"]
        assert len(held) >= 3
        os.kill(report["pid"], signal.SIGKILL)
    until = time.monotonic() + 10
    while any(map(_is_running, held)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(_is_running, held))
