"""Run the calls of a task on a program in a sandbox, and read what they returned."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from treadle.agent.sandbox.process import Program
from treadle.environments.scorers.programs.harness import MARKER

if TYPE_CHECKING:
    from treadle.agent.sandbox.pool import SandboxPool
    from treadle.agent.sandbox.process import ProgramResult

MAX_PROGRAM_CHARS = 256 * 1024
_MAX_VALUE_CHARS = 200_000
"""Characters of all values of a program together: the sandbox keeps about 1 MiB of what it prints."""
_SPARE_S = 5.0
"""Seconds for the start of the program and its packages, apart from the calls."""
_STALL_S = 5.0
"""Most seconds by which all calls of a program together may exceed their limits while they get no CPU time."""


_PACKAGE = "treadle.environments.scorers.programs"
_SENT_ALONG = ("values", "bare_programs")
"""Modules that the harness imports, and that are sent along with it."""
_DEFINE_MODULES = """
import sys, types
for name, text in {!r}.items():
    sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), sys.modules[name].__dict__)
"""


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of one call of a program's function.

    Attributes:
        value: The value; see `treadle.environments.scorers.programs.values.encoded`. None without one.
        error: Why there is no value; empty with one.
    """

    value: list[Any] | None
    error: str = ""


async def run_calls(
    pool: SandboxPool,
    code: str,
    calls: Sequence[str],
    limit_s: float,
    function: str | None = None,
    *,
    legacy: bool,
    packages: Sequence[str],
) -> list[CallResult]:
    """Make the calls of a program in one sandbox, each within `limit_s` seconds. Raises SandboxError.

    With the name of a function, the program that defines it is searched for in `code`, which may have prose around it.
    """
    if len(code) > MAX_PROGRAM_CHARS:
        return [CallResult(None, f"the program is longer than {MAX_PROGRAM_CHARS} characters")] * len(calls)
    task = {
        "code": code,
        "function": function,
        "calls": list(calls),
        "limit_s": limit_s,
        "stall_s": _STALL_S,
        "legacy": legacy,
        "packages": list(packages),
        "max_chars": _MAX_VALUE_CHARS // len(calls),
    }
    program = Program(_harness(), json.dumps(task) + "\n", prints_value=False)
    result = await pool.run(program, time_limit_s=len(calls) * (limit_s + 0.5) + _STALL_S + _SPARE_S)
    found = _results(result.stdout)
    missing = CallResult(None, _why_missing(result))
    return [found.get(number, missing) for number in range(len(calls))]


@functools.cache
def _harness() -> str:
    """Return the text of the harness, after that of the modules that it imports."""
    folder = files(_PACKAGE)
    texts = {f"{_PACKAGE}.{name}": folder.joinpath(f"{name}.py").read_text("utf-8") for name in _SENT_ALONG}
    return f"{_DEFINE_MODULES.format(texts)}\n{folder.joinpath('harness.py').read_text('utf-8')}"


def _results(stdout: str) -> dict[int, CallResult]:
    """Return the results by the number of their call; lines that cannot be read are left out."""
    found: dict[int, CallResult] = {}
    for line in stdout.split("\n"):
        number, _, text = line.removeprefix(MARKER).partition(" ")
        if not line.startswith(MARKER) or not number.isdecimal() or len(number) > 6:
            continue
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict) and isinstance(said.get("value"), list) and said["value"]:
            found.setdefault(int(number), CallResult(said["value"]))
        elif isinstance(said, dict):
            found.setdefault(int(number), CallResult(None, str(said.get("error") or "no result")[:300]))
    return found


def _why_missing(result: ProgramResult) -> str:
    if result.timed_out:
        return "time limit exceeded"
    if result.output_exceeded:
        return "it printed more than allowed"
    if result.excess is not None:
        return f"it used too much: {result.excess}"
    return "the program ended without a result"
