"""Compute the device shares of servers and trainings, and check that they fit at the same time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from treadle.core.engines.config import TutorServer, VllmServer
from treadle.core.engines.devices import chosen_gpus
from treadle.core.engines.environments import choose_variant
from treadle.core.errors import ConfigError
from treadle.core.runs.stage import Instance
from treadle.rl.config import RlSettings
from treadle.rl.dpo.config import DpoSettings
from treadle.rl.dpo.engine import ENGINE as PAIR_ENGINE
from treadle.sft.config import SftSettings
from treadle.tasks.serving.served_models import served_models

CPU = "cpu"
"""The only device that may be overcommitted."""

Shares = Mapping[str, float]
"""Device -> share in use. Shares that sum to more than 1 do not fit at the same time."""


def server_shares(server: VllmServer | TutorServer) -> Shares:
    """Return the device shares of a server; raise ConfigError for a GPU that does not exist."""
    if isinstance(server, TutorServer):
        return {}
    if choose_variant("serve", server.variant) == "cpu":
        return {CPU: 1.0}
    return dict.fromkeys(chosen_gpus(server.devices), server.gpu_memory_share)


def training_shares(settings: Any) -> Shares:
    """Return the devices that an instance trains on; raise ConfigError for a GPU that does not exist."""
    if not isinstance(settings, SftSettings | RlSettings | DpoSettings):
        return {}
    options = settings.options
    engine = PAIR_ENGINE if isinstance(settings, DpoSettings) else settings.options.engine
    if engine.choose_variant(options.variant) == "cpu":
        return {CPU: 1.0}
    return dict.fromkeys(chosen_gpus(options.devices)[: options.num_devices], 1.0)


def check_devices_fit(instance: Instance) -> None:
    """Raise ConfigError if an instance's servers do not fit on the devices with each other or with its training."""
    models = served_models(instance.settings)
    shares = [server_shares(model.server) for model in models if model.server is not None]
    training = training_shares(instance.settings)
    total = sum_shares([*shares, training])
    full = oversubscribed(total) - {CPU}  # Overcommitting the CPU is slow but works.
    if not full:
        return
    names = ", ".join(model.model for model, taken in zip(models, shares, strict=True) if full & taken.keys())
    if full & training.keys():
        raise ConfigError(
            f"{instance.address} trains on {device_names(full & training.keys())}, where the servers of {names}, "
            "which it calls meanwhile, would run too; give the servers and the training separate `devices`"
        )
    raise ConfigError(
        f"{instance.address}: the servers of {names} would share {device_names(full)}, and their gpu_memory_share "
        f"add up to {max(total[gpu] for gpu in full):g}; lower them to 1 in sum, or give each `devices` of its own"
    )


def sum_shares(shares: Sequence[Shares]) -> dict[str, float]:
    """Return the sum of shares by device."""
    total: dict[str, float] = {}
    for one in shares:
        for device, share in one.items():
            total[device] = total.get(device, 0.0) + share
    return total


def oversubscribed(total: Shares) -> set[str]:
    """Return the devices with a total above 1."""
    return {device for device, share in total.items() if share > 1.0 + 1e-9}


def device_names(devices: Collection[str]) -> str:
    """Return the devices as text for messages."""
    gpus = sorted(set(devices) - {CPU})
    return ("GPU " if gpus else "") + " and ".join([", ".join(gpus)] * bool(gpus) + ["the CPU"] * (CPU in devices))
