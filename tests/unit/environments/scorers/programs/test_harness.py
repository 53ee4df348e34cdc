"""What runs inside a sandbox that allows one process only; with processes, tests/stages/scoring/test_programs.py."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import pytest

from treadle.environments.scorers.programs.harness import isolated


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise PermissionError

    monkeypatch.setattr(os, "fork", refuse)
    monkeypatch.setitem(sys.modules, "solution", None)


def result(code: str, call: str = "f(1)", *, legacy: bool = False, limit_s: float = 60.0) -> Any:
    task = {"code": code, "function": None, "limit_s": limit_s, "stall_s": 0.0, "legacy": legacy, "max_chars": 50}
    return json.loads(isolated(task, call, -1))


@pytest.mark.usefixtures("one_process")
def test_calls_run_without_processes_of_their_own() -> None:
    assert result("def f(x):\n    return x") == {"value": ["int", "0x1"]}
    assert result("def f(x):\n    while True: pass", limit_s=0.2) == {"error": "TimeoutError: time limit exceeded"}
    assert result("def f(x):\n    raise SystemExit") == {"error": "SystemExit: "}
    assert result("def f(x):\n    return iter([])")["error"].startswith("Incomparable: ")
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.usefixtures("one_process")
def test_long_values_are_compared_by_their_digest() -> None:
    same, again, other = (result(f"def f(x):\n    return {letter!r} * 100")["value"] for letter in "aab")
    assert same[0] == "large" and same == again != other


@pytest.mark.usefixtures("one_process")
def test_exceptions_without_a_text_are_named() -> None:
    assert result("class E(Exception):\n    def __str__(self): raise E\ndef f(x): raise E") == {
        "error": "an exception without a text"
    }


@pytest.mark.usefixtures("one_process")
def test_legacy_functions_see_no_other_name_of_the_program() -> None:
    code = "def g(x): return x\ndef f(x): return g(x)"
    assert result(code) == {"value": ["int", "0x1"]}
    assert result(code, legacy=True) == {"error": "NameError: name 'g' is not defined"}


STOPPED = """
import os, signal, time
def f(x):
    own = os.getpid()
    if os.fork() == 0:
        time.sleep(0.6)
        os.kill(own, signal.SIGCONT)
        os._exit(0)
    os.kill(own, signal.SIGSTOP)
    return x
"""
FROZEN = "import os, signal\ndef f(x):\n    os.kill(os.getpid(), signal.SIGSTOP)"
LOOP = "def f(x):\n    while True: pass"
SLEEP = "import time\ndef f(x):\n    time.sleep(1e9)"
THREADS = """
import threading
def spin():
    while True: pass
def f(x):
    threading.Thread(target=spin, daemon=True).start()
    threading.Event().wait()
"""


def limited(code: str, stall_s: float, limit_s: float = 0.2) -> tuple[Any, float]:
    """Return what a call gives in a process of its own, and how much of `stall_s` is left."""
    task = {"code": code, "function": None, "limit_s": limit_s, "stall_s": stall_s, "legacy": False, "max_chars": 50}
    report = os.open(os.devnull, os.O_WRONLY)
    try:
        return json.loads(isolated(task, "f(1)", report)), task["stall_s"]
    finally:
        os.close(report)


def test_call_that_gets_no_cpu_time_is_waited_for_beyond_its_limit() -> None:
    value, left_s = limited(STOPPED, stall_s=60.0)
    assert value == {"value": ["int", "0x1"]} and left_s < 60.0


def test_stopped_call_fails_at_the_limit_if_earlier_calls_have_used_the_extension_up() -> None:
    assert limited(FROZEN, stall_s=0.0)[0] == {"error": "time limit exceeded"}
    assert limited(FROZEN, stall_s=0.1) == ({"error": "time limit exceeded"}, 0.0)


def test_sleeping_call_fails_after_limit_and_extension() -> None:
    assert limited(SLEEP, stall_s=0.2) == ({"error": "time limit exceeded"}, 0.0)


@pytest.mark.parametrize("code", [LOOP, THREADS])
def test_call_that_computes_has_only_its_limit_of_cpu_time(code: str) -> None:
    value, left_s = limited(code, stall_s=60.0)
    assert value == {"error": "time limit exceeded"} and left_s > 0.0


@pytest.mark.usefixtures("one_process")
def test_single_process_waits_for_a_stopped_call_too() -> None:
    task = {"code": SLEEP.replace("1e9", "0.4"), "function": None, "limit_s": 0.2, "stall_s": 60.0, "legacy": False}
    task["max_chars"] = 50
    assert json.loads(isolated(task, "f(1)", -1)) == {"value": ["none"]} and task["stall_s"] < 60.0
    task["stall_s"] = 0.1
    assert json.loads(isolated(task, "f(1)", -1)) == {"error": "TimeoutError: time limit exceeded"}
    assert task["stall_s"] == 0.0
