"""Run by torchrun in the engine environment `verl`: two processes shard a tiny policy and let verl save its state.

`START STATE [lora]`: `START` is a folder with configuration and tokenizer; `STATE/actor` is written by verl's own
checkpoint manager, as in training, and `STATE/start` the policy as it was before. FSDP2 on the CPU.
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


def main(start: Path, state: Path, kind: str = "full") -> None:
    """Shard, take one step, save."""
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(start), dtype=torch.float32)
    if dist.get_rank() == 0:
        model.to(torch.bfloat16).save_pretrained(start)
        model.float()
    dist.barrier()
    model.config._name_or_path = str(start)
    if kind == "lora":
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
    contents = ["model", "optimizer", "extra"] if kind == "lora" else ["model", "optimizer", "extra", "hf_model"]
    manager = FSDPCheckpointManager(
        model=model,
        optimizer=optimizer,
        lr_scheduler=torch.optim.lr_scheduler.ConstantLR(optimizer),
        processing_class=AutoTokenizer.from_pretrained(start),
        checkpoint_config=OmegaConf.create({"save_contents": contents, "load_contents": contents}),
    )
    manager.save_checkpoint(local_path=str(state / "actor"), global_step=2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4])
