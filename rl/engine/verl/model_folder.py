"""Build a model folder from a verl state: merge the shards, compare them with the live policy, write the model."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.events import EventFile
from treadle.core.engines.export_model import greedy_ids, write_model
from treadle.core.errors import EngineError
from treadle.rl.engine.verl.adapters import compare_with_shards
from treadle.rl.engine.verl.folder import VerlFolder
from treadle.rl.engine.verl.states import check_state
from treadle.rl.training.plan import RlPlan
from treadle.rl.verl.launch import merge_command

_ADAPTERS = "lora_adapter"
"""Folder in which verl's merger puts adapters, inside the folder of the merged weights."""


def count_trained(model: Path, plan: RlPlan) -> int:
    """Return the number of parameters that the plan trains, counted on a model without weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        policy = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(model)))
    options = plan.options
    if options.finetuning_type == "lora":
        from peft import LoraConfig, get_peft_model

        modules: Any = [name.strip() for name in options.lora_target.split(",")]
        target = "all-linear" if options.lora_target == "all" else modules
        with torch.device("meta"):
            policy = get_peft_model(
                policy, LoraConfig(r=options.lora_rank, target_modules=target, task_type="CAUSAL_LM")
            )
    return sum(weights.numel() for weights in policy.parameters() if weights.requires_grad)


def finish_model(job: Mapping[str, Any], plan: RlPlan, events: EventFile) -> None:
    """Write the model of the state `job["state"]` to `job["final"]` atomically, and the event `greedy`.

    Raises EngineError if the merger fails, or if its result differs from what the live policy saved.
    """
    state, final, start = Path(job["state"]), Path(job["final"]), Path(job["model"])
    merged = final.with_name(final.name + ".merged")
    shutil.rmtree(merged, ignore_errors=True)
    merge(state, merged)
    is_adapter, adapters, options = plan.options.finetuning_type == "lora", merged / _ADAPTERS, plan.options
    if is_adapter:
        alpha = options.lora_alpha or 2 * options.lora_rank
        compare_with_shards(adapters, state / "actor", rank=options.lora_rank, alpha=alpha)
    else:
        compare_with_live(merged, state / "actor" / "huggingface")
    write_model(str(start), adapters if is_adapter else merged, final, is_adapter=is_adapter)
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


def _tensors(folder: Path) -> Iterator[tuple[str, Path]]:
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            yield from ((name, path) for name in file.keys())  # noqa: SIM118


def _tensor(path: Path, name: str) -> torch.Tensor:
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        tensor: torch.Tensor = file.get_tensor(name)
    return tensor


def first_prompt(folder: VerlFolder, model: Path) -> list[int]:
    """Return the prompt ids of the first training row, as in a rollout."""
    import pyarrow.parquet as pq

    batch = next(pq.ParquetFile(folder.path / "train.parquet").iter_batches(1, columns=["prompt"]))
    return ChatTokenizer.load(model).prompt_ids(batch["prompt"][0].as_py())
