"""Run by torchrun in the engine environment `verl`: two processes shard a tiny policy and let verl save its state.

`START FULL LORA`: `START` is a folder with configuration and tokenizer, to which weights are added; the states `FULL`
and `LORA` are written by verl's own checkpoint manager, as in training, after two updates of all weights or of
adapters. FSDP2 on the CPU.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def main(start: Path, full: Path, lora: Path) -> None:
    """Make both states."""
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(start), dtype=torch.bfloat16)
    if dist.get_rank() == 0:
        model.save_pretrained(start)
    dist.barrier()
    train_and_save(start, full, is_adapter=False)
    train_and_save(start, lora, is_adapter=True)
    dist.destroy_process_group()


def train_and_save(start: Path, state: Path, *, is_adapter: bool) -> None:
    """Shard, take two steps, save."""
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    model: Any = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    if is_adapter:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    fully_shard(model, mesh=mesh)
    trained = [weights for weights in model.parameters() if weights.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.05)
    for _ in range(2):
        model(torch.arange(1, 30).unsqueeze(0), labels=torch.arange(1, 30).unsqueeze(0)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    contents = ["model", "optimizer", "extra", *([] if is_adapter else ["hf_model"])]
    manager = FSDPCheckpointManager(
        model=model,
        optimizer=optimizer,
        lr_scheduler=torch.optim.lr_scheduler.ConstantLR(optimizer),
        processing_class=AutoTokenizer.from_pretrained(start),
        checkpoint_config=OmegaConf.create({"save_contents": contents, "load_contents": contents}),
    )
    manager.save_checkpoint(local_path=str(state / "actor"), global_step=2)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
