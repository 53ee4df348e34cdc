"""Run the programs of planning agents: a fenced Python block, and its input in a fenced shell block behind it.

Papers: arXiv 2508.13167 (Agent Foundation Models). Programs run in the sandbox of `docs/behaviour/sandbox.md`, with a
pipe as their standard input.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from treadle.agent.sandbox.pool import SandboxPool
from treadle.agent.sandbox.process import Program, ProgramResult
from treadle.agent.tools.outcome import CallContext, OutcomeStatus, ToolOutcome, clip
from treadle.agent.tools.python import MAX_PROGRAM_CHARS, clean
from treadle.environments.planning.tools.fences import PYTHON, SHELL, find_fences
from treadle.environments.planning.tools.settings import CodeSettings

MAX_STDIN_CHARS = 4 * 1024 * 1024

_RAISED = re.compile(r"^([A-Za-z_][\w.]{0,60})(?::[^\n]*)?\n*\Z", re.MULTILINE)
_RAISED_CHARS = 1000
_EXCESS = {
    "memory": ("memory", "its processes held more memory than allowed"),
    "files": ("files", "it made more files than allowed"),
}


@dataclass(frozen=True, slots=True)
class CodeCall:
    """Program of a call, and what it reads from its standard input."""

    program: str
    stdin: str = ""


def parse_call(text: str) -> CodeCall:
    """Read the text of a call: one Python block, or bare code, and at most one shell block behind it.

    Raises ValueError, with a message for the model, for anything else. The text is never parsed as Python.
    """
    fences = find_fences(text)
    inputs = [fence for fence in fences if fence.language in SHELL]
    programs = [fence for fence in fences if fence.language in PYTHON]
    if not programs:
        programs = [fence for fence in fences if not fence.language]
    if len(programs) > 1:
        raise ValueError(f"the call has {len(programs)} programs; write one Python block per call")
    if len(inputs) > 1:
        raise ValueError(f"the call has {len(inputs)} inputs; write one sh block behind the program")
    if inputs and programs and inputs[0].start < programs[0].start:
        raise ValueError("the input is in front of the program; write the Python block first, then the sh block")
    program = programs[0].text if programs else text[: inputs[0].start] if inputs else text
    if not program.strip():
        raise ValueError("there is no program; write it between ```py and ```")
    if len(program) > MAX_PROGRAM_CHARS:
        raise ValueError(f"the program is longer than {MAX_PROGRAM_CHARS} characters")
    stdin = inputs[0].text if inputs else ""
    if len(stdin) > MAX_STDIN_CHARS:
        raise ValueError(f"the input is longer than {MAX_STDIN_CHARS} characters")
    return CodeCall(program, stdin)


def describe(result: ProgramResult, time_limit_s: float) -> tuple[OutcomeStatus, str, str]:
    """Return status, cause and full observation of a result.

    The cause is empty for exit code 0, else `time`, `memory`, `files`, `output`, `signal_N`, the name of the exception
    that the program raised, or `exit_N`. The observation begins with a line in brackets; then it has the output of each
    stream that has any, between two lines with the stream's name.
    """
    stdout, stderr = clean(result.stdout), clean(result.stderr)
    streams = [("stdout", stdout), ("stderr", stderr)]
    shown = [f"--- {name} ---\n{text}\n--- end of {name} ---" for name, text in streams if text]
    status, cause, line = _ending(result, time_limit_s, is_mixed=bool(stdout and stderr))
    if status == "ok" and not shown:
        status, line = "empty", f"{line}; nothing was printed, use print() for every result"
    return status, cause, "\n".join([f"[{line}]", *shown])


def _ending(result: ProgramResult, time_limit_s: float, *, is_mixed: bool) -> tuple[OutcomeStatus, str, str]:
    failed = "failed with mixed output" if is_mixed else "failed"
    if result.timed_out or result.exit_code == 128 + signal.SIGXCPU:
        hint = "look for endless loops, and for input that the sh block does not give"
        return "timeout", "time", f"{failed}, no exit code: it ran longer than {time_limit_s:g} s; {hint}"
    if result.output_exceeded:
        return "error", "output", f"{failed}, no exit code: it printed more than allowed"
    if result.excess is not None:
        cause, what = _EXCESS[result.excess]
        return "error", cause, f"{failed}, no exit code: {what}"
    if result.exit_code == 0:
        return "ok", "", "executed, exit code 0"
    code = result.exit_code or 0
    if code > 128:
        return "error", f"signal_{code - 128}", f"{failed}, exit code {code}: killed by signal {code - 128}"
    raised = _RAISED.search(result.stderr[-_RAISED_CHARS:]) if code == 1 and "Traceback" in result.stderr else None
    return "error", raised[1] if raised else f"exit_{code}", f"{failed}, exit code {code}"


class CodeTool:
    """Tool `code`: each program runs in a fresh sandbox; nothing persists between calls."""

    name = "code"

    def __init__(self, settings: CodeSettings | None = None) -> None:
        """Prepare the tool; sandboxes are started by `__aenter__`."""
        self._settings = settings or CodeSettings()
        self._pool = SandboxPool(self._settings.sandbox)

    async def __aenter__(self) -> CodeTool:
        """Start the sandboxes. Raises SandboxError if programs cannot be isolated."""
        await self._pool.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop all sandboxes."""
        await self._pool.__aexit__(*exc)

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """Run a program until `deadline` (a time of the work clock) or the time limit. Raises SandboxError.

        A budget in the context replaces the deadline, as for `PythonTool`. `note` of the outcome is the cause of a
        failure: see `describe`.
        """
        try:
            given = parse_call(argument)
        except ValueError as error:
            return ToolOutcome("invalid", f"[failed: {error}]", note="unreadable")
        limit_s, until = self._settings.time_limit_s, deadline if context is None or context.budget_s is None else None
        if context is not None and context.budget_s is not None:
            limit_s = min(limit_s, context.budget_s)
        program = Program(given.program, given.stdin, prints_value=False)
        result = await self._pool.run(program, time_limit_s=limit_s, deadline=until)
        status, cause, text = describe(result, self._settings.time_limit_s)
        return ToolOutcome(status, clip(text, self._settings.max_output_chars), result.seconds, note=cause)
