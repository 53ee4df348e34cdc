"""Convert settings to LLaMA-Factory's YAML, DeepSpeed's JSON, and the commands for several GPUs and nodes.

Written for LLaMA-Factory 0.9.5. With `tokenized_path` it ignores every other data option, yet `dataset` must be set. If
the tokenised rows are missing, it would tokenise that data set instead, so `dataset` is set to a name without data.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from treadle.core.engines.config import Machine
from treadle.core.errors import ConfigError
from treadle.sft.config import SftOptions
from treadle.sft.training_plan import Paths, TrainingPlan

NO_DATASET = "none-only-tokenized-path"
"""Value of `dataset`, which never exists, so that missing rows cause an error and not a training on other data."""
MICRO_BATCH_TOKENS = 8192
"""Number of tokens that a device processes at once if `per_device_batch_size` is not set."""
_MAX_STATES = 2


def plan_training(options: SftOptions, paths: Paths, machine: Machine, *, longest_row: int, seed: int) -> TrainingPlan:
    """Return the plan of a training; `longest_row` is the number of tokens of the longest row to train on.

    Raises ConfigError if the batch cannot be divided over the devices, or if a CPU does not support a setting.
    """
    device, notes = _for_variant(options, machine)
    per_device, accumulation = _spread(options, machine, longest_row)
    arguments: dict[str, Any] = {
        "model_name_or_path": paths.model,
        **({"model_revision": options.revision} if options.revision else {}),
        "trust_remote_code": False,
        "stage": "sft",
        "do_train": True,
        **_finetuning(options),
        "dataset": NO_DATASET,
        "tokenized_path": str(paths.rows),
        **({"template": options.template} if options.template else {}),
        "cutoff_len": options.cutoff_tokens or longest_row,
        "output_dir": str(paths.output),
        "overwrite_output_dir": True,
        "per_device_train_batch_size": per_device,
        "gradient_accumulation_steps": accumulation,
        "learning_rate": options.learning_rate,
        "lr_scheduler_type": options.lr_scheduler_type,
        "warmup_ratio": options.warmup_ratio,
        "num_train_epochs": options.num_train_epochs,
        "weight_decay": options.weight_decay,
        "max_grad_norm": options.max_grad_norm,
        "seed": seed,
        "data_seed": seed,
        "logging_strategy": "steps",
        "logging_steps": options.logging_steps,
        "save_strategy": "steps",
        "save_steps": options.save_steps,
        "save_total_limit": _MAX_STATES,
        "save_only_model": False,
        "plot_loss": options.plot_loss,
        "report_to": list(options.trackers) or "none",
        "ddp_timeout": options.ddp_timeout_s,
        **device,
    }
    if "deepspeed" in device:
        arguments["deepspeed"] = str(paths.deepspeed)
    distributed = machine.num_processes > 1 or "deepspeed" in device
    return TrainingPlan(
        arguments={**arguments, **options.extra},
        notes=notes,
        machine=machine,
        torchrun=tuple(torchrun_arguments(options, machine)) if distributed else None,
        files={paths.deepspeed: deepspeed_config()},
    )


def _finetuning(options: SftOptions) -> dict[str, Any]:
    if options.finetuning_type == "full":
        return {"finetuning_type": "full"}
    return {
        "finetuning_type": "lora",
        "lora_rank": options.lora_rank,
        "lora_alpha": options.lora_alpha or 2 * options.lora_rank,
        "lora_dropout": options.lora_dropout,
        "lora_target": options.lora_target,
    }


def _for_variant(options: SftOptions, machine: Machine) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return all keys that differ between CPU and GPU, and notes on settings without effect on a CPU."""
    checkpointing = options.gradient_checkpointing
    if machine.variant != "cpu":
        precision = "bf16" if options.precision == "auto" else options.precision
        return {
            "bf16": precision == "bf16",
            "fp16": precision == "fp16",
            "flash_attn": options.attention,
            "disable_gradient_checkpointing": checkpointing is False,
            "enable_liger_kernel": options.liger_kernel,
            "use_unsloth_gc": options.unsloth_gradient_checkpointing,
            **({"deepspeed": ""} if options.deepspeed == "zero3" else {}),
        }, ()
    if machine.num_processes > 1:
        raise ConfigError("sft: on a CPU training is one process on one machine; set num_devices and num_nodes to 1")
    if options.precision == "fp16":
        raise ConfigError("sft: fp16 cannot be trained on a CPU; set precision to auto, fp32 or bf16")
    flash = options.attention in ("fa2", "fa3")
    without = {
        f"attention = {options.attention}": flash,
        "liger_kernel": options.liger_kernel,
        "unsloth_gradient_checkpointing": options.unsloth_gradient_checkpointing,
        f"deepspeed = {options.deepspeed}": options.deepspeed != "none",
    }
    return {
        "use_cpu": True,
        "bf16": options.precision == "bf16",
        "fp16": False,
        "flash_attn": "auto" if flash else options.attention,
        "disable_gradient_checkpointing": not checkpointing,
    }, tuple(f"sft.{name} has no effect on a CPU" for name, is_set in without.items() if is_set)


def _spread(options: SftOptions, machine: Machine, longest_row: int) -> tuple[int, int]:
    """Return the number of rows that a device processes at once, and how often it does so per update."""
    processes = machine.num_processes
    share, rest = divmod(options.batch_size, processes)
    if rest:
        raise ConfigError(
            f"sft.batch_size {options.batch_size} cannot be spread over {processes} devices; make it "
            "a multiple of that number"
        )
    per_device = options.per_device_batch_size
    if per_device is None:
        fitting = max(1, MICRO_BATCH_TOKENS // max(1, longest_row))
        per_device = max(rows for rows in range(1, min(share, fitting) + 1) if share % rows == 0)
    if share % per_device:
        raise ConfigError(
            f"sft.batch_size {options.batch_size} over {processes} devices is {share} rows each, not a multiple of "
            f"per_device_batch_size {per_device}"
        )
    return per_device, share // per_device


def deepspeed_config() -> bytes:
    """Return DeepSpeed's JSON: ZeRO-3 without offload, weights gathered in 16 bits on save.

    `auto` values are set by the trainer.
    """
    zero = {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_gather_16bit_weights_on_model_save": True,
    }
    config = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": zero,
    }
    return orjson.dumps(config, option=orjson.OPT_INDENT_2) + b"\n"


def torchrun_arguments(options: SftOptions, machine: Machine, node: int = 0) -> list[str]:
    """Return the arguments of `python -m torch.distributed.run` before the program; `node` counts from 0."""
    return [
        f"--nnodes={machine.num_nodes}",
        f"--node_rank={node}",
        f"--nproc_per_node={machine.num_devices}",
        f"--master_addr={options.main_address or '127.0.0.1'}",
        f"--master_port={options.main_port}",
        # Timeout of the nodes for each other before training starts; the default of torchrun is only minutes.
        f"--rdzv_conf=timeout={options.ddp_timeout_s}",
    ]


def commands_of_nodes(argv: Sequence[str], variables: Mapping[str, str], num_nodes: int) -> list[str]:
    """Return the command for each further node, derived from the command of the first one.

    `argv` is the command of the first node, with `torchrun_arguments`; `variables` are the environment variables that
    it needs. All nodes need interpreter, model, rows and output under the same paths.
    """
    if "--node_rank=0" not in argv:
        raise ValueError("this is not the command of the first of several nodes")
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(variables.items()))
    return [
        f"{settings} {shlex.join(part.replace('--node_rank=0', f'--node_rank={node}') for part in argv)}".strip()
        for node in range(1, num_nodes)
    ]
