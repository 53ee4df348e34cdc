"""Keys of TRL's GRPOConfig that `rl.extra` does not pass through: those with a name here, and those that would break
what the stage promises."""

from __future__ import annotations

_OURS = "Treadle sets it"
_GROUPS = "it follows from the questions of a step and their groups"
_DATA = "rows, prompts and their order are Treadle's"
_ROLLOUTS = "rollouts are made by Treadle's own engine, in the run's environment"
_REWARDS = "rewards are Treadle's; see the keys of `rl`"

TYPED_KEYS: dict[str, str] = {
    "num_generations": "group_size",
    "per_device_train_batch_size": "per_device_batch_size",
    "num_train_epochs": "num_epochs",
    "max_completion_length": "max_response_tokens",
    "beta": "kl_coef",
    "epsilon": "clip_low",
    "epsilon_high": "clip_high",
    "delta": "dual_clip",
    "loss_type": "loss_agg",
    "eval_steps": "validation_steps",
    "report_to": "trackers",
    "bf16": "precision",
    "fp16": "precision",
    "use_cpu": "variant",
    "no_cuda": "variant",
    "vllm_gpu_memory_utilization": "gpu_memory_share",
    "vllm_tensor_parallel_size": "tensor_parallel",
}
"""TRL's name of what has another name here."""

REFUSED_KEYS: dict[str, str] = {
    **dict.fromkeys(("output_dir", "overwrite_output_dir", "resume_from_checkpoint", "do_train"), _OURS),
    **dict.fromkeys(("save_strategy", "save_only_model", "save_on_each_node", "save_total_limit"), _OURS),
    **dict.fromkeys(("logging_strategy", "logging_steps", "logging_nan_inf_filter", "log_completions"), _OURS),
    **dict.fromkeys(("load_best_model_at_end", "disable_dropout", "dataloader_num_workers"), _OURS),
    **dict.fromkeys(("seed", "data_seed"), "it is the run's `seed`"),
    **dict.fromkeys(("gradient_accumulation_steps", "steps_per_generation", "generation_batch_size"), _GROUPS),
    **dict.fromkeys(("num_generations_eval", "per_device_eval_batch_size", "auto_find_batch_size"), _GROUPS),
    **dict.fromkeys(("num_iterations", "dataloader_drop_last"), _GROUPS),
    **dict.fromkeys(("shuffle_dataset", "remove_unused_columns", "chat_template_kwargs"), _DATA),
    **dict.fromkeys(("do_eval", "eval_strategy", "eval_on_start"), "validation is that of `rl.validation_questions`"),
    **dict.fromkeys(("generation_kwargs", "repetition_penalty", "min_p", "max_tool_calling_iterations"), _ROLLOUTS),
    **dict.fromkeys(("use_vllm", "vllm_mode", "vllm_structured_outputs_regex", "vllm_max_model_length"), _ROLLOUTS),
    **dict.fromkeys(("vllm_server_base_url", "vllm_server_host", "vllm_server_port"), _ROLLOUTS),
    **dict.fromkeys(("reward_weights", "scale_rewards", "multi_objective_aggregation"), _REWARDS),
    **dict.fromkeys(("mask_truncated_completions", "importance_sampling_level"), _REWARDS),
    "trust_remote_code": "code that comes with a model is never run",
    **dict.fromkeys(("push_to_hub", "hub_model_id", "log_completions_hub_repo"), "nothing is uploaded"),
    "hub_token": "secrets are not configuration; set the environment variable that its library reads",
}
"""Keys that are refused, each with the reason."""
