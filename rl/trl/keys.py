"""List the keys of TRL's GRPOConfig that `rl.extra` does not pass through.

They either have another name in `rl`, or would break what the stage guarantees.
"""

from __future__ import annotations

_OURS = "Treadle sets it"
_GROUPS = "it follows from the questions of a step and their groups"
_DATA = "Treadle sets rows, prompts and their order"
_RESUMED = "an interrupted training must resume exactly, from the end of a step"
_STEPS = "a step is logged once, with all its updates"
_ROLLOUTS = "Treadle generates the rollouts, in the run's environment"
_AWAKE = "rollouts call vLLM directly, so it must not sleep"
_REWARDS = "Treadle computes the rewards; see the keys of `rl`"
_LOSS = "the loss covers all tokens that the model wrote; see the keys of `rl`"
_START = "`rl.kl_coef` weights the divergence from the start policy"
_VALIDATION = "validation is set by `rl.validation_questions`"
_WHOLE = 'each device holds the whole policy; for a larger one set rl.engine = "verl"'
_LOADED = "Treadle loads the policy, in 32 bits"
_UPLOAD = "nothing is uploaded"

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
    "ddp_timeout": "stall_timeout_s",
    "use_cpu": "variant",
    "no_cuda": "variant",
    "vllm_gpu_memory_utilization": "gpu_memory_share",
    "vllm_tensor_parallel_size": "tensor_parallel",
}
"""TRL's key -> key of `rl` with the same meaning."""

REFUSED_KEYS: dict[str, str] = {
    **dict.fromkeys(("output_dir", "overwrite_output_dir", "resume_from_checkpoint", "do_train", "local_rank"), _OURS),
    **dict.fromkeys(("save_strategy", "save_only_model", "save_on_each_node", "save_total_limit"), _OURS),
    **dict.fromkeys(("logging_strategy", "logging_steps", "logging_nan_inf_filter"), _OURS),
    **dict.fromkeys(("log_completions", "log_unique_prompts", "log_multimodal", "num_completions_to_print"), _OURS),
    **dict.fromkeys(("load_best_model_at_end", "disable_dropout", "dataloader_num_workers"), _OURS),
    **dict.fromkeys(("dataloader_persistent_workers", "dataloader_prefetch_factor", "dataloader_in_order"), _OURS),
    "logging_first_step": _STEPS,
    **dict.fromkeys(("seed", "data_seed"), "it is the run's `seed`"),
    **dict.fromkeys(("gradient_accumulation_steps", "steps_per_generation", "generation_batch_size"), _GROUPS),
    **dict.fromkeys(("num_generations_eval", "per_device_eval_batch_size", "auto_find_batch_size"), _GROUPS),
    **dict.fromkeys(("num_iterations", "dataloader_drop_last", "accelerator_config"), _GROUPS),
    **dict.fromkeys(("shuffle_dataset", "remove_unused_columns", "chat_template_kwargs"), _DATA),
    **dict.fromkeys(("train_sampling_strategy", "length_column_name", "label_names"), _DATA),
    **dict.fromkeys(("ignore_data_skip", "enable_jit_checkpoint", "restore_callback_states_from_checkpoint"), _RESUMED),
    **dict.fromkeys(("do_eval", "do_predict", "eval_strategy", "eval_on_start", "eval_delay"), _VALIDATION),
    **dict.fromkeys(("metric_for_best_model", "greater_is_better", "prediction_loss_only"), _VALIDATION),
    **dict.fromkeys(("bf16_full_eval", "fp16_full_eval", "eval_accumulation_steps", "batch_eval_metrics"), _VALIDATION),
    **dict.fromkeys(("include_for_metrics", "eval_do_concat_batches", "eval_use_gather_object"), _VALIDATION),
    **dict.fromkeys(("generation_kwargs", "repetition_penalty", "min_p", "max_tool_calling_iterations"), _ROLLOUTS),
    **dict.fromkeys(("use_vllm", "vllm_mode", "vllm_structured_outputs_regex", "vllm_max_model_length"), _ROLLOUTS),
    **dict.fromkeys(("vllm_server_base_url", "vllm_server_host", "vllm_server_port"), _ROLLOUTS),
    **dict.fromkeys(("vllm_server_timeout", "vllm_group_port", "cache_implementation"), _ROLLOUTS),
    **dict.fromkeys(("use_transformers_continuous_batching", "use_transformers_paged"), _ROLLOUTS),
    "transformers_continuous_batching_config": _ROLLOUTS,
    "vllm_enable_sleep_mode": _AWAKE,
    **dict.fromkeys(("reward_weights", "scale_rewards", "multi_objective_aggregation"), _REWARDS),
    **dict.fromkeys(("mask_truncated_completions", "importance_sampling_level"), _REWARDS),
    **dict.fromkeys(("top_entropy_quantile", "label_smoothing_factor", "neftune_noise_alpha"), _LOSS),
    **dict.fromkeys(("sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos", "vespo_lambda_pos"), _LOSS),
    **dict.fromkeys(("vespo_k_neg", "vespo_lambda_neg"), _LOSS),
    **dict.fromkeys(("sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps"), _START),
    **dict.fromkeys(("fsdp", "fsdp_config", "deepspeed", "parallelism_config", "ds3_gather_for_generation"), _WHOLE),
    **dict.fromkeys(("model_init_kwargs", "cast_lm_head_to_fp32"), _LOADED),
    "trust_remote_code": "code that comes with a model is never run",
    **dict.fromkeys(("push_to_hub", "hub_model_id", "hub_private_repo", "hub_strategy", "hub_always_push"), _UPLOAD),
    **dict.fromkeys(("hub_revision", "log_completions_hub_repo"), _UPLOAD),
    "hub_token": "secrets are not configuration; set the environment variable that its library reads",
}
"""Refused key -> reason."""
