"""The process that starts sandboxes: how Treadle notices that it cannot start one, ends, or does not respond."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.runs.processes import Seen, look, until
from support.sandbox.sandbox_kills import guardians
from support.sandbox.sandbox_probes import survivors
from support.servers.own_clock import limit_from

from treadle.agent.sandbox import guardian as guardian_module
from treadle.agent.sandbox import process as process_module
from treadle.agent.sandbox.bubblewrap import make_launcher
from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.sandbox.guardian import GuardedProcess, Guardian, ProcessStatus
from treadle.agent.sandbox.pool import SandboxPool
from treadle.agent.sandbox.process import Program, SandboxProcess
from treadle.agent.sandbox.usage import UsageWatch
from treadle.core.engines import supervisor
from treadle.core.errors import SandboxError

LIMIT_S = 60.0
"""Only a fault takes so long."""
KINDS = ["bubblewrap", "none"]
ENDLESS = "import ctypes\nctypes.CDLL(None).prctl(15, b'endless')\nwhile True: pass"
STOPPED = (
    "import ctypes, os, signal\nctypes.CDLL(None).prctl(15, b'stopped')\nos.kill(os.getppid(), 19)\nsignal.pause()"
)
"""Nothing of it sees that the input ends."""


def be_impatient(patch: pytest.MonkeyPatch) -> None:
    """Shorten waiting for events that never occur; undo it before waiting for one that must occur."""
    for name in ("_SEND_S", "_CLOSE_S"):
        patch.setattr(guardian_module, name, 0.2)
    for name in ("_END_TIMEOUT_S", "_FORCED_END_TIMEOUT_S"):
        patch.setattr(process_module, name, 0.5)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Yield the guardian's own code, in this process."""
    monkeypatch.setattr(sys, "argv", ["guardian_worker.py", str(Path(supervisor.__file__).parent), str(os.getpid())])
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("guardian_worker", guardian_module._WORKER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("supervisor", None)


def own_guardian() -> Seen:
    (seen,) = (seen for seen in guardians(os.getpid()) if seen.parent == os.getpid() and seen.lives())
    return seen


def pid_of(guarded: GuardedProcess) -> int:
    pid = ProcessStatus.read(guarded.status_pipe.readline().decode()).pid
    assert pid is not None
    return pid


def close(guarded: GuardedProcess) -> None:
    for stream in (guarded.stdin, guarded.stdout, guarded.stderr, guarded.status_pipe):
        stream.close()


def test_failed_fork_is_reported_for_that_sandbox_and_the_guardian_survives(
    worker: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_more() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", no_more)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    news_read, status_pipe = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    request = {"start": 1, "argv": ["/bin/cat"], "env": {}, "cwd": str(tmp_path)}
    started: dict[int, tuple[int, int]] = {}
    with ours, theirs, os.fdopen(news_read, "rb") as told:
        socket.send_fds(ours, [json.dumps(request).encode()], [null, null, null, status_pipe, null])
        os.close(status_pipe)
        os.close(null)
        before = len(os.listdir("/proc/self/fd"))
        assert worker._serve(theirs, started, worker.Cgroups())
        assert len(os.listdir("/proc/self/fd")) == before, "descriptors are left open"
        assert ProcessStatus.read(told.read().decode()).error == "[Errno 11] Resource temporarily unavailable"
        assert not started


def test_guardian_ends_with_its_children_when_its_socket_closes(tmp_path: Path) -> None:
    with Guardian() as guardian:
        guarded = guardian.start(["/bin/sleep", "600"], env={}, cwd=tmp_path)
        started, worker = look(pid_of(guarded)), own_guardian()
        assert started is not None
        assert guardian._requests is not None
        guardian._requests.close()
        assert (
            guarded.status_pipe.read() == b""
        )  # Closed by its end: one more byte would report a process that ended by itself.
        until(lambda: not started.lives() and not worker.lives(), "the end of the guardian and of what it had started")
        close(guarded)


def test_guardian_survives_a_closed_news_reader(tmp_path: Path) -> None:
    with Guardian() as guardian:
        unread = guardian.start(["/bin/cat"], env={}, cwd=tmp_path)
        first, worker = look(pid_of(unread)), own_guardian()
        assert first is not None
        close(unread)
        until(lambda: not first.lives(), "it has ended with its input")
        guarded = guardian.start(["/bin/true"], env={}, cwd=tmp_path)
        assert ProcessStatus.read(guarded.status_pipe.read().decode()).code == 0
        close(guarded)
        assert own_guardian().pid == worker.pid


def test_closing_ends_a_suspended_guardian(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guardian = Guardian()
    guarded = guardian.start(["/bin/cat"], env={}, cwd=tmp_path)
    started, worker = look(pid_of(guarded)), own_guardian()
    assert started is not None
    os.kill(worker.pid, signal.SIGSTOP)
    be_impatient(monkeypatch)
    guardian.close()
    assert not worker.lives()
    assert f"the process that starts sandboxes ({worker.pid}) did not end within" in caplog.text
    close(guarded)
    until(lambda: not started.lives(), "it has ended with its input")


def test_unread_requests_of_a_suspended_guardian_are_sent_to_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    be_impatient(monkeypatch)
    with Guardian() as guardian:
        guarded = guardian.start(["/bin/true"], env={}, cwd=tmp_path)
        pid_of(guarded)
        close(guarded)
        stopped = own_guardian()
        os.kill(stopped.pid, signal.SIGSTOP)
        env, asked = {"FILL": "x" * 60_000}, 0
        while stopped.lives():
            guarded = guardian.start(["/bin/true"], env=env, cwd=tmp_path)
            asked += 1
            assert asked < 1000, "nothing fills the socket"
            if stopped.lives():
                assert guardian.is_stalled()
                close(guarded)
        assert ProcessStatus.read(guarded.status_pipe.read().decode()).code == 0
        close(guarded)


@pytest.mark.parametrize("kind", KINDS)
async def test_programs_of_a_suspended_guardian_stay_pending_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    settings = SandboxSettings.model_validate({"kind": kind, "packages": (), "pool_size": 1})
    suspended = asyncio.Event()
    limit_from(monkeypatch, process_module, suspended.is_set)
    async with asyncio.timeout(LIMIT_S), SandboxPool(settings) as pool:
        lost = asyncio.create_task(pool.run(ENDLESS, time_limit_s=0.5))
        while pool._starting or not survivors("endless"):
            await asyncio.sleep(0)
        stopped = own_guardian()
        os.kill(stopped.pid, signal.SIGSTOP)
        be_impatient(monkeypatch)
        suspended.set()
        with pytest.raises(SandboxError, match="a sandbox was lost: .* stopped and replaced") as caught:
            await lost
        assert caught.value.retryable
        assert not stopped.lives()
        monkeypatch.undo()
        until(lambda: not survivors("endless"), "the end of the program")
        assert (await pool.run("print(1)", time_limit_s=20)).stdout == "1\n"


@pytest.mark.parametrize("kind", KINDS)
async def test_pool_with_a_suspended_guardian_can_be_closed(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    settings = SandboxSettings.model_validate({"kind": kind, "packages": (), "pool_size": 3})
    async with asyncio.timeout(LIMIT_S):
        async with SandboxPool(settings) as pool:
            running = asyncio.create_task(pool.run(ENDLESS, time_limit_s=600))
            while pool._starting or not survivors("endless"):
                await asyncio.sleep(0)
            stopped = own_guardian()
            os.kill(stopped.pid, signal.SIGSTOP)
            be_impatient(monkeypatch)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert running.cancelled()
    assert not stopped.lives()
    until(lambda: not survivors("endless"), "the end of the program")


class FailingKillGuardian(Guardian):
    """Its kills do nothing, as those of a process that waits for a disk."""

    def kill(self, guarded: GuardedProcess) -> None:
        pass


async def test_unkillable_process_is_named_once_and_its_guardian_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher = make_launcher(SandboxSettings(kind="none", packages=()))
    with FailingKillGuardian() as guardian:
        async with asyncio.timeout(LIMIT_S):
            stuck = await SandboxProcess.start(guardian, launcher, LIMIT_S, eager=False)
            worker = own_guardian()
            be_impatient(monkeypatch)
            with pytest.raises(
                SandboxError, match=r"cannot be ended: process \d+ was killed and is still there"
            ) as caught:
                await stuck.run(Program(STOPPED), UsageWatch(), time_limit_s=0.5, cpu_s=60)
            assert caught.value.retryable
            monkeypatch.undo()
            assert own_guardian().pid == worker.pid
            other = await SandboxProcess.start(guardian, launcher, LIMIT_S, eager=False)
            assert (await other.run(Program("print(1)"), UsageWatch(), time_limit_s=20, cpu_s=20)).stdout == "1\n"
    until(lambda: not survivors("stopped"), "the end of the program")
