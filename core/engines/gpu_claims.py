"""Claim GPUs for a process, so that two runs on one machine do not compete for their memory.

A claim is a lease on a file in the cache, per machine and GPU: it ends with its process, however that ends. Documented
in docs/behaviour/engines.md, part "Devices".
"""

from __future__ import annotations

import contextlib
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
from treadle.core.store.locks import FileLease, Holder, live_holder

_QUERY_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class OccupiedGpu:
    """GPU that another process holds."""

    gpu: str
    holder: Holder | None
    """Process that holds the GPU; None if it ended meanwhile."""

    def __str__(self) -> str:
        if self.holder is None:
            return f"GPU {self.gpu} was held by another process"
        doing = f" for {self.holder.doing}" if self.holder.doing else ""
        return f"GPU {self.gpu} is held by process {self.holder.pid}{doing} since {self.holder.started_at}"


class GpuClaims:
    """GPUs that this process holds."""

    def __init__(self) -> None:
        self._leases: dict[str, FileLease] = {}

    def take(self, gpus: Collection[str], doing: str) -> OccupiedGpu | None:
        """Claim all of these GPUs; if one is not free, claim none and return that one. Earlier claims stay.

        Raises StorageError, and then claims none, if the lock file of one cannot be written.
        """
        paths = {gpu: path for gpu, path in claim_paths(set(gpus) - self._leases.keys()).items()}
        with contextlib.ExitStack() as releases:
            taken: dict[str, FileLease] = {}
            for gpu, path in sorted(paths.items()):
                try:
                    taken[gpu] = FileLease(path, f"GPU {gpu}", doing=doing)
                except RunError:
                    return OccupiedGpu(gpu, live_holder(path))
                releases.callback(taken[gpu].release)
            releases.pop_all()
        self._leases |= taken
        return None

    def keep(self, gpus: Collection[str]) -> None:
        """Release all GPUs but these."""
        for gpu in self._leases.keys() - set(gpus):
            self._leases.pop(gpu).release()


def occupied_gpus(gpus: Collection[str]) -> list[OccupiedGpu]:
    """Return which of these GPUs a process holds now."""
    holders = ((gpu, live_holder(path)) for gpu, path in claim_paths(gpus).items())
    return [OccupiedGpu(gpu, holder) for gpu, holder in holders if holder is not None]


def claim_paths(gpus: Collection[str]) -> dict[str, Path]:
    """Return the lock file of each GPU; `gpus` are named as in `CUDA_VISIBLE_DEVICES`.

    An index may mean another GPU in another process (as in jobs of a cluster), so the driver's UUID is used if it is
    available. Paths contain the host name, because machines may share the cache.
    """
    if not gpus:
        return {}
    ids, folder = _driver_ids(), cache_root() / "devices" / _file_name(socket.gethostname())
    return {gpu: folder / f"gpu-{_file_name(ids.get(gpu, gpu))}" for gpu in gpus}


def _driver_ids() -> dict[str, str]:
    """Return the UUID of each GPU by its index in nvidia-smi; empty if that does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    try:
        return _ids_from(program)
    except (OSError, subprocess.SubprocessError):
        return {}


@functools.cache
def _ids_from(program: str) -> dict[str, str]:
    # Cached: a process that waits for a GPU asks every second.
    query = [program, "--query-gpu=index,uuid", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=True)
    pairs = (line.partition(",") for line in done.stdout.splitlines())
    return {number.strip(): uuid.strip() for number, _, uuid in pairs if uuid.strip()}


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)
