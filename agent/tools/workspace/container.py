"""Keep each workspace in a container of Podman or Docker, through the engine's command line.

A container has no network (unless it is opened), no capabilities, a read-only image, and limits of memory, processes
and processors; only the workspace and `/tmp` can be written, both in memory. Its label names the lock file of the
process that made it, so that a later process on the same machine removes the containers of those that have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.sandbox.process import Capture
from treadle.agent.tools.workspace.backend import FOLDER, SCRATCH, CommandResult, Ending, UnusableWorkspace
from treadle.agent.tools.workspace.lease import Lease, is_held
from treadle.core.errors import ToolError
from treadle.core.steady_loop import wait_for_first
from treadle.core.work_clock import work_clock

_log = logging.getLogger(__name__)

ENGINES = ("podman", "docker")
_OWNER, _HOST = "treadle.workspace.owner", "treadle.workspace.host"
_ENGINE_S = 120.0
"""Time limit of one command of the engine itself."""
_END_S = 15.0
_OVERHEAD_MB = 32
"""Size in MiB that an archive of a workspace may have beyond the size of the workspace, for names of files."""
_ENVIRONMENT = {
    "HOME": FOLDER,
    "LC_ALL": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}
# The image's bash if it has one, as in sandboxes.
_SHELL = 'if command -v bash >/dev/null; then exec bash -c "$0"; else exec sh -c "$0"; fi 2>&1'
_KILLED = 128 + 9


def find_engine(name: str) -> str:
    """Return the program of an engine, `auto` for the first that works; raise ToolError if there is none.

    Blocks for as long as the engine takes to answer.
    """
    import subprocess

    tried = []
    for engine in ENGINES if name == "auto" else (name,):
        program = shutil.which(engine)
        if program is None:
            tried.append(f"{engine} is not installed")
            continue
        try:
            done = subprocess.run([program, "info"], capture_output=True, timeout=_ENGINE_S, check=False)
        except subprocess.TimeoutExpired:
            tried.append(f"`{engine} info` does not answer")
            continue
        if done.returncode == 0:
            return program
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        tried.append(f"`{engine} info` fails: {last[:200]}")
    raise ToolError(f"workspaces in containers need Podman or Docker: {'; '.join(tried)}")


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """Image, engine and limits of containers; see the keys of `WorkspaceSettings`."""

    image: str
    engine: str
    network: bool
    cpus: float
    size_mb: int
    limits: SandboxSettings


class ContainerWorkspaces:
    """Containers of one process; see `Workspaces`."""

    def __init__(self, options: ContainerOptions, base: Path | None) -> None:
        self.options = options
        self._program = ""
        self._lease = Lease(base)
        self._image_id = ""
        self.running = asyncio.Semaphore(options.limits.max_running)

    async def __aenter__(self) -> ContainerWorkspaces:
        """Find the engine and the image, and remove the containers of ended processes. Raises ToolError."""
        self._program = await asyncio.to_thread(find_engine, self.options.engine)
        await asyncio.to_thread(self._lease.take)
        try:
            image = self.options.image
            code, output = await self.engine("image", "inspect", "--format", "{{.Id}}", image)
            if code != 0:
                name = Path(self._program).name
                raise ToolError(f"there is no image {image!r} on this machine: run `{name} pull {image}`")
            self._image_id = output.decode(errors="replace").strip()
            await self._remove_leftovers()
        except BaseException:
            await asyncio.to_thread(self._lease.release)
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Remove all containers of this process."""
        await self._remove(await self._ids(f"label={_OWNER}={self._lease.lock_file}"))
        await asyncio.to_thread(self._lease.release)

    def facts(self) -> dict[str, str]:
        """Return the engine and the id of the image."""
        return {"isolation": Path(self._program).name, "image": self._image_id}

    async def open(self, seed: int) -> ContainerWorkspace:
        """Start a container with an empty workspace."""
        return await self.start(self.options.size_mb)

    async def start(self, size_mb: int) -> ContainerWorkspace:
        """Start a container whose workspace has this size."""
        options, limits = self.options, self.options.limits
        # The two folders are in memory and count towards the container's limit.
        memory = f"{limits.memory_mb + size_mb + limits.scratch_mb}m"
        variables = [word for name, value in _ENVIRONMENT.items() for word in ("--env", f"{name}={value}")]
        code, output = await self.engine(
            *("run", "--detach", "--pull", "never", "--hostname", "sandbox", "--read-only"),
            *("--label", f"{_OWNER}={self._lease.lock_file}", "--label", f"{_HOST}={platform.node()}"),
            *("--network", "bridge" if options.network else "none"),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--memory", memory, "--memory-swap", memory, "--pids-limit", str(limits.max_processes + 8)),
            *("--cpus", str(options.cpus), "--ulimit", "core=0", *variables),
            *("--tmpfs", f"{FOLDER}:rw,exec,nosuid,nodev,mode=1777,size={size_mb}m"),
            *("--tmpfs", f"{SCRATCH}:rw,exec,nosuid,nodev,mode=1777,size={limits.scratch_mb}m"),
            *("--workdir", FOLDER, "--entrypoint", "sh", options.image, "-c", "while :; do sleep 3600; done"),
        )
        if code != 0:
            raise _unavailable(f"a container cannot be started: {_last_line(output)}")
        return ContainerWorkspace(self, output.decode(errors="replace").strip().rpartition("\n")[2])

    async def engine(self, *words: str, stdin: bytes = b"") -> tuple[int, bytes]:
        """Run a command of the engine; return its exit code and output, errors included only if it fails."""
        try:
            process = await asyncio.create_subprocess_exec(
                self._program,
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise _unavailable(f"{self._program} cannot be started: {error}") from error
        try:
            output, errors = await asyncio.wait_for(process.communicate(stdin), _ENGINE_S)
        except TimeoutError:
            raise _unavailable(f"{self._program} {words[0]} does not answer") from None
        finally:
            if process.returncode is None:
                process.kill()
        code = process.returncode or 0
        return code, output if code == 0 else output + errors

    async def exec(
        self, container: str, command: str, *, time_limit_s: float, stdin: bytes
    ) -> tuple[Ending, int | None, Capture, float]:
        """Run a command in a container until it ends or exceeds its time or its output; end all its processes."""
        loop = asyncio.get_running_loop()
        output = Capture(self.options.limits.max_output_mb * 1024 * 1024)
        read_end, write_end = os.pipe()
        transport, _ = await loop.connect_read_pipe(lambda: output, os.fdopen(read_end, "rb", 0))
        words = ("exec", "--interactive", "--workdir", FOLDER, container, "sh", "-c", _SHELL, command)
        try:
            process = await asyncio.create_subprocess_exec(
                self._program, *words, stdin=asyncio.subprocess.PIPE, stdout=write_end, stderr=asyncio.subprocess.STDOUT
            )
        except OSError as error:
            transport.close()
            raise _unavailable(f"{self._program} cannot be started: {error}") from error
        finally:
            os.close(write_end)
        talk = asyncio.ensure_future(process.communicate(stdin))
        flood = asyncio.ensure_future(output.output_exceeded.wait())
        try:
            seconds = await wait_for_first({talk, flood}, time_limit_s)
            ended = talk.done()
        finally:
            flood.cancel()
            # This ends background processes too, but not the container's first process.
            await asyncio.shield(self._end_processes(container))
            if process.returncode is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(talk), _END_S)
            if process.returncode is None:
                process.kill()
                await talk
            await asyncio.wait({output.ended}, timeout=_END_S)
            transport.close()
        if flood.done() and not flood.cancelled():
            return "output", None, output, seconds
        return ("exited", process.returncode, output, seconds) if ended else ("timeout", None, output, seconds)

    async def _end_processes(self, container: str) -> None:
        await self.engine("exec", container, "sh", "-c", "kill -9 -1")

    async def _ids(self, *filters: str) -> list[str]:
        words = [word for one in filters for word in ("--filter", one)]
        code, output = await self.engine("ps", "--all", "--quiet", "--no-trunc", *words)
        return output.decode(errors="replace").split() if code == 0 else []

    async def _remove_leftovers(self) -> None:
        dead = []
        for container in await self._ids(f"label={_OWNER}", f"label={_HOST}={platform.node()}"):
            label = f'{{{{index .Config.Labels "{_OWNER}"}}}}'
            code, output = await self.engine("inspect", "--format", label, container)
            owner = output.decode(errors="replace").strip()
            # Check only lock files of this user; those of other users may not be readable.
            if code == 0 and Path(owner).parent == self._lease.lock_file.parent and not is_held(Path(owner)):
                dead.append(container)
        await self._remove(dead)
        if dead:
            _log.info("removed %d containers of processes that have ended", len(dead))

    async def _remove(self, containers: Sequence[str]) -> None:
        if containers:
            code, output = await self.engine("rm", "--force", "--volumes", *containers)
            if code != 0:
                _log.warning("containers cannot be removed: %s", _last_line(output))

    async def remove(self, container: str) -> None:
        """Remove a container."""
        await self._remove([container])


class ContainerWorkspace:
    """Container with a workspace; see `Workspace`."""

    def __init__(self, owner: ContainerWorkspaces, container: str) -> None:
        self._owner = owner
        self._container = container

    async def run(self, command: str, *, time_limit_s: float, stdin: bytes = b"") -> CommandResult:
        """Run a command in the container."""
        with work_clock().hold():
            await self._owner.running.acquire()
        try:
            ending, code, output, seconds = await self._owner.exec(
                self._container, command, time_limit_s=time_limit_s, stdin=stdin
            )
        finally:
            self._owner.running.release()
        if ending == "exited" and code != 0:
            await self._check_alive()
        if ending == "exited" and code == _KILLED and await self._ran_out_of_memory():
            ending, code = "memory", None
        return CommandResult(ending, code, output.text(), seconds)

    async def _check_alive(self) -> None:
        """Raise ToolError if the container was ended from outside; no command of the agent can end it."""
        code, output = await self._owner.engine("inspect", "--format", "{{.State.Running}}", self._container)
        if code != 0 or output.strip() != b"true":
            raise _unavailable("a container was lost: it was ended from outside")

    async def _ran_out_of_memory(self) -> bool:
        """Return whether the kernel killed a process of the container for lack of memory, as far as the engine says."""
        events = "cat /sys/fs/cgroup/memory.events 2>/dev/null"
        _, output = await self._owner.engine("exec", self._container, "sh", "-c", events)
        return any(line.split()[:1] == [b"oom_kill"] and line.split()[1:] != [b"0"] for line in output.splitlines())

    async def fresh(self) -> ContainerWorkspace:
        """Return another container of the same image with a copy of the workspace and twice its size.

        A state that the agent left, such as folders without access rights, sparse files or endless processes, never
        raises ToolError, which would keep the rollout pending.
        """
        size_mb = 2 * self._owner.options.size_mb
        limit = (size_mb + _OVERHEAD_MB) * 1024 * 1024
        pack = f"chmod -R u+rwX . 2>/dev/null; tar -cf - . | head -c {limit}"
        code, archive = await self._owner.engine("exec", "--workdir", FOLDER, self._container, "sh", "-c", pack)
        if code != 0 or len(archive) >= limit:
            await self._check_alive()
            raise UnusableWorkspace(f"it cannot be packed in {limit} bytes")
        copy = await self._owner.start(size_mb)
        try:
            code, _ = await self._owner.engine(
                "exec", "--interactive", copy._container, "tar", "-xof", "-", "-C", FOLDER, stdin=archive
            )
            if code != 0:
                await copy._check_alive()
                raise UnusableWorkspace("its copy does not fit")
        except BaseException:
            await asyncio.shield(copy.close())
            raise
        return copy

    async def close(self) -> None:
        """Remove the container."""
        await self._owner.remove(self._container)


def _unavailable(what: str) -> ToolError:
    error = ToolError(f"workspace: {what}")
    error.retryable = True
    return error


def _last_line(output: bytes) -> str:
    return output.decode(errors="replace").strip().rpartition("\n")[2][:300]
