"""Commands of a training with TRL: check a plan, train, write the policy's folder.

TRL is imported inside the functions.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.devices import first_gpus
from treadle.core.engines.events import EventFile
from treadle.core.engines.export_model import greedy_ids, write_model
from treadle.rl.engine.errors import BadPlan
from treadle.rl.engine.rows import first_prompt, job_environments, plan_of
from treadle.rl.engine.scorer import require_algebra
from treadle.rl.trl.config import lora_arguments, trl_arguments

_PACKAGES = ("trl", "torch", "transformers", "peft", "accelerate", "datasets", "safetensors", "tokenizers")


def check(job: Mapping[str, Any], events: EventFile) -> None:
    """Check that TRL and PEFT accept the plan's arguments, and check the environment; write the event `prepared`."""
    from peft import LoraConfig
    from transformers import AutoConfig
    from trl import GRPOConfig

    from treadle.rl.engine.attention import require_supported

    plan = plan_of(job)
    arguments = trl_arguments(plan, Path(job["output"]))
    check_names(GRPOConfig, arguments)
    try:
        GRPOConfig(**arguments)
        if (lora := lora_arguments(plan)) is not None:
            LoraConfig(**lora)
    except (ValueError, TypeError, ImportError) as error:
        raise BadPlan(" ".join(str(error).split())) from error
    job_environments(job)
    require_algebra(plan)
    policy = AutoConfig.from_pretrained(job["model"])
    if plan.machine.variant == "cpu":
        require_supported(policy.get_text_config())
    events.write("prepared", versions={name: version(name) for name in _PACKAGES})


def train(job: dict[str, Any], events: EventFile) -> None:
    """Train, from the state in the job if it names one; on several devices, with one process per device."""
    plan = plan_of(job)
    processes = plan.machine.num_processes
    if plan.machine.variant == "cuda":
        # TRL refuses a single process that sees several GPUs.
        os.environ["CUDA_VISIBLE_DEVICES"] = first_gpus(plan.machine.num_devices)
    if processes > 1 and "RANK" not in os.environ:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        # Replace this process, so that the supervisor sees its exit code.
        os.execv(sys.executable, [sys.executable, *launcher, "-m", "treadle.rl.engine", "train", job["path"]])
    from treadle.rl.engine.trl.trainer import train_policy

    train_policy(plan, job, job_environments(job), events)


def finish(job: Mapping[str, Any], events: EventFile) -> None:
    """Write the policy's folder from a state, then continue the first row's prompt greedily.

    Writes the events `model` and `greedy`.
    """
    plan = plan_of(job)
    folder = Path(job["final"])
    write_model(
        job["model"],
        Path(job["state"]),
        folder,
        is_adapter=plan.options.finetuning_type == "lora",
        # Export in the precision of the rollouts: rounding to 16 bits would lose most changes of a short training.
        in_32_bits=plan.precision == "fp32",
    )
    events.write("model")
    prompt = first_prompt(Path(job["rows"]), job_environments(job), ChatTokenizer.load(folder))
    events.write("greedy", **greedy_ids(folder, prompt, job["greedy_tokens"]))


def check_names(config: Any, arguments: Mapping[str, Any]) -> None:
    """Raise BadPlan for arguments that a configuration class of TRL does not have, with the closest names."""
    known = {field.name for field in dataclasses.fields(config) if field.init}
    problems = []
    for name in arguments.keys() - known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        problems.append(f"unknown key {name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    if problems:
        raise BadPlan("; ".join(sorted(problems)))
