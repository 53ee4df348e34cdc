"""Commands of a training on preferences with TRL: check a plan, train, write the model.

TRL is imported inside the functions.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.devices import first_gpus
from treadle.core.engines.events import EventFile
from treadle.core.engines.export_model import commit_of, fetch_metadata_files, greedy_ids, write_model
from treadle.rl.dpo.heads import check_language_model
from treadle.rl.engine.errors import BadPlan
from treadle.rl.engine.trl.commands import check_names

_PACKAGES = ("trl", "torch", "transformers", "peft", "accelerate", "datasets", "safetensors", "tokenizers")


def check(job: Mapping[str, Any], events: EventFile) -> None:
    """Check that TRL and PEFT accept the plan's arguments, and find the base model; write the event `prepared`."""
    from peft import LoraConfig
    from trl import DPOConfig

    plan = plan_of(job)
    check_names(DPOConfig, plan["arguments"])
    try:
        DPOConfig(**plan["arguments"])
        if plan["lora"] is not None:
            LoraConfig(**plan["lora"])
    except (ValueError, TypeError, ImportError) as error:
        raise BadPlan(" ".join(str(error).split())) from error
    base = fetch_metadata_files(plan["model"], plan["revision"])
    check_language_model(base / "config.json", f"dpo.model = {plan['model']}")
    events.write(
        "prepared",
        versions={name: version(name) for name in _PACKAGES},
        config_digest=hashlib.sha256(Path(job["config"]).read_bytes()).hexdigest(),
        revision=commit_of(base),
        tokenizer_digest=ChatTokenizer.load(base).digest,
    )


def train(job: dict[str, Any], events: EventFile) -> None:
    """Train, from the state in the job if it names one; on several devices, with one process per device."""
    plan = plan_of(job)
    processes = plan["num_processes"]
    if not plan["arguments"].get("use_cpu"):
        # TRL refuses a single process that sees several GPUs.
        os.environ["CUDA_VISIBLE_DEVICES"] = first_gpus(processes)
    if processes > 1 and "RANK" not in os.environ:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        # Replace this process, so that the supervisor sees its exit code.
        os.execv(sys.executable, [sys.executable, *launcher, "-m", "treadle.rl.engine.dpo", "train", job["path"]])
    from treadle.rl.engine.dpo.training import train_on_pairs

    train_on_pairs(plan, job, events)


def finish(job: Mapping[str, Any], events: EventFile) -> None:
    """Write the model's folder, then let the model continue the job's prompt; writes events `model` and `greedy`."""
    plan, folder = plan_of(job), Path(job["model"])
    if not folder.is_dir():
        write_model(
            plan["model"],
            Path(job["output"]),
            folder,
            is_adapter=plan["lora"] is not None,
            revision=plan["revision"],
            # Rounding to 16 bits would lose most changes of a short training.
            in_32_bits=not (plan["arguments"]["bf16"] or plan["arguments"]["fp16"]),
        )
        events.write("model")
    if job["prompt"]:
        events.write("greedy", **greedy_ids(folder, job["prompt"], job["num_greedy_tokens"]))


def plan_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan with the hub commit that was fetched first as its revision: a newer commit is another model."""
    plan: dict[str, Any] = json.loads(Path(job["config"]).read_text(encoding="utf-8"))
    return {**plan, "revision": job["revision"]} if job["revision"] else plan
