"""GPUs that a process has for itself, so that two runs on one machine do not meet in their memory.

A claim is a lease on a file in the cache, per machine and GPU: it ends with its process, however that ends. Documented
in docs/behaviour/engines.md, part "Devices".
"""

from __future__ import annotations

import functools
import re
import shutil
import socket
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from treadle.core.engines.cache import cache_root
from treadle.core.errors import RunError
from treadle.core.locks import FileLease, Holder, living_holder

_ANSWERS_S = 30.0


@dataclass(frozen=True, slots=True)
class Occupied:
    """A GPU that another process has."""

    gpu: str
    holder: Holder | None
    """None where it ended meanwhile."""

    def __str__(self) -> str:
        if self.holder is None:
            return f"GPU {self.gpu} was held by another process"
        doing = f" for {self.holder.doing}" if self.holder.doing else ""
        return f"GPU {self.gpu} is held by process {self.holder.pid}{doing} since {self.holder.started_at}"


class GpuClaims:
    """The GPUs that this process has."""

    def __init__(self) -> None:
        self._leases: dict[str, FileLease] = {}

    def take(self, gpus: Collection[str], doing: str) -> Occupied | None:
        """Claim all of these, or none and say which one is not free; what is held already stays."""
        paths = {gpu: path for gpu, path in claim_paths(set(gpus) - self._leases.keys()).items()}
        taken: dict[str, FileLease] = {}
        for gpu, path in sorted(paths.items()):
            try:
                taken[gpu] = FileLease(path, f"GPU {gpu}", doing=doing)
            except RunError:
                for lease in taken.values():
                    lease.release()
                return Occupied(gpu, living_holder(path))
        self._leases |= taken
        return None

    def keep(self, gpus: Collection[str]) -> None:
        """Give all others back."""
        for gpu in self._leases.keys() - set(gpus):
            self._leases.pop(gpu).release()


def occupied_gpus(gpus: Collection[str]) -> list[Occupied]:
    """Those of these GPUs that somebody has now."""
    holders = ((gpu, living_holder(path)) for gpu, path in claim_paths(gpus).items())
    return [Occupied(gpu, holder) for gpu, holder in holders if holder is not None]


def claim_paths(gpus: Collection[str]) -> dict[str, Path]:
    """The file of each GPU, which `CUDA_VISIBLE_DEVICES` names as here.

    A number may mean another GPU in another process (in a job of a cluster it does), so the driver's own id is taken
    where it tells one. The cache may be shared by machines.
    """
    if not gpus:
        return {}
    ids, folder = _driver_ids(), cache_root() / "devices" / _file_name(socket.gethostname())
    return {gpu: folder / f"gpu-{_file_name(ids.get(gpu, gpu))}" for gpu in gpus}


def _driver_ids() -> dict[str, str]:
    """Number of a GPU as this process counts them -> its UUID; empty where the driver's tool does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    try:
        return _ids_told_by(program)
    except (OSError, subprocess.SubprocessError):
        return {}


@functools.cache
def _ids_told_by(program: str) -> dict[str, str]:
    # Kept: who waits for a GPU asks each second.
    query = [program, "--query-gpu=index,uuid", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=_ANSWERS_S, check=True)
    pairs = (line.partition(",") for line in done.stdout.splitlines())
    return {number.strip(): uuid.strip() for number, _, uuid in pairs if uuid.strip()}


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)
