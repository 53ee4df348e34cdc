"""The second level of isolation, for machines that refuse namespaces: Landlock, a strict filter, resource limits.

The program runs in the machine's own namespaces, so all that keeps it apart is what it gave up before it saw the
program: files (Landlock), other processes, sockets and further processes (the filter in `seccomp`). Here is what the
host decides of it; the guest carries it out. What this level cannot hide is listed in `docs/behaviour/sandbox.md`.
Rights and structures: landlock(7), Linux `include/uapi/linux/landlock.h`.
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
    """Return what the guest restricts before it takes a program, as JSON-able data. Raises SandboxError."""
    return {
        "handled": handled_rights(),
        "rules": [list(rule) for rule in _rules(runtime)],
        "filter": filter_program(namespaces=False).hex(),
        "own_process": OWN_PROCESS,
        "modules": dict(_modules(runtime)),
        "shown_as": {str(path): place for place, path in _shown(runtime)},
    }


def executable(runtime: Runtime) -> str:
    """Return the interpreter's own file, without the environment around it."""
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
            # Rights cannot be taken back further down, so they are given to each entry but those; names can be seen.
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
    """Places that tracebacks name instead of this machine's; folders only, without shared libraries."""
    folders = [(place, source) for place, source in runtime.binds if place.startswith((PACKAGES, PREFIX))]
    return [(place, source) for place, source in folders if not place.startswith(LIBRARIES)]
