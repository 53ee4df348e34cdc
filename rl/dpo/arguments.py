"""Translate settings into the arguments of TRL's DPOConfig and PEFT's LoraConfig. Written for TRL 1.16."""

from __future__ import annotations

import math
from typing import Any

from treadle.core.engines.config import Machine
from treadle.core.errors import ConfigError
from treadle.rl.dpo.config import DpoOptions
from treadle.rl.preferences.aggregates import Aggregate

MICRO_BATCH_TOKENS = 8192
"""Number of tokens that a device processes at once if `per_device_batch_size` is not set; a pair has two sides."""
_MAX_STATES = 2

PREFERENCE_LOSS: dict[Aggregate, str] = {"token_mean": "sigmoid_norm", "turn_sum": "sigmoid", "sum": "sigmoid"}
"""Aggregate -> TRL's loss. For `turn_sum` the trainer weights each log-probability before TRL sums them."""


def dpo_arguments(
    options: DpoOptions, machine: Machine, *, num_rows: int, has_holdout: bool, longest_row: int, output: str, seed: int
) -> dict[str, Any]:
    """Return the arguments of DPOConfig for pairs of at most `longest_row` tokens per side.

    Raises ConfigError if the batch cannot be divided over the devices, or if a CPU does not support a setting.
    """
    per_device, accumulation = _spread(options, machine, longest_row)
    num_steps = num_steps_of(options, num_rows)
    aggregate = options.aggregate
    assert aggregate is not None, "the entry of the stage fills it in"
    losses, weights = [PREFERENCE_LOSS[aggregate]], [1.0]
    if options.nll_coef and aggregate != "turn_sum":
        losses, weights = [*losses, "sft"], [1.0, options.nll_coef]
    schedule = {"min_lr_rate": options.min_lr_rate} if options.lr_scheduler_type == "cosine_with_min_lr" else None
    return {
        "output_dir": output,
        "beta": options.beta,
        "loss_type": losses,
        "loss_weights": weights,
        "max_length": None,
        "disable_dropout": not options.lora_dropout,
        "remove_unused_columns": False,
        "per_device_train_batch_size": per_device,
        "per_device_eval_batch_size": per_device,
        "gradient_accumulation_steps": accumulation,
        "learning_rate": options.learning_rate,
        "lr_scheduler_type": options.lr_scheduler_type,
        **({"lr_scheduler_kwargs": schedule} if schedule else {}),
        "warmup_steps": math.ceil(options.warmup_ratio * num_steps),
        "num_train_epochs": options.num_train_epochs,
        "max_steps": num_steps,
        "weight_decay": options.weight_decay,
        "adam_beta2": options.adam_beta2,
        "max_grad_norm": options.max_grad_norm,
        "seed": seed,
        "data_seed": seed,
        "logging_strategy": "steps",
        "logging_steps": options.logging_steps,
        # A loss of nan or inf must end the training; with this filter transformers would hide it.
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "save_steps": options.save_steps,
        "save_total_limit": _MAX_STATES,
        "save_only_model": False,
        "eval_strategy": "epoch" if has_holdout else "no",
        "report_to": list(options.trackers) or "none",
        **_for_variant(options, machine),
        **options.extra,
    }


def training_plan(options: DpoOptions, model: str, machine: Machine, **shape: Any) -> dict[str, Any]:
    """Return the engine's plan: everything that it needs except the pairs.

    `model` is a folder or a hub id; `shape` has the remaining arguments of `dpo_arguments`. Raises
    ConfigError as `dpo_arguments` does.
    """
    return {
        "model": model,
        "revision": options.revision or "main",
        "num_processes": machine.num_processes,
        "aggregate": options.aggregate,
        "nll_coef": options.nll_coef,
        "lora": lora_arguments(options),
        "arguments": dpo_arguments(options, machine, **shape),
    }


def num_steps_of(options: DpoOptions, num_rows: int) -> int:
    """Return the number of updates of a training on so many pairs, at least one."""
    return max(1, math.ceil(options.num_train_epochs * math.ceil(num_rows / options.batch_size)))


def lora_arguments(options: DpoOptions) -> dict[str, Any] | None:
    """Return the arguments of LoraConfig; None if all weights are trained."""
    if options.finetuning_type == "full":
        return None
    modules = options.lora_target.split(",")
    return {
        "r": options.lora_rank,
        "lora_alpha": options.lora_alpha or 2 * options.lora_rank,
        "lora_dropout": options.lora_dropout,
        "target_modules": "all-linear" if modules == ["all"] else modules,
        "task_type": "CAUSAL_LM",
    }


def _for_variant(options: DpoOptions, machine: Machine) -> dict[str, Any]:
    """Return the arguments that differ between CPU and GPU; `bf16` is always set, or TRL would turn it on."""
    checkpointing = options.gradient_checkpointing
    if machine.variant == "cpu":
        if machine.num_devices > 1:
            raise ConfigError("dpo: on a CPU training is one process; set dpo.num_devices = 1")
        if options.precision == "fp16":
            raise ConfigError("dpo: fp16 cannot be trained on a CPU; set dpo.precision to auto, fp32 or bf16")
        is_bf16 = options.precision == "bf16"
        return {"use_cpu": True, "bf16": is_bf16, "fp16": False, "gradient_checkpointing": bool(checkpointing)}
    precision = "bf16" if options.precision == "auto" else options.precision
    return {
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "gradient_checkpointing": checkpointing is not False,
        "ddp_timeout": math.ceil(options.stall_timeout_s),
    }


def _spread(options: DpoOptions, machine: Machine, longest_row: int) -> tuple[int, int]:
    """Return the number of pairs that a device processes at once, and how often it does so per update."""
    processes = machine.num_processes
    share, rest = divmod(options.batch_size, processes)
    if rest:
        raise ConfigError(
            f"dpo.batch_size {options.batch_size} cannot be spread over {processes} devices; make it a multiple of "
            "that number"
        )
    per_device = options.per_device_batch_size
    if per_device is None:
        fitting = max(1, MICRO_BATCH_TOKENS // max(1, 2 * longest_row))
        per_device = max(pairs for pairs in range(1, min(share, fitting) + 1) if share % pairs == 0)
    if share % per_device:
        raise ConfigError(
            f"dpo.batch_size {options.batch_size} over {processes} devices is {share} pairs each, not a multiple of "
            f"dpo.per_device_batch_size {per_device}"
        )
    return per_device, share // per_device
