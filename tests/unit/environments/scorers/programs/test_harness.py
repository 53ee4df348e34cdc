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


def result(code: str, call: str = "f(1)", *, legacy: bool = False) -> Any:
    task = {"code": code, "limit_s": 0.2, "legacy": legacy, "max_chars": 50}
    return json.loads(isolated(task, call, -1))


@pytest.mark.usefixtures("one_process")
def test_calls_run_without_processes_of_their_own() -> None:
    assert result("def f(x):\n    return x") == {"value": ["int", "0x1"]}
    assert result("def f(x):\n    while True: pass") == {"error": "TimeoutError: time limit exceeded"}
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
