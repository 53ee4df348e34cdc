"""Combined limits of sandboxes, and ordinary programs unaffected by them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.sandbox.sandbox_users import USERS, report_of

from treadle.agent.sandbox import cgroup, usage
from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.sandbox.guardian import Guardian, ProcessStatus, finish
from treadle.agent.sandbox.pool import SandboxPool

MEBIBYTE = 1 << 20

USUAL_PROGRAMS = {
    """
import numpy, sympy
x = sympy.Symbol("x")
file = numpy.memmap("numbers", mode="w+", shape=(1000,))
file[:] = 1
file.flush()
print(numpy.linalg.svd(numpy.eye(3))[1].sum(), sympy.integrate(x, (x, 0, 2)), file.sum())
""": "3.0 2 1000",
    """
import asyncio, concurrent.futures, multiprocessing, os, subprocess, sys, threading
ours, theirs = multiprocessing.Pipe()
process = multiprocessing.Process(target=theirs.send, args=("sent",))
process.start()
print(ours.recv(), process.join(), process.exitcode)
print(subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True, timeout=20).stdout.strip())
with concurrent.futures.ThreadPoolExecutor(4) as threads:
    print(list(threads.map(abs, range(-3, 0))))
async def main():
    await asyncio.sleep(0.01)
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(2)", stdout=-1)
    print((await child.communicate())[0], await asyncio.to_thread(abs, -1))
asyncio.run(main())
""": "sent None 0\n1\n[3, 2, 1]\nb'2\\n' 1\nNone",
    """
import fcntl, glob, hashlib, mmap, os, pathlib, random, shutil, sqlite3, tarfile, tempfile, time, zipfile
for mode in ("delete", "wal"):
    for _ in range(2):
        with sqlite3.connect("data-" + mode) as data:
            data.execute("pragma journal_mode=" + mode)
            data.execute("create table if not exists t(x)")
            data.execute("insert into t values(1)")
        data.close()
    print(sqlite3.connect("data-" + mode).execute("select count(*) from t").fetchall())
print(sqlite3.connect(":memory:").execute("select 1").fetchall())
pathlib.Path("a/b").mkdir(parents=True)
pathlib.Path("a/b/c").write_text("x")
with zipfile.ZipFile("z.zip", "w") as archive:
    archive.write("a/b/c")
zipfile.ZipFile("z.zip").extractall("out")
with tarfile.open("t.tar", "w") as archive:
    archive.add("a")
shutil.copytree("a", "a2")
shutil.copy2("a/b/c", "copy")
os.utime("copy")
with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as file, open("copy", "r+") as copied:
    file.write(b"x")
    os.fsync(file.fileno())
    fcntl.flock(copied, fcntl.LOCK_EX)
shared = mmap.mmap(-1, 8192)
if os.fork() == 0:
    shared[:4] = b"same"
    os._exit(0)
os.wait()
time.sleep(0.01)
# Where locks only seem to be kept, the last connection does not always delete its log.
names = set(glob.glob("*")) - {"data-wal-shm", "data-wal-wal"}
print(shared[:4], sorted(names), len(list(os.walk("."))), hashlib.sha256(b"").hexdigest()[:4])
""": "[(2,)]\n[(2,)]\n[(1,)]\nb'same' ['a', 'a2', 'copy', 'data-delete', 'data-wal', 'out', 't.tar', 'z.zip'] 8 e3b0",
}


USUAL_PROGRAMS |= {
    """
import mmap, os, pathlib, shutil
path = pathlib.Path("touched")
path.touch()
path.touch()
print(path.exists(), path.stat().st_size)
for missing in (lambda: os.utime("nothing"), lambda: os.utime(os.path.join("a", "b"), (1, 1))):
    try:
        missing()
    except FileNotFoundError:
        print("missing")
path.write_text("text")
with open("touched", "rb") as source, open("copied", "wb") as target:
    print(os.copy_file_range(source.fileno(), target.fileno(), 10))
os.chown("copied", -1, -1)
shutil.copystat("touched", "copied")
shutil.move("copied", "moved")
mmap.mmap(-1, 4096).madvise(mmap.MADV_WILLNEED)
print(os.sched_getscheduler(0), os.sched_getparam(0).sched_priority, os.sched_get_priority_max(0))
print(os.sysconf("SC_PHYS_PAGES") != 0)
""": "True 0\nmissing\nmissing\n4\n0 0 0\nTrue",
}
LOCKING_PROGRAMS = {
    """
import fcntl, os
with open("count", "w") as file:
    file.write("0")
for lock in (fcntl.flock, fcntl.lockf):
    for _ in range(4):
        if os.fork() == 0:
            for _ in range(100):
                with open("count", "r+") as file:
                    lock(file, fcntl.LOCK_EX)
                    number = int(file.read())
                    file.seek(0)
                    file.write(str(number + 1))
            os._exit(0)
    for _ in range(4):
        os.wait()
    print(open("count").read())
with open("count", "r+") as one, open("count", "r+") as two:
    fcntl.flock(one, fcntl.LOCK_SH)
    fcntl.flock(two, fcntl.LOCK_SH | fcntl.LOCK_NB)
    try:
        fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(one, fcntl.LOCK_UN)
        fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("locked")
""": "400\n800\nlocked",
    """
import os, sqlite3
with sqlite3.connect("data", isolation_level=None) as data:
    data.execute("create table t(x)")
    data.execute("insert into t values(0)")
data.close()
for _ in range(4):
    if os.fork() == 0:
        data = sqlite3.connect("data", timeout=25, isolation_level=None)
        for _ in range(25):
            data.execute("begin immediate")
            data.execute("update t set x = x + 1")
            data.execute("commit")
        os._exit(0)
print([os.wait()[1] for _ in range(4)], sqlite3.connect("data").execute("select x from t").fetchall())
""": "[0, 0, 0, 0] [(100,)]",
    """
import os
open("old", "w").close()
os.utime("old", (5, 5))
print(os.path.getmtime("old"))
""": "5.0",
    """
import ctypes, errno
print(ctypes.CDLL(None, use_errno=True).flock(0, 2), errno.errorcode[ctypes.get_errno()])
""": "-1 ENOLCK",
}
"""What files of a sandbox's own make possible."""


@pytest.mark.parametrize("user", USERS)
def test_common_programs_run_under_the_system_call_filter(user: str) -> None:
    task = {"kind": "bubblewrap", "packages": ["numpy", "sympy"], "programs": list(USUAL_PROGRAMS)}
    outcomes = report_of(user, task)["outcomes"]
    assert {program: one["text"] for program, one in outcomes.items()} == USUAL_PROGRAMS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")
def test_locks_and_timestamps_work_with_private_device_nodes() -> None:
    task = {"kind": "bubblewrap", "packages": [], "programs": list(LOCKING_PROGRAMS)}
    outcomes = report_of("root", task)["outcomes"]
    assert {program: one["text"] for program, one in outcomes.items()} == LOCKING_PROGRAMS


def _holding(code: str) -> subprocess.Popen[bytes]:
    """Start a process that has one child, which runs code, reports that, and waits for its input to end."""
    child = f"{code}\nimport sys\nprint(flush=True)\nsys.stdin.read()"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.parametrize(
    ("code", "least", "most"),
    [
        ("held = b'x' * (100 << 20)", 100, 130),
        # Copies that processes share count once.
        ("import os, time\nheld = b'x' * (100 << 20)\nfor _ in range(3):\n    os.fork() or time.sleep(60)", 100, 150),
        ("import socket\nheld = [socket.socketpair() for _ in range(100)]", 30, 80),
    ],
)
def test_memory_of_all_processes_is_visible_from_outside(code: str, least: int, most: int) -> None:
    with _holding(code) as process:
        try:
            found = usage.usage_of(process.pid, limit_bytes=0).memory_bytes / MEBIBYTE
        finally:
            for pid in list(usage.descendants(process.pid)):
                os.kill(pid, 9)
    assert least <= found <= most


def test_far_below_the_limit_only_the_cheap_measurement_is_taken() -> None:
    with _holding("held = b'x' * (100 << 20)") as process:
        assert usage.usage_of(process.pid, limit_bytes=1 << 40).memory_bytes > 100 * MEBIBYTE
        assert process.stdin is not None
        process.stdin.close()


async def test_short_program_is_never_measured() -> None:
    watch = usage.UsageWatch()
    with watch.watching(1, 0):
        await asyncio.sleep(0)
    assert watch._thread is None
    watch.close()


@pytest.mark.parametrize(
    ("held", "excess"),
    [(usage.SandboxUsage(101, 0), "memory"), (usage.SandboxUsage(100, usage.MAX_FILES + 1), "files")],
)
async def test_exceeded_sandbox_resource_is_reported(
    held: usage.SandboxUsage, excess: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "INTERVAL_S", 0)
    monkeypatch.setattr(usage, "usage_of", lambda first, limit_bytes: {1: usage.SandboxUsage(100, 0), 2: held}[first])
    watch = usage.UsageWatch()
    try:
        with watch.watching(1, 100) as modest, watch.watching(2, 100) as greedy:
            assert await asyncio.wait_for(greedy, 120) == excess
            assert not modest.done()
    finally:
        watch.close()


def _cgroups(root: Path, folders: dict[str, dict[str, str]]) -> None:
    for folder, files in folders.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name, text in (files | {"cgroup.procs": ""}).items():
            (root / folder / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, True),
        ({"a/own": {"memory.max": "max", "pids.max": "max", "cpu.max": "max 100000", "io.max": ""}}, True),
        ({"a/own": {"memory.max": "1000000"}}, False),
        ({"a/own": {"pids.max": "100"}}, False),
        ({"a/own": {"cpu.max": "50000 100000"}}, False),
        ({"a/own": {"cpuset.cpus": "0\n"}}, False),
        ({"a/own": {"io.max": "8:0 rbps=1048576 wbps=max riops=max wiops=max\n"}}, False),
        ({"a/own": {"memory.swap.max": "0\n"}}, False),
        ({"a": {"cgroup.subtree_control": "cpu pids"}}, False),
    ],
)
def test_cgroup_parent_is_used_only_if_it_limits_memory_and_has_no_own_limit(
    tmp_path: Path, files: dict[str, dict[str, str]], found: bool
) -> None:
    usual = {"a": {"cgroup.subtree_control": "cpu memory pids"}, "a/own": {"cgroup.subtree_control": ""}}
    _cgroups(tmp_path, usual | files)
    assert cgroup.find_parent(tmp_path, "/a/own") == (tmp_path / "a" if found else None)


def test_cgroup_reports_out_of_memory_and_is_removed_with_its_process(tmp_path: Path) -> None:
    wanted: dict[str, object] = {"parent": str(tmp_path), "limits": cgroup.limits(SandboxSettings())}
    event = 'cd "$0"/treadle-*-*; echo "oom_kill 1" > memory.events'
    statuses: list[ProcessStatus] = []
    with Guardian() as guardian:
        for script in ('test -d "$0"/treadle-*-*', event, "exit 3"):
            command = ["/bin/sh", "-c", script, str(tmp_path)]
            guarded = guardian.start(command, env={}, cwd=Path("/"), cgroup=wanted)
            statuses.append(finish(guarded, b"", 20)[0])
    # A folder with an ordinary file replaces the full one; it cannot be deleted either.
    assert [(one.code, one.oom) for one in statuses] == [(0, False), (0, True), (3, False)]
    assert len(list(tmp_path.iterdir())) == 1


def test_leftover_cgroup_of_another_process_is_ignored(tmp_path: Path) -> None:
    wanted: dict[str, object] = {"parent": str(tmp_path), "limits": {}}
    first = os.fork() or os._exit(0)
    os.waitpid(first, 0)
    for pid in range(first, first + 200):
        (tmp_path / f"treadle-{pid}").mkdir()
        (tmp_path / f"treadle-{pid}" / "memory.events").write_text("oom_kill 1\n")
    with Guardian() as guardian:
        guarded = guardian.start(["/bin/true"], env={}, cwd=Path("/"), cgroup=wanted)
        statuses = finish(guarded, b"", 20)[0]
    assert (statuses.code, statuses.cgroup, statuses.oom) == (0, False, False)


def test_guardian_removes_cgroups_of_dead_guardians_only(tmp_path: Path) -> None:
    dead = os.fork() or os._exit(0)
    os.waitpid(dead, 0)
    wanted: dict[str, object] = {"parent": str(tmp_path), "limits": {}}
    with Guardian() as living, Guardian() as guardian:
        finish(living.start(["/bin/true"], env={}, cwd=Path("/")), b"", 20)
        assert living._process is not None
        kept = {f"treadle-{living._process.pid}-1f", "treadle-mine", "other-1-2"}
        for name in kept | {f"treadle-{dead}-2e", f"treadle-{os.getpid()}-3d"}:
            (tmp_path / name).mkdir()
        finish(guardian.start(["/bin/true"], env={}, cwd=Path("/"), cgroup=wanted), b"", 20)
        assert {path.name for path in tmp_path.iterdir()} == kept


def _group_folder() -> Path | None:
    """Return a new cgroup of version 2, whatever controllers it has; None if this user cannot make one."""
    for mount in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        if (mount / "cgroup.controllers").exists():
            with contextlib.suppress(OSError):
                return Path(tempfile.mkdtemp(prefix="test-of-treadle-", dir=mount))
    return None


@pytest.mark.parametrize("who", ["all", "outer"])
async def test_no_cgroup_remains_after_its_processes_are_killed_externally(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = _group_folder()
    if parent is None:  # A user without permission to make one leaves none.
        return
    monkeypatch.setattr(cgroup, "parent", lambda: parent)
    hold = "import os, time\nheld = bytearray(200 << 20)\nfor _ in range(8):\n    os.fork() or time.sleep(60)\n"
    try:
        async with SandboxPool(SandboxSettings(pool_size=1, packages=())) as pool:
            for _ in range(3):
                running = asyncio.create_task(pool.run(f"{hold}time.sleep(60)", time_limit_s=50))
                pids: list[int] = []
                while len(pids) < 10:
                    await asyncio.sleep(0)
                    texts = []
                    for path in parent.glob("*/cgroup.procs"):
                        with contextlib.suppress(OSError):  # A group of an earlier program goes meanwhile.
                            texts.append(path.read_text())
                    pids = [int(pid) for text in texts for pid in text.split() if len(text.split()) >= 10]
                for pid in pids[: 1 if who == "outer" else None]:
                    with contextlib.suppress(ProcessLookupError):  # The first one takes the others with it.
                        os.kill(pid, signal.SIGKILL)
                await running
        assert [path.name for path in parent.iterdir() if path.is_dir()] == []
    finally:
        for path in parent.iterdir():
            if path.is_dir():
                path.rmdir()
        parent.rmdir()


async def test_pool_logs_how_memory_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        async with SandboxPool(SandboxSettings(pool_size=1, packages=())):
            pass
    assert caplog.text.count("the memory of each sandbox is limited by") == 1


def test_real_cgroup_kills_programs_over_the_memory_limit(tmp_path: Path) -> None:
    parent = cgroup.parent()
    if parent is None:  # The tests above check the same with folders in place of cgroups.
        return
    wanted: dict[str, object] = {"parent": str(parent), "limits": {"memory.max": str(64 * MEBIBYTE)}}
    with Guardian() as guardian:
        command = [sys.executable, "-c", "x = bytearray(200 << 20)\nprint(len(x))"]
        statuses, output, _ = finish(guardian.start(command, env={}, cwd=Path("/"), cgroup=wanted), b"", 20)
    assert (statuses.oom, output) == (True, b"")
