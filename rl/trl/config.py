"""Translate a plan into the arguments of TRL's GRPOConfig and PEFT's LoraConfig.

Written for TRL 1.16. TRL counts updates where plans count steps, and micro-batches where plans count trajectories; the
whole translation is in this module. Documented in docs/behaviour/rewards.md.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from treadle.core.errors import ConfigError
from treadle.rl.config import RlOptions
from treadle.rl.training.plan import RlPlan

MICRO_BATCH_TOKENS = {"cuda": 8192, "cpu": 32_768}
"""Maximum tokens of a device's micro-batch if `per_device_batch_size` is not set, assuming trajectories of maximum
length. A CPU takes whole groups, at least one, so that siblings share the computation of their prompt."""


def trl_arguments(plan: RlPlan, output: Path) -> dict[str, Any]:
    """Return the arguments of GRPOConfig; states are saved in `output`.

    Raises ConfigError if groups or mini-batches cannot be spread over the devices, or if TRL does not support the
    options on this machine.
    """
    options = plan.options
    per_device, accumulation, steps_per_generation = _spread(plan)
    per_step = plan.updates_per_step
    arguments: dict[str, Any] = {
        "output_dir": str(output),
        "num_generations": options.group_size,
        "num_generations_eval": 1,
        "per_device_train_batch_size": per_device,
        "per_device_eval_batch_size": per_device,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": steps_per_generation,
        "num_iterations": 1,
        "num_train_epochs": options.num_epochs,
        "max_steps": plan.num_steps * per_step,
        "max_completion_length": options.max_response_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": max(options.top_k, 0),
        "beta": options.kl_coef,
        "epsilon": options.clip_low,
        "epsilon_high": options.clip_high,
        "delta": options.dual_clip,
        "loss_type": "dapo" if options.loss_agg == "token_mean" else "grpo",
        "importance_sampling_level": "token",
        "scale_rewards": "group",
        "mask_truncated_completions": False,
        "learning_rate": options.learning_rate,
        # TRL's default is linear decay.
        "lr_scheduler_type": _schedule(options),
        **({"warmup_steps": options.warmup_steps * per_step} if options.warmup_steps else {}),
        "weight_decay": options.weight_decay,
        "max_grad_norm": options.max_grad_norm,
        "seed": plan.seed,
        "data_seed": plan.seed,
        "shuffle_dataset": True,
        "remove_unused_columns": False,
        "disable_dropout": not options.lora_dropout,
        "dataloader_num_workers": 0,
        "logging_strategy": "steps",
        "logging_steps": per_step,
        # A loss of nan or inf must end the training; with this filter TRL would hide it.
        "logging_nan_inf_filter": False,
        "log_completions": False,
        "save_strategy": "steps",
        "save_steps": options.save_steps * per_step,
        # The process that started the training deletes old states, because the best one must outlive newer ones.
        "save_total_limit": None,
        "save_only_model": False,
        # TRL does not validate: validation is greedy, in the run's environment, with the training's scorer.
        "eval_strategy": "no",
        "eval_steps": options.validation_steps * per_step,
        "report_to": list(options.trackers) or "none",
        **_for_variant(plan),
    }
    return {**arguments, **options.extra}


def _schedule(options: RlOptions) -> str:
    """Return transformers' name of the schedule; its schedule `constant` would ignore the warm-up."""
    is_constant = options.lr_scheduler_type == "constant"
    return "constant_with_warmup" if is_constant and options.warmup_steps else options.lr_scheduler_type


def lora_arguments(plan: RlPlan) -> dict[str, Any] | None:
    """Return the arguments of LoraConfig; None if all weights are trained."""
    options = plan.options
    if options.finetuning_type == "full":
        return None
    modules = [name.strip() for name in options.lora_target.split(",")]
    return {
        "r": options.lora_rank,
        "lora_alpha": options.lora_alpha or 2 * options.lora_rank,
        "lora_dropout": options.lora_dropout,
        "target_modules": "all-linear" if modules == ["all"] else modules,
        "task_type": "CAUSAL_LM",
    }


def check_whole_groups(per_device: int, steps_per_generation: int, group_size: int) -> None:
    """Raise ConfigError unless each device's share of a step consists of whole groups.

    TRL would split the groups over processes, and a reward that compares siblings would see only some of them.
    """
    share = per_device * steps_per_generation
    if share % group_size:
        raise ConfigError(
            f"rl: a device's share of a step is {per_device} x {steps_per_generation} = {share} trajectories, not "
            f"whole groups of rl.group_size = {group_size}; make rl.prompts_per_step a multiple of the devices"
        )


def _spread(plan: RlPlan) -> tuple[int, int, int]:
    """Return, per device, the trajectories of a micro-batch and the micro-batches of an update and of a step."""
    options, processes = plan.options, plan.machine.num_processes
    share, rest = divmod(options.mini_batch_prompts * options.group_size, processes)
    if rest:
        raise ConfigError(
            f"rl: an update of {options.mini_batch_prompts} x {options.group_size} trajectories cannot be spread over "
            f"{processes} devices; make rl.mini_batch_prompts a multiple of them"
        )
    per_device = options.per_device_batch_size or _fitting(plan, share)
    if share % per_device:
        raise ConfigError(
            f"rl: {share} trajectories of an update on each device are not a multiple of rl.per_device_batch_size = "
            f"{per_device}"
        )
    accumulation = share // per_device
    steps_per_generation = accumulation * plan.updates_per_step
    check_whole_groups(per_device, steps_per_generation, options.group_size)
    return per_device, accumulation, steps_per_generation


def _fitting(plan: RlPlan, share: int) -> int:
    """Return the size of the largest micro-batch that divides a device's share of an update and fits."""
    options, variant = plan.options, plan.machine.variant
    unit = options.group_size if variant == "cpu" else 1
    fitting = MICRO_BATCH_TOKENS[variant] // (options.max_prompt_tokens + options.max_response_tokens)
    counts = range(unit, max(unit, min(share, fitting)) + 1, unit)
    return max(count for count in counts if share % count == 0)


def _for_variant(plan: RlPlan) -> dict[str, Any]:
    """Return the arguments that differ between CPU and GPU."""
    options, machine = plan.options, plan.machine
    if machine.num_nodes > 1:
        raise ConfigError('rl: TRL trains on one machine; set rl.num_nodes = 1, or rl.engine = "verl"')
    if options.tensor_parallel > 1:
        raise ConfigError(
            "rl: with TRL each device generates its own rollouts and holds the whole policy; set "
            'rl.tensor_parallel = 1, or rl.engine = "verl"'
        )
    checkpointing = options.gradient_checkpointing
    if machine.variant == "cpu":
        if machine.num_devices > 1:
            raise ConfigError("rl: on a CPU training is one process; set rl.num_devices = 1")
        if plan.precision == "fp16":
            raise ConfigError("rl: fp16 cannot be trained on a CPU; set rl.precision to auto, fp32 or bf16")
        return {
            "use_cpu": True,
            "use_vllm": False,
            "bf16": plan.precision == "bf16",
            "fp16": False,
            "gradient_checkpointing": bool(checkpointing),
        }
    return {
        "bf16": plan.precision == "bf16",
        "fp16": plan.precision == "fp16",
        "gradient_checkpointing": checkpointing is not False,
        # Processes wait silently for the one with the slowest rollouts.
        "ddp_timeout": math.ceil(options.stall_timeout_s),
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": options.gpu_memory_share,
        "vllm_tensor_parallel_size": options.tensor_parallel,
        "vllm_max_model_length": options.max_prompt_tokens + options.max_response_tokens,
    }
