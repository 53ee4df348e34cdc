"""The Python tool on a real sandbox: what the agent reads for each way in which a program can end."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.runs.processes import look, thaw, until, wait_out
from support.sandbox.sandbox_kills import guardians
from support.sandbox.sandbox_probes import survivors
from support.servers.own_clock import ForwardClock

from treadle.agent.sandbox.bubblewrap import check, describe
from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.sandbox.pool import SandboxPool
from treadle.agent.tools.outcome import CallContext
from treadle.agent.tools.python import MAX_PROGRAM_CHARS, PythonTool
from treadle.core.errors import SandboxError
from treadle.core.work_clock import timed_work

LIMIT_S = 60.0
"""Only a fault takes so long."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tool() -> AsyncIterator[PythonTool]:
    async with PythonTool(SandboxSettings(packages=("numpy",), pool_size=2), time_limit_s=20.0) as tool:
        yield tool


@pytest.mark.covers("flywheel-5")
@pytest.mark.parametrize(
    ("program", "status", "text"),
    [
        ("1+1", "ok", "2"),
        ("x = 20\nx + 1", "ok", "21"),
        ("print(1)", "ok", "1"),
        ("```python\nprint('a')\n'b'\n```", "ok", "a\nb"),
        ("x = 1", "empty", ""),
        ("", "invalid", "invalid program: it is empty"),
        ("x" * (MAX_PROGRAM_CHARS + 1), "invalid", f"invalid program: longer than {MAX_PROGRAM_CHARS} characters"),
        ("import sys\nsys.exit('no result')", "error", "no result"),
        ("import sys\nsys.exit(0)", "empty", ""),
        ("import numpy\nint(numpy.arange(4).sum())", "ok", "6"),
        ("print('\\u00e9\\0')", "ok", "\u00e9"),
        ("import sys\nsys.stdout.buffer.write(b'\\xff!')\nNone", "ok", "\ufffd!None"),
        ("import atexit\natexit.register(print, 'bye')\nx = 1", "ok", "bye"),
        ("import threading\nx = threading.Thread(target=print, args=('done',)).start()", "ok", "done"),
        ("{'a', 'b', 'c', 'd'} == eval(str({'a', 'b', 'c', 'd'}))", "ok", "True"),
        ("import os\nos.abort()", "error", "The program was killed by signal 6."),
        ("f'{1:{\ud800}}'", "error", None),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_program_outcomes(tool: PythonTool, program: str, status: str, text: str | None) -> None:
    outcome = await tool.call(program, deadline=asyncio.get_running_loop().time() + 60)
    assert outcome.status == status
    assert text is None or outcome.text == text


@pytest.mark.covers("flywheel-5")
@pytest.mark.asyncio(loop_scope="module")
async def test_traceback_shows_program_lines_and_ends_with_the_error(tool: PythonTool) -> None:
    program = "def deeper(n):\n    return deeper(n - 1) if n else 1 / 0\ndeeper(2)"
    outcome = await tool.call(program, deadline=asyncio.get_running_loop().time() + 60)
    assert outcome.status == "error"
    assert outcome.text.startswith('Traceback (most recent call last):\n  File "<program>", line 3, in <module>')
    assert "return deeper(n - 1) if n else 1 / 0" in outcome.text
    assert outcome.text.endswith("ZeroDivisionError: division by zero")
    assert "guest.py" not in outcome.text


@pytest.mark.asyncio(loop_scope="module")
async def test_overlong_traceback_keeps_its_last_line(tool: PythonTool) -> None:
    outcome = await tool.call("raise ValueError('x' * 5000 + 'end')", deadline=asyncio.get_running_loop().time() + 60)
    assert len(outcome.text) <= 1000
    assert outcome.text.endswith("xend")


@pytest.mark.asyncio(loop_scope="module")
async def test_syntax_error_is_reported_as_such(tool: PythonTool) -> None:
    outcome = await tool.call("def f(:", deadline=asyncio.get_running_loop().time() + 60)
    assert outcome.text.splitlines()[0] == '  File "<program>", line 1'
    assert outcome.text.endswith("SyntaxError: invalid syntax")


async def test_late_preloaded_packages_are_available_to_an_early_program() -> None:
    program = "import sympy\nsympy.Integer(2) + 1"
    async with PythonTool(SandboxSettings(pool_size=1)) as tool:
        deadline = asyncio.get_running_loop().time() + 60
        outcomes = await asyncio.gather(*(tool.call(program, deadline=deadline) for _ in range(3)))
    assert [(outcome.status, outcome.text) for outcome in outcomes] == [("ok", "3")] * 3


async def test_unimportable_package_is_named_at_startup() -> None:
    with pytest.raises(SandboxError, match="a sandbox did not start: (?s:.*)ModuleNotFoundError"):
        async with SandboxPool(SandboxSettings(packages=("numpy", "sympy.no_such_part"))):
            pass


async def test_rollout_deadline_ends_a_program_before_its_own_limit() -> None:
    async with asyncio.timeout(LIMIT_S), PythonTool(SandboxSettings(packages=()), time_limit_s=1e6) as tool:
        outcome = await tool.call("while True: pass", deadline=asyncio.get_running_loop().time() + 1)
    assert (outcome.status, outcome.text) == ("timeout", "Execution Timeout")


async def test_program_budget_excludes_waiting_time() -> None:
    async with asyncio.timeout(LIMIT_S), PythonTool(SandboxSettings(packages=()), time_limit_s=1e6) as tool:
        # As long gone as if all of it had been spent on waiting.
        gone = asyncio.get_running_loop().time()
        served = await tool.call("print(1)", deadline=gone, context=CallContext("", (), 0, budget_s=1e6))
        ended = await tool.call("while True: pass", deadline=gone, context=CallContext("", (), 0, budget_s=0.5))
    assert (served.status, served.text) == ("ok", "1")
    assert (ended.status, ended.text) == ("timeout", "Execution Timeout")


STOPPED = """
import asyncio, os, signal
from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.tools.python import PythonTool

async def main():
    async with PythonTool(SandboxSettings(packages=(), pool_size=1), time_limit_s=2.0) as tool:
        loop = asyncio.get_running_loop()
        call = asyncio.create_task(tool.call("import time; time.sleep(0.5); print(5)", deadline=loop.time() + 1e6))
        await asyncio.sleep(0.1)
        os.kill(os.getpid(), signal.SIGSTOP)
        print(*(await call).text.split(), flush=True)

asyncio.run(main())
"""


def test_program_is_not_killed_because_its_host_was_suspended() -> None:
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        until(lambda: (seen := look(host.pid)) is not None and seen.state == "T", "the host is suspended")
        wait_out(2.5)
        thaw(host)
        assert host.stdout.read() == b"5\n"


async def at_work(name: str) -> None:
    """Wait until a program has given itself a name."""
    async with asyncio.timeout(LIMIT_S):
        while not survivors(name):
            await asyncio.sleep(0.01)


def endless(name: str) -> str:
    return f"import ctypes\nctypes.CDLL(None).prctl(15, b'{name}')\nwhile True: pass"


@pytest.mark.asyncio(loop_scope="module")
async def test_cancelled_call_leaves_the_tool_usable(tool: PythonTool) -> None:
    call = asyncio.create_task(tool.call(endless("cancelled"), deadline=asyncio.get_running_loop().time() + 60))
    await at_work("cancelled")
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert call.cancelled() and not survivors("cancelled")
    outcome = await tool.call("1+1", deadline=asyncio.get_running_loop().time() + 60)
    assert outcome.text == "2"


async def test_waiting_for_a_sandbox_does_not_count_as_rollout_time(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SandboxSettings(packages=(), pool_size=1, max_running=1)
    async with asyncio.timeout(LIMIT_S), SandboxPool(settings) as pool:
        endless = asyncio.create_task(pool.run("import time; time.sleep(600)", time_limit_s=1.0))
        await asyncio.sleep(0)
        with timed_work() as clock:
            waiting = asyncio.create_task(pool.run("print(1)", time_limit_s=20, deadline=clock.time() + 20))
            await asyncio.sleep(0)
            ForwardClock(monkeypatch).pass_(21.0)
            result = await waiting
        assert (await endless).timed_out and not result.timed_out and result.stdout == "1\n"


async def test_unisolated_programs_run_in_a_temporary_folder() -> None:
    async with SandboxPool(SandboxSettings(kind="none", packages=(), pool_size=1)) as pool:
        result = await pool.run("import os\nopen('x', 'w').write('x')\nos.getcwd()", time_limit_s=20)
    assert result.exit_code == 0
    assert not Path(result.stdout.strip()).exists()


async def test_unisolated_background_processes_end_with_the_pool() -> None:
    program = "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True).pid"
    async with SandboxPool(SandboxSettings(kind="none", packages=(), pool_size=1)) as pool:
        result = await pool.run(program, time_limit_s=20)
        left = Path("/proc", result.stdout.strip(), "exe")
        assert left.exists()
    assert not left.exists()


@pytest.mark.parametrize("kind", ["bubblewrap", "none"])
async def test_programs_of_a_killed_guardian_stay_pending_and_the_next_one_runs(kind: str) -> None:
    async with SandboxPool(SandboxSettings.model_validate({"kind": kind, "packages": (), "pool_size": 1})) as pool:
        lost = asyncio.create_task(pool.run(endless("lost"), time_limit_s=60))
        await at_work("lost")
        await asyncio.gather(*pool._starting)
        for guardian in guardians(os.getpid()):
            os.kill(guardian.pid, signal.SIGKILL)
        with pytest.raises(SandboxError, match="a sandbox was lost") as caught:
            await lost
        assert caught.value.retryable
        until(lambda: not survivors("lost"), "the end of the program")
        result = await pool.run("print(1)", time_limit_s=20)
    assert result.stdout == "1\n"


async def test_missing_interpreter_is_named() -> None:
    with pytest.raises(SandboxError, match="sandbox.interpreter /no/such/python is not an executable file"):
        async with SandboxPool(SandboxSettings(interpreter=Path("/no/such/python"))):
            pass


async def test_program_that_is_not_an_interpreter_is_named() -> None:
    with pytest.raises(SandboxError, match="/bin/false does not work as a Python interpreter"):
        async with SandboxPool(SandboxSettings(interpreter=Path("/bin/false"))):
            pass


async def test_sandbox_start_failure_is_a_transient_error(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    settings = SandboxSettings(kind="none", packages=(), pool_size=1, interpreter=interpreter)
    async with SandboxPool(settings) as pool:
        interpreter.unlink()
        with pytest.raises(SandboxError, match="cannot start a sandbox") as caught:
            for _ in range(5):
                await pool.run("1", time_limit_s=20.0)
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ("tempfile.mkdtemp", OSError(errno.ENOSPC, "No space left on device")),
        ("treadle.agent.sandbox.guardian.Guardian.start", RuntimeError("can't start new thread")),
    ],
)
async def test_waiting_call_ends_whatever_keeps_sandboxes_from_starting(
    broken: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of a waiting call stands still, so no time limit would end it."""

    def fail(*given: object, **keys: object) -> None:
        raise error

    settings = SandboxSettings(kind="none", packages=(), pool_size=1)
    async with asyncio.timeout(LIMIT_S), SandboxPool(settings) as pool:
        monkeypatch.setattr(broken, fail)
        with pytest.raises(SandboxError, match=f"cannot start a sandbox: .*{error.args[-1]}") as caught:
            for _ in range(5):
                await pool.run("1", time_limit_s=20.0)
    assert caught.value.retryable


def test_missing_package_is_named_with_a_remedy() -> None:
    message = check(SandboxSettings(packages=("no_such_package",)))
    assert message is not None
    assert "'no_such_package' of sandbox.packages is not installed" in message


def test_machine_with_isolation_passes_the_check() -> None:
    assert check() is None
    facts = describe(SandboxSettings())
    assert facts["isolation"] == "bubblewrap"
    assert facts["python"] == sys.version.split()[0]
    assert facts["device_nodes"] == ("own" if os.geteuid() == 0 else "shared")
    assert {"numpy", "sympy"} <= set(facts)
