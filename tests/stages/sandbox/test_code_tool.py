"""The tool `code` of planning agents on a real sandbox: input, limits, and programs side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.runs.processes import until
from support.sandbox.sandbox_probes import survivors

from treadle.agent.tools.outcome import ToolOutcome
from treadle.environments.planning.tools.code import CodeTool
from treadle.environments.planning.tools.settings import CodeSandboxSettings, CodeSettings

NUM_WORKERS = 16
WAITING = "import ctypes, time\nctypes.CDLL(None).prctl(15, b'side-by-side', 0, 0, 0)\ntime.sleep(600)"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tool() -> AsyncIterator[CodeTool]:
    sandbox = CodeSandboxSettings(packages=(), pool_size=2)
    async with CodeTool(CodeSettings(sandbox=sandbox)) as tool:
        yield tool


async def called(tool: CodeTool, text: str) -> ToolOutcome:
    return await tool.call(text, deadline=asyncio.get_running_loop().time() + 60)


@pytest.mark.covers("planning-25")
@pytest.mark.parametrize(
    "program", ["print(int(input()) + int(input()))", "import sys\nprint(sum(map(int, sys.stdin.read().split())))"]
)
@pytest.mark.asyncio(loop_scope="module")
async def test_program_reads_the_shell_block(tool: CodeTool, program: str) -> None:
    outcome = await called(tool, f"```py\n{program}\n```\n```sh\n3\n4\n```")
    assert (outcome.status, outcome.note) == ("ok", "")
    assert outcome.text == "[executed, exit code 0]\n--- stdout ---\n7\n--- end of stdout ---"


@pytest.mark.asyncio(loop_scope="module")
async def test_program_without_an_input_does_not_wait_for_one(tool: CodeTool) -> None:
    outcome = await called(tool, "```py\nprint('so far')\ninput()\n```")
    assert (outcome.status, outcome.note) == ("error", "EOFError")
    assert outcome.text.startswith("[failed with mixed output, exit code 1]\n--- stdout ---\nso far\n--- end of stdout")


@pytest.mark.asyncio(loop_scope="module")
async def test_value_of_a_last_call_is_not_printed(tool: CodeTool) -> None:
    outcome = await called(tool, "def main():\n    print(1)\nmain()")
    assert outcome.text == "[executed, exit code 0]\n--- stdout ---\n1\n--- end of stdout ---"


@pytest.mark.covers("planning-23")
@pytest.mark.asyncio(loop_scope="module")
async def test_programs_past_a_limit_fail_in_ways_of_their_own(tool: CodeTool, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    tries = {
        "endless loop": "while True: pass",
        "secret": f"print(open({str(secret)!r}).read())",
        "socket": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_STREAM)",
        "file": "open('/opt/x', 'w')",
        "processes": "import os\nfor _ in range(1000):\n    if not os.fork():\n        while True: pass",
        "memory": "held = bytearray(20 * 1024**3)",
    }
    outcomes = dict(zip(tries, await asyncio.gather(*(called(tool, text) for text in tries.values())), strict=True))
    assert outcomes["endless loop"].status == "timeout"
    assert {name for name, outcome in outcomes.items() if outcome.status != "error"} == {"endless loop"}
    causes = {name: outcome.note for name, outcome in outcomes.items()}
    assert causes == {
        "endless loop": "time",
        "secret": "FileNotFoundError",
        "socket": "PermissionError",
        "file": "OSError",
        "processes": "BlockingIOError",
        "memory": "MemoryError",
    }
    assert "hidden" not in outcomes["secret"].text


@pytest.mark.covers("planning-23")
@pytest.mark.asyncio(loop_scope="module")
async def test_ten_megabytes_of_output_are_cut_to_the_limit(tool: CodeTool) -> None:
    outcome = await called(tool, "print('x' * 10_000_000)")
    assert outcome.status == "ok"
    assert len(outcome.text) <= 1536
    assert outcome.text.startswith("[executed, exit code 0]\n--- stdout ---\nxxx")
    assert outcome.text.endswith("xxx\n--- end of stdout ---")


@pytest.mark.covers("planning-24")
async def test_programs_run_side_by_side_up_to_the_number_of_workers() -> None:
    sandbox = CodeSandboxSettings(packages=(), pool_size=2, max_running=NUM_WORKERS)
    async with CodeTool(CodeSettings(sandbox=sandbox, time_limit_s=60)) as tool:
        calls = [asyncio.create_task(called(tool, WAITING)) for _ in range(NUM_WORKERS + 2)]
        try:
            # The event loop must be free all the while: it starts and watches each program.
            running = lambda: len(survivors("side-by-side"))  # noqa: E731
            await asyncio.to_thread(until, lambda: running() >= NUM_WORKERS, "as many programs as workers")
            assert running() == NUM_WORKERS
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
    assert not survivors("side-by-side")
