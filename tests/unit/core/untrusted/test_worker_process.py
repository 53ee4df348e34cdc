"""Time limits and ends of worker processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from treadle.core.untrusted.worker_process import ForkEnded, WorkerEnded, WorkerNotStarted, WorkerProcess


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerProcess:
    """Return a worker that obeys: it dies by a signal, reports a dead child, or stops reading."""
    (tmp_path / "obedient.py").write_text(
        "import os, time\n"
        "from treadle.core.untrusted.worker_frames import *\n"
        "frames = open_frames()\n"
        "send_frame(frames, REPLY, b'{\"ready\": true}')\n"
        "while order := next_request():\n"
        "    if order == b'sleep': time.sleep(600)\n"
        "    elif order == b'trickle':\n"
        "        frames.write(HEAD.pack(REPLY, 1 << 19))\n"
        "        while True: time.sleep(frames.write(b'x') * 0.01); frames.flush()\n"
        "    elif order == b'fork': send_frame(frames, DIED, b'-6')\n"
        "    else: os.kill(os.getpid(), int(order))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = WorkerProcess("obedient")
    worker.wait_ready()
    return worker


def test_request_that_is_not_read_times_out_and_ends_the_process(worker: WorkerProcess) -> None:
    with pytest.raises(TimeoutError):
        worker.ask(b"sleep", bytes(1 << 20), limit_s=0.1)
    assert not worker.is_usable
    worker.close()
    with pytest.raises(WorkerEnded):
        worker.ask(b"fork", limit_s=60.0)


def test_reply_that_arrives_byte_by_byte_times_out(worker: WorkerProcess) -> None:
    with pytest.raises(TimeoutError):
        worker.ask(b"trickle", limit_s=0.1)
    worker.close()


@pytest.mark.parametrize(("number", "is_kill"), [(signal.SIGKILL, True), (signal.SIGSEGV, False)])
def test_signal_that_ends_the_process_tells_whose_fault_it_was(
    worker: WorkerProcess, number: int, is_kill: bool
) -> None:
    with pytest.raises(WorkerEnded) as caught:
        worker.ask(str(int(number)).encode(), limit_s=60.0)
    assert (caught.value.code, caught.value.is_kill, worker.is_usable) == (-number, is_kill, False)
    worker.close()


def test_dead_child_leaves_its_worker_usable(worker: WorkerProcess) -> None:
    with pytest.raises(ForkEnded):
        worker.ask(b"fork", limit_s=60.0)
    assert worker.is_usable and worker.num_requests == 1
    worker.close()


def test_process_that_cannot_run_is_not_started() -> None:
    worker = WorkerProcess("no_such_module")
    with pytest.raises(WorkerNotStarted, match="exit code 1"):
        worker.wait_ready()
    worker.close()
