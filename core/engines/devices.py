"""The GPUs of this machine: how many there are, and which of them a child process sees.

What a configuration names are places among the GPUs that can be seen here: of those in `CUDA_VISIBLE_DEVICES`, else of
all, in the order of `nvidia-smi`. Documented in docs/behaviour/engines.md, part "Devices".
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from treadle.core.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_GPUS = Path("/proc/driver/nvidia/gpus")
"""A folder per GPU of the machine, by the driver."""


def visible_gpus() -> tuple[str, ...] | None:
    """The GPUs that can be seen here, as `CUDA_VISIBLE_DEVICES` names them; None where they cannot be counted."""
    given = os.environ.get(VISIBLE)
    if given is not None:
        return tuple(part.strip() for part in given.split(",") if part.strip())
    return tuple(str(place) for place, _ in enumerate(_GPUS.iterdir())) if _GPUS.is_dir() else None


def chosen_gpus(devices: Sequence[int]) -> tuple[str, ...]:
    """The GPUs at these places, all where none is named, as `CUDA_VISIBLE_DEVICES` names them.

    Where they cannot be counted, places count as they are, and all of them as the first one. Raises ConfigError for a
    place at which there is none.
    """
    seen = visible_gpus()
    if seen is None:
        return tuple(str(place) for place in devices or (0,))
    if wrong := [place for place in devices if place >= len(seen)]:
        there = "none can be seen here" if not seen else f"those that can be seen here are 0 to {len(seen) - 1}"
        raise ConfigError(f"devices = {list(devices)}: there is no GPU {wrong[0]}; {there}")
    return tuple(seen[place] for place in devices) if devices else seen


def num_devices(wanted: int | None, variant: str, devices: Sequence[int] = ()) -> int:
    """Devices of this node: the GPUs that are wanted, else those that are named, else all; a CPU counts as one.

    Raises ConfigError where they cannot be counted.
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
    """`CUDA_VISIBLE_DEVICES` of processes that are to see so many GPUs, the first of those that `environ` shows."""
    visible = environ.get(VISIBLE, ",".join(map(str, range(count))))
    return ",".join([device.strip() for device in visible.split(",")][:count])


def only_gpus(devices: Sequence[int]) -> dict[str, str]:
    """Variables of a child that is to see the GPUs at these places alone; none of them where none is named."""
    return {VISIBLE: ",".join(chosen_gpus(devices))} if devices else {}
