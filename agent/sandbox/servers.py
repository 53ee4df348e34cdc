"""Build the command that starts a server, such as an MCP server, in a sandbox.

A server is chosen by the user and unlike a program of a model: it may need any interpreter, threads and much address
space. It gets the same namespaces, no capabilities and no further user namespace, and a filter that refuses the system
calls that containers refuse, rather than allowing a short list. It sees the system's programs, what its command needs
and what the configuration names; a scratch directory in memory; and no network unless the configuration opens it.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from treadle.agent.sandbox.bubblewrap import (
    GUEST,
    SCRATCH,
    Command,
    Launcher,
    make_launcher,
    namespaces,
    pipes,
    unused_uid,
)
from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.sandbox.runtime import LIBRARIES
from treadle.agent.sandbox.seccomp import server_filter_program
from treadle.core.errors import SandboxError

_GUEST = Path(__file__).with_name("server_guest.py")
_GUESTS_INSIDE = "/opt/treadle"
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
_NETWORK_FILES = (
    "/etc/gai.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
)
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_SCRATCH_MB = 256
_SHARED_MB = 64
_MAX_PROCESSES = 256


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Command and rights of one server.

    Attributes:
        command: Program, found on the search path, and its arguments.
        read: Existing absolute paths that it can read, at the same place.
        environment: Its environment besides `PATH`, `HOME`, `TMPDIR` and `LANG`.
        network: Whether it has the machine's network.
        memory_mb: What all its processes and its scratch directory may hold, in MiB.
        is_isolated: False starts it with the rights of this process.
        remedy: What a user can do if no sandbox can be made; it follows the error.
    """

    command: tuple[str, ...]
    read: tuple[Path, ...] = ()
    environment: Mapping[str, str] | None = None
    network: bool = False
    memory_mb: int = 2048
    is_isolated: bool = True
    remedy: str = ""


class ServerLauncher:
    """Builder of the commands that start one server. Its constructor blocks for about a second; raises SandboxError."""

    def __init__(self, settings: ServerSettings) -> None:
        program = shutil.which(settings.command[0])
        if program is None:
            raise SandboxError(f"command: there is no program {settings.command[0]!r}; install it, or give its path")
        self._settings = settings
        # Not resolved: the path tells an interpreter which virtual environment it belongs to.
        self._command = [os.path.abspath(program), *settings.command[1:]]
        self._launcher: Launcher | None = None
        if settings.is_isolated:
            limits = SandboxSettings(
                packages=(), memory_mb=settings.memory_mb, scratch_mb=_SCRATCH_MB, max_processes=_MAX_PROCESSES
            )
            try:
                self._launcher = make_launcher(limits)
            except SandboxError as error:
                raise SandboxError(f"{error}{settings.remedy}") from error
            self._binds, self._links = _binds(self._command[0], settings)

    @property
    def memory_bytes(self) -> int:
        """Limit on the memory of all its processes together, in bytes."""
        return self._settings.memory_mb * 1024 * 1024

    @contextmanager
    def command(self) -> Iterator[Command]:
        """Yield the command that starts the server once; see `Launcher.command`."""
        environment = {"PATH": f"{os.path.dirname(self._command[0])}:{_PATH}", "HOME": SCRATCH, "TMPDIR": SCRATCH}
        environment |= {"LANG": "C.UTF-8"}
        if self._launcher is None:
            own = {"PATH": os.environ.get("PATH", _PATH), "HOME": os.environ.get("HOME", "/"), "TMPDIR": "/tmp"}
            yield Command(self._command, environment | own | dict(self._settings.environment or {}))
            return
        arguments = self._isolated(self._launcher)
        with pipes(server_filter_program()) as (ends, lifeline, info):
            yield Command(
                arguments,
                environment | dict(self._settings.environment or {}),
                ends,
                lifeline,
                info,
                cgroup=self._launcher.cgroup(),
            )

    def _isolated(self, launcher: Launcher) -> list[str]:
        assert launcher.runtime is not None
        uid = unused_uid()
        spec = {"uid": uid, "command": self._command, "max_processes": _MAX_PROCESSES}
        return [
            str(launcher.bwrap),
            *namespaces(as_root=uid is not None, network=self._settings.network),
            *("--seccomp", "3", "--sync-fd", "4", "--info-fd", "5"),
            # For the guest's interpreter. Other variables are not passed as arguments, which all users could read.
            *("--setenv", "LD_LIBRARY_PATH", LIBRARIES),
            *self._file_system(launcher),
            *("--", launcher.runtime.executable, "-I", "-S", "-B", "-X", "utf8"),
            *(f"{_GUESTS_INSIDE}/{_GUEST.name}", json.dumps(spec)),
        ]

    def _file_system(self, launcher: Launcher) -> list[str]:
        assert launcher.runtime is not None
        arguments = ["--dev", "/dev"]
        if _can_mount_proc(launcher.bwrap):
            arguments += ["--proc", "/proc"]
        for folder in _SYSTEM_FOLDERS:
            if os.path.islink(folder):
                arguments += ["--symlink", os.readlink(folder), folder]
            elif os.path.isdir(folder):
                arguments += ["--ro-bind", folder, folder]
        size = str(_SCRATCH_MB * 1024 * 1024)
        for folder in ("/tmp", SCRATCH):
            arguments += ["--perms", "1777", "--size", size, "--tmpfs", folder]
        # The memory of files here is not counted with the scratch directory's.
        arguments += ["--perms", "1777", "--size", str(_SHARED_MB * 1024 * 1024), "--tmpfs", "/dev/shm"]
        arguments += ["--remount-ro", "/dev"]
        files = (*_SYSTEM_FILES, *(_NETWORK_FILES if self._settings.network else ()))
        inside = [
            *((place, place) for place in files if os.path.exists(place)),
            *((place, source) for place, source in launcher.runtime.binds if not place.startswith("/lib")),
            *((f"{_GUESTS_INSIDE}/{file.name}", str(file)) for file in (GUEST, _GUEST)),
            *((str(path), str(path)) for path in self._binds),
        ]
        # bubblewrap makes missing folders readable for its own user only.
        places = (*(place for place, _ in inside), *map(str, self._links))
        folders = {str(parent) for place in places for parent in Path(place).parents} - {"/", "/tmp", SCRATCH}
        for folder in sorted(folders):
            if not any(Path(folder).is_relative_to(other) for other in _SYSTEM_FOLDERS):
                arguments += ["--perms", "0755", "--dir", folder]
        for place, source in sorted(inside, key=lambda bind: len(Path(bind[0]).parts)):
            arguments += ["--ro-bind", source, place]
        for link in self._links:
            arguments += ["--symlink", os.readlink(link), str(link)]
        return [*arguments, "--chdir", SCRATCH, "--remount-ro", "/"]


def _binds(program: str, settings: ServerSettings) -> tuple[list[Path], list[Path]]:
    """Return what a server sees outside of the system's folders: paths with their content, and links to them.

    Raises SandboxError if one is missing.
    """
    for path in settings.read:
        if not path.exists():
            raise SandboxError(f"read: there is no {path}")
        if path == Path("/"):
            raise SandboxError("read: / would open all files of this machine; name folders")
    found, links = [*settings.read], list[Path]()
    for start in (Path(program), *_python_places(Path(program), found)):
        place = start
        for _ in range(40):  # as many links as the kernel follows
            if not any(place.is_relative_to(path) for path in (*found, *map(Path, _SYSTEM_FOLDERS))):
                if _is_python(place.parent.parent):
                    found.append(place.parent.parent)
                elif place.is_symlink() and place != Path(program):
                    # The link is in a folder such as ~/.local/bin, of which the server sees nothing else.
                    links.append(place)
                else:
                    raise SandboxError(f"command: {place} is not visible in the sandbox; add its folder to `read`")
            if not place.is_symlink():
                break
            place = Path(os.path.normpath(place.parent / os.readlink(place)))
    kept = [path for path in found if not any(path != other and path.is_relative_to(other) for other in found)]
    return kept, [link for link in dict.fromkeys(links) if not any(link.is_relative_to(path) for path in kept)]


def _python_places(program: Path, found: list[Path]) -> list[Path]:
    """Return the interpreters that the virtual environment of `program` needs, and add its folder to `found`.

    Returns nothing if the program is in no virtual environment.
    """
    folder = program.parent.parent
    try:
        lines = (folder / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return []
    found.append(folder)
    facts = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
    real = Path(os.path.realpath(program))
    names = (real.name, program.name, "python3")
    return [real, *[path for name in names if "home" in facts and (path := Path(facts["home"], name)).exists()][:1]]


def _is_python(folder: Path) -> bool:
    """Return whether a folder is an installation of Python."""
    return folder != Path("/") and any(folder.glob("lib*/python3*/os.py"))


@functools.cache
def _can_mount_proc(bwrap: Path | None) -> bool:
    """Return whether a sandbox can have its own /proc; some containers forbid it, and most servers do without."""
    command = [str(bwrap), "--ro-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
