"""Real processes: nothing of an engine outlives the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from treadle.core.engines.process import Child, log_tail, start_child
from treadle.core.errors import EngineError

# A difficult engine: it ignores SIGTERM, has a child in its group, and a grandchild that forked twice
# and took a session of its own. Each writes its pid.
ENGINE = """
import os, signal, sys, time
folder = sys.argv[1]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def tell(name):
    with open(f"{folder}/{name}.tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{folder}/{name}.tmp", f"{folder}/{name}")
if os.fork() == 0:
    tell("child")
    time.sleep(600)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        tell("daemon")
        time.sleep(600)
    os._exit(0)
tell("engine")
time.sleep(600)
"""
NAMES = ("engine", "child", "daemon")

PARENT = """
import sys, time
from pathlib import Path
from treadle.core.engines.process import start_child
folder = Path(sys.argv[2])
command = [sys.executable, "-c", sys.argv[1], str(folder)]
child = start_child(command, name="engine", log_path=folder / "log", grace_s=0.2)
(folder / "supervisor").write_text(str(child._supervisor.pid))
time.sleep(600)
"""


def eventually(condition: Callable[[], bool], timeout_s: float = 120.0) -> bool:
    """Poll a condition, bounded."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids_in(folder: Path, names: tuple[str, ...] = NAMES) -> list[int]:
    assert eventually(lambda: all((folder / name).is_file() and (folder / name).read_text() for name in names))
    return [int((folder / name).read_text()) for name in names]


def start(folder: Path, code: str, *arguments: str, grace_s: float = 0.2) -> Child:
    command = [sys.executable, "-c", code, *arguments]
    return start_child(command, name="engine", log_path=folder / "log", grace_s=grace_s)


def test_killing_the_parent_kills_every_engine_descendant(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, ENGINE, str(tmp_path)])
    pids = pids_in(tmp_path, (*NAMES, "supervisor"))
    assert all(is_alive(pid) for pid in pids)
    parent.kill()
    parent.wait()
    assert eventually(lambda: not any(is_alive(pid) for pid in pids))


@pytest.mark.covers("flywheel-5")
def test_engine_grace_period_is_shortened_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT.replace("0.2", "600.0"), ENGINE, str(tmp_path)])
    pids = pids_in(tmp_path, (*NAMES, "supervisor"))
    parent.kill()
    parent.wait()
    assert eventually(lambda: not any(is_alive(pid) for pid in pids), 10.0)


def test_parent_fork_that_holds_the_pipe_does_not_keep_the_engine_alive(tmp_path: Path) -> None:
    fork = PARENT.replace(
        "time.sleep(600)", "import os\nif os.fork() == 0: (folder / 'fork').write_text(str(os.getpid()))"
    )
    parent = subprocess.Popen([sys.executable, "-c", fork + "\ntime.sleep(600)", ENGINE, str(tmp_path)])
    pids = pids_in(tmp_path, (*NAMES, "supervisor"))
    (holder,) = pids_in(tmp_path, ("fork",))
    try:
        parent.kill()
        parent.wait()
        assert eventually(lambda: not any(is_alive(pid) for pid in pids))
        assert is_alive(holder)
    finally:
        os.kill(holder, signal.SIGKILL)


def test_stopping_kills_processes_that_ignore_sigterm_or_left_the_group(tmp_path: Path) -> None:
    child = start(tmp_path, ENGINE, str(tmp_path))
    pids = pids_in(tmp_path)
    assert child.poll() is None
    assert child.stop() == 128 + signal.SIGKILL
    assert not any(is_alive(pid) for pid in pids)
    assert child.stop() == 128 + signal.SIGKILL


def test_descendants_do_not_outlive_an_engine_that_exits(tmp_path: Path) -> None:
    # It ends only after its descendants have reported: they are killed the moment it ends.
    told = 'all(os.path.exists(f"{folder}/{name}") for name in ("child", "daemon"))'
    ends = ENGINE.replace('tell("engine")\ntime.sleep(600)', f'tell("engine")\nwhile not {told}:\n    time.sleep(0.01)')
    child = start(tmp_path, ends, str(tmp_path))
    pids = pids_in(tmp_path)
    assert child.wait(20.0) == 0
    assert not any(is_alive(pid) for pid in pids)


def test_engine_may_exit_on_its_own_within_the_grace_period(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(7)))\n"
        "print('up', flush=True)\n"
        "time.sleep(600)"
    )
    child = start(tmp_path, code, grace_s=20.0)
    assert eventually(lambda: "up" in log_tail(child.log_path))
    assert child.stop() == 7
    assert log_tail(child.log_path) == "up\nbye"


def test_killed_supervisor_kills_the_engine(tmp_path: Path) -> None:
    child = start(tmp_path, "import time; time.sleep(600)")
    os.kill(child._supervisor.pid, signal.SIGKILL)
    assert eventually(lambda: not is_alive(child.pid))
    child.stop()


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 11)", 139)])
def test_engine_exit_code_is_returned(tmp_path: Path, end: str, code: int) -> None:
    child = start(tmp_path, f"import os, sys; {end}")
    assert child.wait(20.0) == code
    child.stop()


def test_missing_command_raises_one_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"cannot start engine \(/no/such/program\).*No such file"):
        start_child(["/no/such/program"], name="engine", log_path=tmp_path / "log")


def test_engine_starts_in_an_empty_folder(tmp_path: Path) -> None:
    child = start(tmp_path, "import os; print(os.listdir('.'))")
    child.wait(20.0)
    child.stop()
    assert log_tail(child.log_path) == "[]"


def test_engine_output_cannot_control_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\n\x1b[31mred\x1b[0m \x1b]0;title\x07two\x07\n10%\r50%\r100% done\nbad \xff bytes \x9b1m\n")
    assert log_tail(log) == "one\nred two\\x07\n100% done\nbad \ufffd bytes \ufffd1m"
