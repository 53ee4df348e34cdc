"""Define how programs written by a model are confined: kind of isolation, limits, packages that they may import."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from treadle.core.config import Operational, Section


class SandboxSettings(Section):
    """Isolation and limits of one program. The wall-clock limit belongs to the tool that runs it."""

    kind: Literal["bubblewrap", "landlock", "none"] = "bubblewrap"
    """`landlock` is the weaker level for machines that refuse namespaces: programs cannot write files or start others,
    and see more of the machine. `none` runs programs with your own rights, network and files: use it
    only on a machine that may be lost."""
    packages: tuple[str, ...] = ("numpy", "sympy")
    """Import names that programs may use besides the standard library. The first is imported before a program arrives,
    the others if there is time."""
    memory_mb: int = Field(default=1024, ge=64)
    """Address space of each process, and what all of them and the scratch directory may hold together, in MiB."""
    scratch_mb: int = Field(default=64, ge=1)
    """Size of the scratch directory (held in memory) and of the largest file, in MiB."""
    max_processes: int = Field(default=16, ge=1)
    """Processes and threads alive at once in one sandbox."""
    cpu_s: int | None = Field(default=None, ge=1)
    """CPU seconds of each process; unset: the wall-clock limit of the call, plus one."""
    max_output_mb: int = Field(default=16, ge=1)
    """A program that prints more than this many MiB is killed."""
    interpreter: Operational[Path | None] = None
    """Python that runs the programs; unset: the one that runs Treadle. It must hold `packages`."""
    pool_size: Operational[int] = Field(default=4, ge=1)
    """Sandboxes kept warm."""
    max_running: Operational[int] = Field(default=8, ge=1)
    """Programs running at once in one process of Treadle; further ones wait."""
    start_timeout_s: Operational[float] = Field(default=60.0, gt=0)
    """Time given to a sandbox to become ready, imports included."""
