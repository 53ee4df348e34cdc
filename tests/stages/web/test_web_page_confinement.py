"""Confinement of processes that read pages, and the messages if the kernel supports less of it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from support.web.page_reading import MAX_BYTES, PAGE, fetched, pids, see_first

from treadle.core.errors import SandboxError
from treadle.core.untrusted import landlock_rights
from treadle.tasks.doctor import _web_pages
from treadle.web import log_once as once
from treadle.web.pages import reader as page_reader
from treadle.web.pages.reader import PageReader
from treadle.web.types import Unfetchable


@pytest.fixture
def machine_without_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import platform\nplatform.machine = lambda: 'riscv64'\n")
    see_first(tmp_path, monkeypatch)


@pytest.mark.usefixtures("machine_without_filter")
async def test_missing_kernel_confinement_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once, "_logged", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            reader = PageReader(1)
            await reader.open()
            await reader.close()
    assert "riscv64" in reader.problem
    assert [record.getMessage() for record in caplog.records] == [
        "pages are read with limits of time and memory alone, and kept from files where the kernel has Landlock: "
        "the system call filter supports only x86_64, and this machine is riscv64; read pages on Linux on x86-64, "
        "with a kernel that has seccomp"
    ]
    reader = PageReader(1)
    await reader.open()
    assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).title == "Towers"
    await reader.close()


_PROBES = """
import ctypes, os, resource, signal, socket, sys
from treadle.web.pages import worker as page_worker
from treadle.core.untrusted import process_confinement
mode, folder = sys.argv[1:]
parent, libc = os.getppid(), ctypes.CDLL(None, use_errno=True)
page_worker._load()
held = os.open(f"{folder}/file", os.O_RDONLY)
if mode in ("files", "confined"):
    process_confinement.drop_file_access()
if mode in ("filter", "confined"):
    assert process_confinement.confine(page_worker.CPU_LIMIT_S) == ""
def call(*what):
    if libc.syscall(*what) < 0:
        raise OSError(ctypes.get_errno(), "refused")
def tried(what, do):
    try:
        do()
    except Exception as error:
        print(what, type(error).__name__)
    else:
        print(what, "done")
os.umask(0) if mode == "free" else None
at = lambda name: f"{folder}/{name}"
here = lambda name: at(name).encode()
tried("read", lambda: open(at("file")))
tried("write", lambda: open(at("file"), "a"))
tried("create", lambda: open(at("made"), "x"))
tried("list", lambda: os.listdir(folder))
tried("unlink", lambda: os.unlink(at("unlink")))
tried("unlinkat", lambda: call(263, -100, here("unlinkat"), 0))
tried("rename", lambda: os.rename(at("rename"), at("renamed")))
tried("renameat", lambda: call(264, -100, here("renameat"), -100, here("renamed at")))
tried("renameat2", lambda: call(316, -100, here("renameat2"), -100, here("renamed at 2"), 0))
tried("rmdir", lambda: os.rmdir(at("rmdir")))
tried("mkdir", lambda: os.mkdir(at("mkdir")))
tried("mkdirat", lambda: call(258, -100, here("mkdirat"), 0o700))
tried("symlink", lambda: os.symlink("/etc/passwd", at("symlink")))
tried("symlinkat", lambda: call(266, b"/etc/passwd", -100, here("symlinkat")))
tried("link", lambda: os.link(at("file"), at("link")))
tried("mkfifo", lambda: os.mkfifo(at("fifo")))
tried("mknod", lambda: os.mknod(at("mknod")))
tried("creat", lambda: call(85, here("creat"), 0o600))
tried("chmod", lambda: os.chmod(at("file"), 0o600))
tried("truncate", lambda: os.truncate(at("file"), 0))
tried("utime", lambda: os.utime(at("file")))
tried("xattr", lambda: os.listxattr(at("file")))
tried("chdir", lambda: os.chdir(folder))
tried("stat", lambda: os.stat(at("file")))
tried("stat4", lambda: call(4, here("file"), ctypes.create_string_buffer(256)))
tried("access", lambda: call(21, here("file"), 0))
tried("readlink", lambda: os.readlink("/proc/self/exe"))
tried("statvfs", lambda: os.statvfs(folder))
tried("watch", lambda: call(253))
tried("sync", lambda: call(162))
tried("syncfs", lambda: call(306, held))
tried("fsync", lambda: os.fsync(held))
tried("fdatasync", lambda: os.fdatasync(held))
tried("limit", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
tried("timer", lambda: signal.setitimer(signal.ITIMER_PROF, 0))
tried("socket", lambda: socket.socket())
tried("pair", lambda: socket.socketpair())
tried("pipe", lambda: os.pipe())
tried("memory", lambda: os.memfd_create("x"))
tried("signal", lambda: os.kill(parent, 0))
tried("itself", lambda: os.kill(os.getpid(), 0))
tried("group", lambda: os.setsid() if mode in ("filter", "confined") else None)
tried("fork", lambda: os.fork() or os._exit(0))
tried("exec", lambda: os.execv("/bin/true", ["true"]) if mode in ("filter", "confined") else None)
"""


def probed(mode: str, folder: Path) -> dict[str, str]:
    """Return what a process can do after dropping these privileges; it may try to change `folder`."""
    folder.mkdir()
    for name in ("file", "unlink", "unlinkat", "rename", "renameat", "renameat2"):
        (folder / name).write_text(name)
    (folder / "rmdir").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _PROBES, mode, str(folder)], capture_output=True, text=True, check=True
    )
    return dict(line.split() for line in done.stdout.splitlines())


def below(folder: Path) -> dict[str, bytes | None]:
    return {path.name: path.read_bytes() if path.is_file() else None for path in folder.iterdir()}


@pytest.mark.parametrize("mode", ["confined", "filter"])
def test_compromised_reader_can_reach_nothing(tmp_path: Path, mode: str) -> None:
    """The filter alone suffices, without Landlock."""
    free = probed("free", tmp_path / "free")
    assert len(free) == 44 and set(free.values()) == {"done"}, "the control"
    confined = probed(mode, tmp_path / "confined")
    assert confined.keys() == free.keys()
    assert set(confined.values()) <= {"OSError", "PermissionError", "ValueError", "itimer_error"}
    assert below(tmp_path / "confined").keys() == {
        "file", "unlink", "unlinkat", "rename", "renameat", "renameat2", "rmdir"
    }  # fmt: skip
    assert (tmp_path / "confined" / "file").read_text() == "file"


def has_landlock() -> bool:
    try:
        return landlock_rights.version() > 0
    except SandboxError:
        return False


@pytest.mark.skipif(not has_landlock(), reason="the kernel has no Landlock")
def test_without_a_filter_files_are_unreachable_by_path(tmp_path: Path) -> None:
    """The parent of all readers is confined by this alone."""
    lines = probed("files", tmp_path / "files")
    changing = "read write create list unlink unlinkat rename renameat renameat2 rmdir mkdir mkdirat symlink symlinkat"
    assert {lines[what] for what in [*changing.split(), "mkfifo", "mknod", "creat"]} <= {"PermissionError", "OSError"}
    assert lines["fork"] == "done"
    assert below(tmp_path / "files").keys() == {
        "file",
        "unlink",
        "unlinkat",
        "rename",
        "renameat",
        "renameat2",
        "rmdir",
    }


_TAKEN_OVER = """
import os, sys
import orjson
from treadle.core.untrusted.worker_frames import HEAD, REPLY
from treadle.web.pages import worker as page_worker
true = page_worker.read_page
LIE = {"title": "", "text": "what another page wants", "media_type": "text/html", "reader": "x"}
def read_page(body, *rest):
    # What code of a page's author could do that runs in the place of the reader.
    if b"take over" in body:
        page_worker.read_page = page_worker.decompressed = lambda *_: LIE
        said = orjson.dumps(LIE)
        frame = HEAD.pack(REPLY, len(said)) + said
        if b"all descriptors" in body:
            for number in range(64):
                try:
                    os.write(number, frame)
                except OSError:
                    pass
        if b"and close" in body:
            os.close(3)
            while True: pass
        if b"much" in body:
            while True: os.write(3, bytes(1 << 16))
    return true(body, *rest)
page_worker.read_page = read_page
sys.exit(page_worker.main())
"""


async def test_page_that_compromises_its_reader_cannot_forge_other_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken_over.py").write_text(_TAKEN_OVER)
    see_first(tmp_path, monkeypatch)
    monkeypatch.setattr(page_reader, "_MODULE", "taken_over")
    reader = PageReader(1)
    await reader.open()
    before = pids(reader)
    for how in (b"", b"all descriptors", b"and close", b"much"):
        with contextlib.suppress(Unfetchable):
            await reader.read(fetched(b"take over " + how), max_bytes=MAX_BYTES)
        assert (await reader.read(fetched(PAGE), max_bytes=MAX_BYTES)).text == "The tower\n\nIt is 330 metres tall."
    assert pids(reader) == before
    await reader.close()


def test_doctor_reports_confined_page_reading() -> None:
    check = _web_pages()
    assert check.status == "ok"
    assert "confined by a filter of system calls" in check.detail


@pytest.mark.usefixtures("machine_without_filter")
def test_doctor_warns_of_page_reading_without_a_filter() -> None:
    check = _web_pages()
    assert check.status == "warn"
    assert "riscv64" in check.detail
    assert check.fix


def test_doctor_names_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    check = _web_pages()
    assert (check.status, check.fix) == ("warn", "pip install 'treadle[web]'")
    assert check.detail.startswith("resiliparse is not installed")
