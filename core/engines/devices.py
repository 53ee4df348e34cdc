"""Find the GPUs of this machine, and select those that a child process sees.

A configuration names GPUs by their index among the visible ones: those in `CUDA_VISIBLE_DEVICES`, else all, in the
order of `nvidia-smi`. Documented in docs/behaviour/engines.md, part "Devices".
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from treadle.core.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_GPUS = Path("/proc/driver/nvidia/gpus")
"""Folder of the driver, with a subfolder per GPU of the machine."""


def visible_gpus() -> tuple[str, ...] | None:
    """Return the visible GPUs as `CUDA_VISIBLE_DEVICES` names them; None if they cannot be counted."""
    given = os.environ.get(VISIBLE)
    if given is not None:
        return tuple(part.strip() for part in given.split(",") if part.strip())
    return tuple(str(place) for place, _ in enumerate(_GPUS.iterdir())) if _GPUS.is_dir() else None


def chosen_gpus(devices: Sequence[int]) -> tuple[str, ...]:
    """Return the GPUs at these indices, or all if no index is given, as `CUDA_VISIBLE_DEVICES` names them.

    If GPUs cannot be counted, indices are used unchanged, and without any the first GPU. Raise ConfigError for an
    index at which there is no GPU.
    """
    seen = visible_gpus()
    if seen is None:
        return tuple(str(place) for place in devices or (0,))
    if wrong := [place for place in devices if place >= len(seen)]:
        there = "none can be seen here" if not seen else f"those that can be seen here are 0 to {len(seen) - 1}"
        raise ConfigError(f"devices = {list(devices)}: there is no GPU {wrong[0]}; {there}")
    return tuple(seen[place] for place in devices) if devices else seen


def num_devices(wanted: int | None, variant: str, devices: Sequence[int] = ()) -> int:
    """Return the number of devices of this node: `wanted`, else the GPUs in `devices`, else all; a CPU counts as one.

    Raise ConfigError if the GPUs cannot be counted.
    """
    if wanted is not None or variant == "cpu":
        return wanted or 1
    if not devices and visible_gpus() is None:
        raise ConfigError(
            f"the GPUs of this machine cannot be counted ({_GPUS} is missing); set `devices` or `num_devices`, or "
            '`variant` to "cpu"'
        )
    return max(1, len(chosen_gpus(devices)))


def first_gpus(count: int, environ: Mapping[str, str] = os.environ) -> str:
    """Return a `CUDA_VISIBLE_DEVICES` that shows only the first `count` of the GPUs that `environ` shows."""
    visible = environ.get(VISIBLE, ",".join(map(str, range(count))))
    return ",".join([device.strip() for device in visible.split(",")][:count])


def only_gpus(devices: Sequence[int]) -> dict[str, str]:
    """Return variables with which a child sees only the GPUs at these indices; empty without indices."""
    return {VISIBLE: ",".join(chosen_gpus(devices))} if devices else {}
