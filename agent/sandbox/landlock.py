"""The second level of isolation, for machines that refuse namespaces: Landlock, a strict filter, resource limits.

The program runs in the machine's own namespaces. It is isolated only by the rights that the guest drops before it reads
the program: access to files (Landlock), to other processes and sockets, and starting processes (the filter in
`seccomp`). This module decides on the host which rights remain; `guest.confine` drops the others.
`docs/behaviour/sandbox.md` lists what this level cannot hide. Rights and structures: landlock(7), Linux
`include/uapi/linux/landlock.h`.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from treadle.agent.sandbox.runtime import LIBRARIES, PACKAGES, PREFIX, Runtime
from treadle.agent.sandbox.seccomp import filter_program
from treadle.agent.sandbox.system_calls import OWN_PROCESS
from treadle.core.untrusted.landlock_rights import handled_rights

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_READABLE_DEVICES = ("/dev/random", "/dev/urandom")
_WRITABLE_DEVICES = ("/dev/null", "/dev/full")


def confinement(runtime: Runtime) -> dict[str, Any]:
    """Return the restrictions that the guest applies before it reads a program, as JSON-able data.

    Raises SandboxError if the machine is not x86-64 or its kernel has no Landlock.
    """
    return {
        "handled": handled_rights(),
        "rules": [list(rule) for rule in _rules(runtime)],
        "filter": filter_program(namespaces=False).hex(),
        "own_process": OWN_PROCESS,
        "modules": dict(_modules(runtime)),
        "shown_as": {str(path): place for place, path in _shown(runtime)},
    }


def executable(runtime: Runtime) -> str:
    """Return the path of the interpreter itself, not of the virtual environment around it."""
    return dict(runtime.binds)[runtime.executable]


@functools.cache
def _rules(runtime: Runtime) -> tuple[tuple[str, int], ...]:
    """Return the paths that the program may access with their rights, each including everything below it."""
    rules = [(path, _READ_FILE) for path in _READABLE_DEVICES]
    rules += [(path, _READ_FILE | _WRITE_FILE) for path in _WRITABLE_DEVICES]
    hidden = set(runtime.hidden)
    for place, source in runtime.binds:
        covered = {name for name in os.listdir(source) if f"{place}/{name}" in hidden} if Path(source).is_dir() else ()
        if covered:
            # Landlock cannot exclude a subfolder, so every other entry gets the rights; names stay visible.
            rules.append((source, _READ_DIR))
            rules += [_readable(entry) for entry in sorted(Path(source).iterdir()) if entry.name not in covered]
        else:
            rules.append(_readable(Path(source)))
    return tuple(rules)


def _readable(path: Path) -> tuple[str, int]:
    return str(path), _READ_FILE | _READ_DIR if path.is_dir() else _READ_FILE


def _modules(runtime: Runtime) -> list[tuple[str, str]]:
    """Return the importable names of the packages with their paths on this machine."""
    found = []
    for place, source in runtime.binds:
        if place.startswith(f"{PACKAGES}/"):
            name, _, suffix = place.removeprefix(f"{PACKAGES}/").partition(".")
            if not suffix or not Path(source).is_dir():
                found.append((name, source))
    return found


def _shown(runtime: Runtime) -> list[tuple[str, str]]:
    """Return (path in the sandbox, path on this machine) of the folders to rename in tracebacks."""
    folders = [(place, source) for place, source in runtime.binds if place.startswith((PACKAGES, PREFIX))]
    return [(place, source) for place, source in folders if not place.startswith(LIBRARIES)]
