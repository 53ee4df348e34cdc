"""Keep workspaces in folders of the host, and run each command in a bubblewrap sandbox of its own.

Files are only touched by programs inside a sandbox, so that no link in a workspace leads Treadle anywhere.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging
import math
import os
import shlex
import signal
from dataclasses import replace
from pathlib import Path

from treadle.agent.sandbox.bubblewrap import (
    PROGRAMS,
    Launcher,
    WritableFolder,
    describe,
    make_launcher,
    uid_for,
)
from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.sandbox.folder_usage import FolderUsage, FolderWatch, folder_limit, is_disk_full, usage_of_folder
from treadle.agent.sandbox.guardian import Guardian
from treadle.agent.sandbox.leftovers import end_leftovers
from treadle.agent.sandbox.process import Program, ProgramResult, SandboxProcess
from treadle.agent.sandbox.runtime import LIBRARIES, PACKAGES, PREFIX
from treadle.agent.sandbox.usage import UsageWatch
from treadle.agent.tools.workspace.backend import FOLDER, SCRATCH, CommandResult, Ending
from treadle.agent.tools.workspace.lease import Lease, remove
from treadle.core.errors import ToolError
from treadle.core.work_clock import work_clock

_log = logging.getLogger(__name__)

_SHELLS = ("/bin/bash", "/bin/sh")
ENVIRONMENT = {
    "PATH": f"{PREFIX}/bin:{PROGRAMS}:/usr/bin:/bin",
    "HOME": FOLDER,
    "TMPDIR": SCRATCH,
    "LC_ALL": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "LD_LIBRARY_PATH": LIBRARIES,
    "PYTHONPATH": PACKAGES,
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
# It is started in the scratch directory, so that its imports find no file of the workspace.
_START = """
import base64, os, signal
given = base64.b64decode({stdin!r})
if given:
    file = os.open({scratch!r}, os.O_TMPFILE | os.O_RDWR)
    while given:
        given = given[os.write(file, given):]
    os.lseek(file, 0, os.SEEK_SET)
    os.dup2(file, 0)
os.dup2(1, 2)
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
os.chdir({folder!r})
os.execve({shell!r}, [{shell!r}, "-c", {command!r}], {environment!r})
"""


class SandboxedWorkspaces:
    """Workspaces of one process; see `Workspaces`."""

    def __init__(self, settings: SandboxSettings, size_mb: int, base: Path | None) -> None:
        self._settings = settings
        self._size_bytes = size_mb * 1024 * 1024
        self._lease = Lease(base)
        self._launcher: Launcher | None = None
        self._guardian = Guardian()
        self._usage = UsageWatch()
        self._running = asyncio.Semaphore(settings.max_running)
        self._numbers = itertools.count()

    async def __aenter__(self) -> SandboxedWorkspaces:
        """Find bubblewrap and remove what ended processes left. Raises SandboxError and ToolError."""
        self._launcher = await asyncio.to_thread(make_launcher, self._settings)
        await asyncio.to_thread(end_leftovers)
        if num_removed := await asyncio.to_thread(self._lease.take):
            _log.info("removed the workspaces of %d processes that have ended", num_removed)
        await asyncio.to_thread(self._write_programs)
        return self

    @property
    def _programs(self) -> Path:
        return self._lease.folder / "bin"

    def _write_programs(self) -> None:
        """Write a program for each package, such as `pytest`: the installed ones start Python by its host path."""
        self._programs.mkdir()
        for name in self._settings.packages:
            path = self._programs / name
            path.write_text(f'#!/bin/sh\nexec python -m {shlex.quote(name)} "$@"\n')
            path.chmod(0o755)
        self._programs.chmod(0o755)

    async def __aexit__(self, *exc: object) -> None:
        """End all processes and delete all workspaces."""
        await asyncio.to_thread(self._guardian.close)
        await asyncio.to_thread(self._usage.close)
        await asyncio.to_thread(self._lease.release)

    def facts(self) -> dict[str, str]:
        """Return isolation, Python and package versions."""
        return describe(self._settings)

    async def open(self, seed: int) -> SandboxedWorkspace:
        """Return an empty workspace."""
        path, uid = self._lease.folder / str(next(self._numbers)), uid_for(seed)
        try:
            path.mkdir(mode=0o755)
            if uid is not None:
                os.chown(path, uid, uid)
        except OSError as error:
            raise ToolError(f"no workspace can be made in {self._lease.folder}: {error}") from error
        return SandboxedWorkspace(self, WritableFolder(path, uid, self._programs), self._size_bytes)

    async def run(self, program: str, folder: WritableFolder, limit: FolderUsage, time_limit_s: float) -> ProgramResult:
        """Run a Python program in a new sandbox with the folder."""
        assert self._launcher is not None, "use workspaces inside `async with`"
        launcher = replace(self._launcher, folder=folder)
        clock = work_clock()
        with clock.hold():
            await self._running.acquire()
        try:
            with clock.hold():
                timeout_s = self._settings.start_timeout_s
                sandbox = await SandboxProcess.start(self._guardian, launcher, timeout_s, eager=False)
            cpu_s = self._settings.cpu_s or math.ceil(time_limit_s) + 1
            watch = FolderWatch(self._usage, folder.path, limit)
            try:
                return await sandbox.run(Program(program), watch, time_limit_s=time_limit_s, cpu_s=cpu_s)
            except asyncio.CancelledError:
                await asyncio.shield(sandbox.discard())
                raise
        finally:
            self._running.release()


class SandboxedWorkspace:
    """Folder of the host; see `Workspace`."""

    def __init__(
        self, owner: SandboxedWorkspaces, folder: WritableFolder, size_bytes: int, *, is_view: bool = False
    ) -> None:
        """Use a folder; with `is_view`, closing the workspace does not delete the folder."""
        self._owner = owner
        self._folder = folder
        self._size_bytes = size_bytes
        self._is_view = is_view

    async def run(self, command: str, *, time_limit_s: float, stdin: bytes = b"") -> CommandResult:
        """Run a command in a new sandbox."""
        self._check_disk()
        used = await self._used()
        limit = folder_limit(self._size_bytes, used)
        result = await self._owner.run(_program(command, stdin), self._folder, limit, time_limit_s)
        self._check_disk()
        ending = _ending(result)
        # A short command can end between two samples.
        if ending == "exited" and not used.is_too_deep and (excess := (await self._used()).excess(limit)) is not None:
            ending = excess
        return CommandResult(
            ending, result.exit_code if ending == "exited" else None, result.stdout + result.stderr, result.seconds
        )

    async def _used(self) -> FolderUsage:
        return await asyncio.to_thread(usage_of_folder, self._folder.path)

    def _check_disk(self) -> None:
        """Raise ToolError if the disk is full: whatever a command reports then is not the agent's fault."""
        if is_disk_full(self._folder.path):
            error = ToolError(
                f"the disk with the workspaces ({self._folder.path.parents[2]}) is full or gone; free space, or set "
                "`folder` of the workspace"
            )
            error.retryable = True
            raise error

    async def fresh(self) -> SandboxedWorkspace:
        """Return a view of the same folder with twice the size limit; each command has a sandbox of its own anyway."""
        return SandboxedWorkspace(self._owner, self._folder, 2 * self._size_bytes, is_view=True)

    async def close(self) -> None:
        """Delete the folder."""
        if not self._is_view:
            await asyncio.to_thread(remove, self._folder.path)


def _program(command: str, stdin: bytes) -> str:
    shell = next((shell for shell in _SHELLS if os.access(shell, os.X_OK)), _SHELLS[-1])
    return _START.format(
        stdin=base64.b64encode(stdin).decode(),
        scratch=SCRATCH,
        folder=FOLDER,
        shell=shell,
        command=command.encode("utf-8", "replace").decode(),
        environment=ENVIRONMENT,
    )


def _ending(result: ProgramResult) -> Ending:
    if result.timed_out or result.exit_code == 128 + signal.SIGXCPU:
        return "timeout"
    if result.output_exceeded:
        return "output"
    return result.excess or "exited"
