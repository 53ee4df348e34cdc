"""The second level of isolation, for machines that refuse namespaces: Landlock, a strict filter, resource limits.

The program runs in the machine's own namespaces, so all that keeps it apart is what it gave up before it saw the
program: files (Landlock), other processes, sockets and further processes (the filter in `seccomp`). Here is what the
host decides of it; the guest carries it out. What this level cannot hide is listed in `docs/behaviour/sandbox.md`.
Rights and structures: landlock(7), Linux `include/uapi/linux/landlock.h`.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from pathlib import Path
from typing import Any

from treadle.agent.sandbox.runtime import LIBRARIES, PACKAGES, PREFIX, Runtime
from treadle.agent.sandbox.seccomp import OWN_PROCESS, filter_program
from treadle.core.errors import SandboxError

_CREATE_RULESET = 444
_GET_VERSION = 1
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_READABLE_DEVICES = ("/dev/random", "/dev/urandom")
_WRITABLE_DEVICES = ("/dev/null", "/dev/zero", "/dev/full")
_FILE_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 5: 0xFFFF}
"""All rights to files that are known from a version on: moving between folders, truncating, device commands."""
_TCP_RIGHTS, _SCOPES = 0b11, 0b11
_NO_LANDLOCK = {
    errno.ENOSYS: "the kernel is older than Linux 5.13, was built without it, or a container's filter hides it",
    errno.EOPNOTSUPP: "it is switched off at boot: add `landlock` to the kernel parameter `lsm=`",
}


def version() -> int:
    """The kernel's version of Landlock; raises SandboxError where there is none."""
    found = int(_libc().syscall(_CREATE_RULESET, None, 0, _GET_VERSION))
    if found >= 1:
        return found
    number = ctypes.get_errno()
    reason = _NO_LANDLOCK.get(number, os.strerror(number))
    raise SandboxError(f'programs cannot be isolated with kind = "landlock" here: no Landlock ({reason})')


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def confinement(runtime: Runtime) -> dict[str, Any]:
    """What the guest has to do to itself before it takes a program, as JSON-able data; raises SandboxError."""
    return {
        "handled": handled_rights(),
        "rules": [list(rule) for rule in _rules(runtime)],
        "filter": filter_program(namespaces=False).hex(),
        "own_process": OWN_PROCESS,
        "modules": dict(_modules(runtime)),
        "shown_as": {str(path): place for place, path in _shown(runtime)},
    }


def handled_rights() -> list[int]:
    """All that this kernel's Landlock can take away: rights to files, to TCP ports, scopes; raises SandboxError."""
    known = version()
    rights = _FILE_RIGHTS[max(since for since in _FILE_RIGHTS if since <= known)]
    return [rights, _TCP_RIGHTS if known >= 4 else 0, _SCOPES if known >= 6 else 0]


def executable(runtime: Runtime) -> str:
    """The interpreter's own file, without the environment around it."""
    return dict(runtime.binds)[runtime.executable]


@functools.cache
def _rules(runtime: Runtime) -> tuple[tuple[str, int], ...]:
    """What the program may reach: path and rights, each with all that lies below it."""
    rules = [(path, _READ_FILE) for path in _READABLE_DEVICES]
    rules += [(path, _READ_FILE | _WRITE_FILE) for path in _WRITABLE_DEVICES]
    hidden = set(runtime.hidden)
    for place, source in runtime.binds:
        covered = {name for name in os.listdir(source) if f"{place}/{name}" in hidden} if Path(source).is_dir() else ()
        if covered:
            # Rights cannot be taken back further down, so they are given to each entry but those; names can be seen.
            rules.append((source, _READ_DIR))
            rules += [_readable(entry) for entry in sorted(Path(source).iterdir()) if entry.name not in covered]
        else:
            rules.append(_readable(Path(source)))
    return tuple(rules)


def _readable(path: Path) -> tuple[str, int]:
    return str(path), _READ_FILE | _READ_DIR if path.is_dir() else _READ_FILE


def _modules(runtime: Runtime) -> list[tuple[str, str]]:
    """Importable names of the packages, with their place on this machine."""
    found = []
    for place, source in runtime.binds:
        if place.startswith(f"{PACKAGES}/"):
            name, _, suffix = place.removeprefix(f"{PACKAGES}/").partition(".")
            if not suffix or not Path(source).is_dir():
                found.append((name, source))
    return found


def _shown(runtime: Runtime) -> list[tuple[str, str]]:
    """Places that tracebacks name instead of this machine's; folders only, without shared libraries."""
    folders = [(place, source) for place, source in runtime.binds if place.startswith((PACKAGES, PREFIX))]
    return [(place, source) for place, source in folders if not place.startswith(LIBRARIES)]
