"""Build a model folder from a verl state: check it, merge its shards, compare them with the live policy, write it."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.events import EventFile
from treadle.core.engines.export_model import greedy_ids, write_model
from treadle.core.errors import EngineError
from treadle.rl.engine.verl.folder import VerlFolder, merge_command
from treadle.rl.training.plan import RlPlan
from treadle.rl.trl.config import lora_arguments

_ADAPTERS = "lora_adapter"
"""Folder in which verl's merger puts adapters, inside the folder of the merged weights."""
_ALLOWED_NAMES = frozenset(
    {
        # random states of numpy, in the protocol of torch
        "_codecs.encode",
        "numpy._core.multiarray._reconstruct",
        "numpy.core.multiarray._reconstruct",
        "numpy.dtype",
        "numpy.ndarray",
        # states of data loaders and learning rates
        "builtins.set",
        "collections.Counter",
        "collections.defaultdict",
        "collections.deque",
        "datetime.timedelta",
    }
)
"""Names that pickles in verl's states may reference, in addition to those that torch allows."""


def check_state(state: Path) -> None:
    """Raise EngineError if a file of a state references code that verl does not write, or is not a file of torch.

    verl unpickles states without any restriction. This lists the names that a pickle references, as torch's restricted
    loader does; it reads a few hundred kB of a shard and loads nothing.
    """
    import torch.distributed.tensor  # noqa: F401 - makes the parts of sharded tensors known
    from torch.serialization import get_unsafe_globals_in_checkpoint

    for path in sorted(state.rglob("*.pt")):
        try:
            named = set(get_unsafe_globals_in_checkpoint(path)) - _ALLOWED_NAMES
        except (EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
            raise EngineError(f"{path} is not a state written by verl: {str(error).splitlines()[0]}") from None
        if named:
            raise EngineError(
                f"{path} is not loaded: it references code that no state of verl has ({', '.join(sorted(named)[:5])}); "
                "remove the state to resume from the previous one"
            )


def count_trained(model: Path, plan: RlPlan) -> int:
    """Return the number of parameters that the plan trains, counted on a model without weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        policy = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(model)))
    if (lora := lora_arguments(plan)) is not None:
        from peft import LoraConfig, get_peft_model

        with torch.device("meta"):
            policy = get_peft_model(policy, LoraConfig(**lora))
    return sum(weights.numel() for weights in policy.parameters() if weights.requires_grad)


def finish_model(job: Mapping[str, Any], plan: RlPlan, events: EventFile) -> None:
    """Write the model of the state `job["state"]` to `job["final"]` atomically, and the event `greedy`.

    Raises EngineError if the merger fails, or if its result differs from what the live policy saved.
    """
    state, final, start = Path(job["state"]), Path(job["final"]), Path(job["model"])
    merged = final.with_name(final.name + ".merged")
    shutil.rmtree(merged, ignore_errors=True)
    merge(state, merged)
    lora, adapters = lora_arguments(plan), merged / _ADAPTERS
    if lora is not None:
        compare_with_shards(adapters, state / "actor", rank=lora["r"], alpha=lora["lora_alpha"])
    else:
        compare_with_live(merged, state / "actor" / "huggingface")
    write_model(str(start), adapters if lora else merged, final, is_adapter=lora is not None)
    shutil.rmtree(merged)
    prompt = first_prompt(VerlFolder.of_job(job), start)
    events.write("greedy", **greedy_ids(final, prompt, int(job["greedy_tokens"])))


def merge(state: Path, target: Path) -> None:
    """Merge the shards of a state with verl's merger, whose output goes to the log; raise EngineError if it fails."""
    check_state(state)
    command = merge_command(sys.executable, state, target)
    if code := subprocess.run(command, check=False).returncode:
        raise EngineError(f"verl's merger ended with code {code} on {state}")


def compare_with_live(merged: Path, live: Path) -> int:
    """Compare merged weights, tensor by tensor, with the full copy that the policy in training saved (`hf_model`).

    Returns the number of tensors. Raises EngineError if names, shapes or values differ beyond the merger's rounding to
    16 bits, or if the live policy saved no copy.
    """
    made, saved = dict(_tensors(merged)), dict(_tensors(live))
    if not saved:
        raise EngineError(f"the policy in training saved no copy in {live} to compare the merged shards with")
    if made.keys() != saved.keys():
        names = sorted(made.keys() ^ saved.keys())
        raise EngineError(f"merged weights and the live policy have different tensor names: {', '.join(names[:5])}")
    for name, path in made.items():
        ours, theirs = _tensor(path, name), _tensor(saved[name], name)
        if ours.shape != theirs.shape or not torch.equal(ours.bfloat16(), theirs.bfloat16()):
            raise EngineError(f"merged weights are not those of the live policy: {name} differs")
    return len(made)


def compare_with_shards(adapters: Path, shards: Path, *, rank: int, alpha: int) -> int:
    """Compare a folder of adapters with the shards of an FSDP state, tensor by tensor, and with what was planned.

    Returns the number of tensors. Raises EngineError if names differ, if a value differs beyond the merger's rounding
    to 16 bits, or if the folder's rank or alpha is not the planned one. If the merger finds no alpha in the state, it
    writes 0, with which adapters have no effect.
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
    """Return name -> tensor of the adapters, joined from the shards (DTensors) of all processes.

    Names are those in a folder of adapters.
    """
    import torch.distributed.tensor

    paths = shards.glob("model_world_size_*_rank_*.pt")
    parts: dict[str, list[Any]] = {}
    for path in sorted(paths, key=lambda path: int(path.stem.rpartition("_")[2])):
        # Memory-mapped, because the adapters are a small part of a shard of the whole policy.
        for name, tensor in torch.load(path, map_location="cpu", weights_only=True, mmap=True).items():
            if "lora_" in name:
                parts.setdefault(name.replace(".default.weight", ".weight"), []).append(tensor)
    return {name: _joined(tensors) for name, tensors in parts.items()}


def _joined(parts: list[Any]) -> torch.Tensor:
    first = parts[0]
    if not hasattr(first, "placements"):
        whole: torch.Tensor = first
        return whole
    # If the policy is replicated, the last dimension of the mesh is the sharded one, and the first replica suffices.
    placement, size = first.placements[-1], first.device_mesh.mesh.shape[-1]
    local = [part.to_local() for part in parts[:size]]
    return torch.cat(local, placement.dim) if placement.is_shard() else local[0]


def _tensors(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            yield from ((name, path) for name in file.keys())  # noqa: SIM118


def _tensor(path: Path, name: str) -> torch.Tensor:
    with safe_open(str(path), framework="pt") as file:
        tensor: torch.Tensor = file.get_tensor(name)
    return tensor


def first_prompt(folder: VerlFolder, model: Path) -> list[int]:
    """Return the prompt ids of the first training row, as in a rollout."""
    import pyarrow.parquet as pq

    batch = next(pq.ParquetFile(folder.path / "train.parquet").iter_batches(1, columns=["prompt"], use_threads=False))
    return ChatTokenizer.load(model).prompt_ids(batch["prompt"][0].as_py())
