"""Run an agent's Python programs in a sandbox and return what they print.

Only the Markdown fence is removed here; the sandbox parses and runs the program. Behaviour:
`docs/behaviour/sandbox.md`.
"""

from __future__ import annotations

import signal

from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.sandbox.pool import SandboxPool
from treadle.agent.sandbox.process import ProgramResult
from treadle.agent.tools.outcome import CallContext, OutcomeStatus, ToolOutcome, clip

TIMEOUT_TEXT = "Execution Timeout"
MAX_PROGRAM_CHARS = 256 * 1024
_ERROR_HEAD_SHARE = 0.2
_EXCESS = {"memory": "its processes held too much memory", "files": "it made too many files"}


class PythonTool:
    """Tool that runs one program per call, each in a fresh sandbox; nothing persists between calls."""

    name = "python"

    def __init__(
        self,
        settings: SandboxSettings | None = None,
        *,
        time_limit_s: float = 30.0,
        max_output_chars: int | None = 1000,
        name: str = "python",
    ) -> None:
        """Prepare the tool, whose tag is `name`; without `max_output_chars` the output is uncut (up to about 1 MiB)."""
        self.name = name
        self._time_limit_s = time_limit_s
        self._max_output_chars = max_output_chars
        self._pool = SandboxPool(settings or SandboxSettings())

    async def __aenter__(self) -> PythonTool:
        """Start the sandboxes. Raises SandboxError if programs cannot be isolated."""
        await self._pool.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop all sandboxes."""
        await self._pool.__aexit__(*exc)

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """Run a program until `deadline` (a time of the work clock) or the time limit. Raises SandboxError.

        With a budget in the context, the budget limits the program from its start and replaces the deadline. The wait
        for a free sandbox is then not limited: running programs end, so a sandbox becomes free, or SandboxError is
        raised.
        """
        program = strip_fence(argument)
        if not program.strip():
            return ToolOutcome("invalid", "invalid program: it is empty")
        if len(program) > MAX_PROGRAM_CHARS:
            return ToolOutcome("invalid", f"invalid program: longer than {MAX_PROGRAM_CHARS} characters")
        if context is None or context.budget_s is None:
            return self._outcome(await self._pool.run(program, time_limit_s=self._time_limit_s, deadline=deadline))
        return self._outcome(await self._pool.run(program, time_limit_s=min(self._time_limit_s, context.budget_s)))

    def _outcome(self, result: ProgramResult) -> ToolOutcome:
        status, text = read_result(result)
        head_share = _ERROR_HEAD_SHARE if status == "error" else 0.5
        return ToolOutcome(status, clip(text, self._max_output_chars, head_share), result.seconds)


def strip_fence(text: str) -> str:
    """Return a program without the Markdown fence around it, if there is one."""
    stripped = text.strip()
    ticks = len(stripped) - len(stripped.lstrip("`"))
    if ticks < 3:
        return text
    fence = "`" * ticks
    first, newline, rest = stripped.partition("\n")
    if not newline:
        return first.strip("`")
    return rest.rstrip().removesuffix(fence)


def read_result(result: ProgramResult) -> tuple[OutcomeStatus, str]:
    """Return status and full text of a result: standard output or, if the program failed, standard error."""
    if result.timed_out or result.exit_code == 128 + signal.SIGXCPU:
        return "timeout", TIMEOUT_TEXT
    if result.output_exceeded:
        return "error", clean(result.stdout or result.stderr) + "\n[killed: it printed too much]"
    if result.excess is not None:
        return "error", f"{clean(result.stderr)}\n[killed: {_EXCESS[result.excess]}]".lstrip()
    if result.exit_code == 0:
        text = clean(result.stdout)
        return ("ok" if text else "empty"), text
    return "error", clean(result.stderr) or clean(result.stdout) or _ending(result.exit_code)


def _ending(exit_code: int | None) -> str:
    if exit_code is not None and exit_code > 128:
        return f"The program was killed by signal {exit_code - 128}."
    return f"The program ended with exit code {exit_code}."


def clean(text: str) -> str:
    """Drop NUL, replace unencodable characters, unify line ends, strip leading empty lines and trailing white space."""
    plain = text.replace("\r\n", "\n").replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    return plain.strip("\n").rstrip()
