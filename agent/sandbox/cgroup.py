"""Limit the memory of sandboxes with cgroups, if this process may create some; unlike samples, they apply all the time.

Only cgroup v2 is used. The sandboxes' cgroups are created below the nearest ancestor of Treadle's own cgroup that
delegates the memory controller and that this user may write to. If a cgroup in between has a limit, no cgroups are
used: sandboxes would escape that limit. The guardian creates and removes a cgroup per sandbox (`guardian_worker`). See
Linux `Documentation/admin-guide/cgroup-v2.rst`.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from treadle.agent.sandbox.config import SandboxSettings

_MOUNT = Path("/sys/fs/cgroup")
_EXTRA_MB = 64
"""Allowance in MiB for the interpreter, bubblewrap and the kernel's own memory; `usage` enforces the exact limit."""
_EXTRA_PROCESSES = 4
_OWN_LIMITS = (
    *("memory.max", "memory.high", "memory.swap.max", "memory.swap.high", "memory.zswap.max", "pids.max"),
    *("cpu.max", "cpuset.cpus", "cpuset.mems", "io.max"),
)
"""Files of a cgroup, each of which sets a limit unless it is empty or begins with `max`."""


def limits(settings: SandboxSettings) -> dict[str, str]:
    """Return the content of the files of a sandbox's cgroup, by file name."""
    return {
        "memory.max": str((settings.memory_mb + _EXTRA_MB) * 1024 * 1024),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": str(settings.max_processes + _EXTRA_PROCESSES),
    }


@functools.cache
def parent() -> Path | None:
    """Return the folder in which cgroups for sandboxes can be made; None if there is none."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    return None if own is None else find_parent(_MOUNT, own)


def find_parent(mount: Path, own: str) -> Path | None:
    """Return what `parent` does, for a process in the cgroup `own` of a hierarchy at `mount`."""
    below = Path(own.lstrip("/"))
    for path in (below, *below.parents):
        folder = mount / path
        if {"memory", "pids"} <= set(_read(folder / "cgroup.subtree_control").split()):
            # Moving a process requires write access to the common ancestor's list of processes.
            writable = os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
            return folder if writable else None
        if any(_read(folder / name).split()[:1] not in ([], ["max"]) for name in _OWN_LIMITS):
            return None
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
