"""No hostile program gets out of the sandbox or outlives it, whether Treadle runs as root or as an ordinary user."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.runs.processes import until
from support.sandbox import sandbox_probes, sandbox_table
from support.sandbox.sandbox_probes import verdict
from support.sandbox.sandbox_programs import ENDLESS, ESCAPE_UNCONFINED, FATAL, FINDS, FLOODS, GLIMPSES, HEAVY, LEAVES
from support.sandbox.sandbox_users import TESTS, USERS, probes_command, report_of
from support.sweep import sampled

KINDS = ["bubblewrap", "landlock"]
PLACES = sampled(itertools.product(USERS, KINDS), [("root", "bubblewrap"), ("ordinary user", "landlock")])
PATIENT_LIMIT_S = 30.0
ROOM_MIB = 64


def _allowed(name: str, outcome: dict[str, Any]) -> bool:
    """Return whether a program ended as required."""
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
@pytest.mark.parametrize(("user", "kind"), PLACES)
def test_no_escape_probe_succeeds(user: str, kind: str) -> None:
    report = report_of(user, {"kind": kind})
    outcomes = report["outcomes"]
    assert set(outcomes) == set(sandbox_probes.ALL)
    assert len(outcomes) >= 40
    wrong = {name: outcome for name, outcome in outcomes.items() if not _allowed(name, outcome)}
    seen = {name for name in GLIMPSES if wrong.pop(name, {"status": ""})["status"] == "ok"}
    assert wrong == {}
    # The documentation of the second level is exact.
    assert seen == (set(GLIMPSES) if kind == "landlock" else set())
    assert {name: outcome["survivors"] for name, outcome in outcomes.items() if outcome["survivors"]} == {}
    assert report["left"] == []
    assert report["harm"] == []
    limits = {name: sandbox_probes.ENDLESS_LIMIT_S if name in ENDLESS else PATIENT_LIMIT_S for name in outcomes}
    assert {name for name, outcome in outcomes.items() if outcome["seconds"] > limits[name] + 1} == set()
    assert report["host_memory_mib"] <= ROOM_MIB
    # A probe that fills its own limit is stopped by it; all others stay far below it.
    held = {name: outcome["memory_mib"] for name, outcome in outcomes.items() if name not in HEAVY}
    assert {name: mib for name, mib in held.items() if mib > ROOM_MIB} == {}
    assert any(held.values())
    assert {name: verdict(name, outcome) for name, outcome in outcomes.items()} == sandbox_table.documented(kind, user)


@pytest.mark.covers("flywheel-6")
@pytest.mark.parametrize(("user", "kind"), PLACES)
def test_program_sees_nothing_of_the_previous_one(user: str, kind: str) -> None:
    """Three in a row: one may have a sandbox that was ready before the first began, one has not."""
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    finds = [f"PRIORITY = {priority}  # {number}\n{FINDS}" for number in range(3)]
    outcomes = report_of(user, {"kind": kind, "packages": [], "programs": [LEAVES, *finds]})["outcomes"]
    assert outcomes.pop(LEAVES)["text"] == "done"
    assert [outcome["text"] for outcome in outcomes.values() if "True" in outcome["text"]] == []
    assert {outcome["status"] for outcome in outcomes.values()} == {"ok"}


@pytest.mark.sweep
def test_escape_probes_succeed_without_confinement() -> None:
    """The probes can succeed, so their failing in the sandbox means something."""
    report = report_of("ordinary user", {"kind": "none", "names": ESCAPE_UNCONFINED})
    assert {name for name, outcome in report["outcomes"].items() if "ESCAPED" not in outcome["text"]} == set()
    assert "the victim is dead" in report["harm"]


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.covers("flywheel-5")
@pytest.mark.parametrize(("user", "kind"), PLACES)
def test_no_process_remains_after_killing_the_host_process(user: str, kind: str) -> None:
    command = probes_command(user, {"hold": True, "kind": kind})
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=TESTS) as process:
        assert process.stdout is not None
        report = json.loads(process.stdout.readline())
        held = report["held"]
        assert len(held) >= 3
        os.kill(report["pid"], signal.SIGKILL)
    until(lambda: not any(map(_is_running, held)), f"the end of the processes {held}", limit_s=10.0)
