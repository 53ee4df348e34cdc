"""Adapters that verl's merger made of a state, compared with the parts of them that each process saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from treadle.core.errors import EngineError


def compare_with_shards(adapters: Path, shards: Path, *, rank: int, alpha: int) -> int:
    """Compare a folder of adapters with the shards in a state of FSDP, tensor by tensor, and with what was planned.

    Returns the number of tensors. Raises EngineError for another set of names, a value that differs beyond the merger's
    rounding to 16 bits, and another rank or alpha: where it finds no note of alpha, the merger writes 0, with which
    adapters do nothing.
    """
    config = json.loads((adapters / "adapter_config.json").read_text(encoding="utf-8"))
    if (config["r"], config["lora_alpha"]) != (rank, alpha):
        raise EngineError(
            f"merged adapters have rank {config['r']} and alpha {config['lora_alpha']} instead of {rank} and {alpha}"
        )
    made, saved = load_file(adapters / "adapter_model.safetensors"), _saved_adapters(shards)
    if not saved or made.keys() != saved.keys():
        names = sorted(made.keys() ^ saved.keys())
        raise EngineError(f"merged adapters and their shards have different tensor names: {', '.join(names[:5])}")
    for name, ours in made.items():
        if not torch.equal(ours.bfloat16(), saved[name].bfloat16()):
            raise EngineError(f"merged adapters are not those of the policy in training: {name} differs")
    return len(made)


def _saved_adapters(shards: Path) -> dict[str, torch.Tensor]:
    """Name, as adapters are stored, -> tensor, put together from the shards of all processes, which are DTensors."""
    import torch.distributed.tensor

    paths = shards.glob("model_world_size_*_rank_*.pt")
    parts: dict[str, list[Any]] = {}
    for path in sorted(paths, key=lambda path: int(path.stem.rpartition("_")[2])):
        # Of a whole policy's shard the adapters are a small part.
        for name, tensor in torch.load(path, map_location="cpu", weights_only=True, mmap=True).items():
            if "lora_" in name:
                parts.setdefault(name.replace(".default.weight", ".weight"), []).append(tensor)
    return {name: _joined(tensors) for name, tensors in parts.items()}


def _joined(parts: list[Any]) -> torch.Tensor:
    first = parts[0]
    if not hasattr(first, "placements"):
        whole: torch.Tensor = first
        return whole
    # Where the policy is replicated, the last dimension of the mesh is the sharded one, and the first replica suffices.
    placement, size = first.placements[-1], first.device_mesh.mesh.shape[-1]
    local = [part.to_local() for part in parts[:size]]
    return torch.cat(local, placement.dim) if placement.is_shard() else local[0]
