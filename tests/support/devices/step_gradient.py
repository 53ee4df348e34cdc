"""Writes the gradient of a step of real TRL, whose trajectories have several samples, on one or several processes.

`[torch.distributed.run ...] step_gradient.py POLICY JOB OUT`, inside the environment of `trl`; JOB is a job for the
engine. Each process writes its file below OUT: the number of rows of each update, and the gradient over all processes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from support.training.trl_engine_checks import _scripted_plan, _SplitSource, _trainer

from treadle.agent.contract import Task
from treadle.core.chat import ChatTokenizer
from treadle.core.engines.config import Machine
from treadle.rl.engine.group_source import ScoredGroup
from treadle.rl.engine.trl.events import rank_and_world
from treadle.rl.training.plan import RlPlan

ON_CPU = {"use_cpu": True, "use_vllm": False, "bf16": False, "gradient_checkpointing": False, "ddp_timeout": 120}


class _Shared(_SplitSource):
    """Groups of the scenario, of which each process plays its own; every other trajectory has a sample per turn."""

    def __init__(self, codec: ChatTokenizer) -> None:
        super().__init__(codec)
        self._all = self.made

    def step(self, step: int, rows: Sequence[Task], first: int) -> list[ScoredGroup]:
        """Return the groups of these places."""
        self.made = self._all[first : first + len(rows)]
        return super().step(step, list(rows), first)


def main(policy: Path, job: dict[str, Any], num_processes: int) -> dict[str, Any]:
    """Return the facts of this process."""
    plan = _scripted_plan(RlPlan.from_json(json.dumps(job["plan"])), mini_batch_prompts=2, prompts_per_step=2)
    # Two devices stand for GPUs; what generates there is not used.
    machine = Machine(variant="cuda" if num_processes > 1 else "cpu", num_devices=num_processes)
    plan = plan.model_copy(update={"machine": machine})
    options = plan.options.model_copy(update={"per_device_batch_size": 4})
    plan = plan.model_copy(update={"options": options})
    with tempfile.TemporaryDirectory() as name:
        trainer = _trainer(policy, plan, Path(name), _Shared(ChatTokenizer.load(policy)), **ON_CPU)
        batch = next(iter(trainer.get_train_dataloader()))
        size = trainer.args.gradient_accumulation_steps
        trainer.current_gradient_accumulation_steps = size
        rows = []
        for step in range(trainer.args.steps_per_generation):
            trainer._step = step
            inputs = trainer._prepare_inputs(batch)
            rows.append(len(inputs["completion_ids"]))
            trainer.accelerator.backward(trainer._compute_loss(trainer.model, inputs))
        gradient = torch.cat([one.grad.flatten() for one in trainer.model.parameters() if one.grad is not None])
        if num_processes > 1:
            # As DistributedDataParallel does.
            torch.distributed.all_reduce(gradient)
            gradient /= num_processes
        (reward,) = trainer._metrics["train"]["reward"]
    return {"rows": rows, "gradient": gradient.tolist(), "reward": reward, "world": rank_and_world()[1]}


if __name__ == "__main__":
    import os

    facts = main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), int(os.environ.get("WORLD_SIZE", "1")))
    out = Path(sys.argv[3]) / f"{os.environ.get('RANK', '0')}.json"
    out.write_text(json.dumps(facts))
