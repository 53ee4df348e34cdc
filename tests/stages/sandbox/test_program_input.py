"""Standard input of programs in a real sandbox: exactly the given text, then its end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.sandbox.pool import SandboxPool
from treadle.agent.sandbox.process import Program

LARGE = "é" * 512 * 1024
"""1 MiB, many times what a pipe holds."""
COUNT = "import sys\ntext = sys.stdin.read()\nprint(len(text), set(text), repr(sys.stdin.read()))"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["bubblewrap", "none"])
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[SandboxPool]:
    async with SandboxPool(SandboxSettings(kind=request.param, packages=(), pool_size=2)) as pool:
        yield pool


@pytest.mark.parametrize(
    ("program", "stdin", "printed"),
    [
        ("print(int(input()) + int(input()))", "3\n4\n", "7\n"),
        ("print(int(input()) + int(input()))", "3\n4", "7\n"),
        ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", "3\n4", "7\n"),
        ("import sys\nprint([line for line in sys.stdin])", "a\n\nb", "['a\\n', '\\n', 'b']\n"),
        ("import os\nprint(os.read(0, 9), os.read(0, 9))", "\0\u20ac", "b'\\x00\\xe2\\x82\\xac' b''\n"),
        ("import sys\nprint(repr(sys.stdin.read()))", "", "''\n"),
        (COUNT, LARGE, f"{len(LARGE)} {{'é'}} ''\n"),
        ("import time\ntime.sleep(0.1)\n" + COUNT, LARGE, f"{len(LARGE)} {{'é'}} ''\n"),
        ("print(1)", LARGE, "1\n"),
        ("import os\nos.close(0)\nprint(1)", LARGE, "1\n"),
        ("print(input())", "def f():\n", "def f():\n"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_program_reads_exactly_its_input(pool: SandboxPool, program: str, stdin: str, printed: str) -> None:
    result = await pool.run(Program(program, stdin), time_limit_s=60)
    assert (result.exit_code, result.stdout, result.stderr) == (0, printed, "")


@pytest.mark.asyncio(loop_scope="module")
async def test_input_that_is_read_too_far_ends_the_program(pool: SandboxPool) -> None:
    result = await pool.run(Program("input()\ninput()", "once\n"), time_limit_s=60)
    assert result.exit_code == 1
    assert result.stderr.endswith("EOFError: EOF when reading a line\n")


@pytest.mark.asyncio(loop_scope="module")
async def test_unread_input_does_not_outlive_the_time_limit(pool: SandboxPool) -> None:
    result = await pool.run(Program("import time; time.sleep(600)", LARGE), time_limit_s=0.5)
    assert result.timed_out


@pytest.mark.parametrize(("prints_value", "printed"), [(True, "read a\nNone\n"), (False, "read a\n")])
@pytest.mark.asyncio(loop_scope="module")
async def test_value_of_a_last_expression_is_printed_if_asked(
    pool: SandboxPool, prints_value: bool, printed: str
) -> None:
    program = Program("def main():\n    print('read', input())\nmain()", "a", prints_value)
    result = await pool.run(program, time_limit_s=60)
    assert (result.exit_code, result.stdout) == (0, printed)
