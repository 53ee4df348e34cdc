"""Train with TRL, on one machine with a CPU or GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from treadle.core.engines.events import EventFile
from treadle.rl.training.plan import RlPlan
from treadle.rl.training_engine import RlEngine
from treadle.rl.trl.config import trl_arguments

TYPED_KEYS: Mapping[str, str] = {
    "num_generations": "group_size",
    "per_device_train_batch_size": "per_device_batch_size",
    "num_train_epochs": "num_epochs",
    "max_completion_length": "max_response_tokens",
    "warmup_ratio": "warmup_steps",
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

_REFUSED = {
    "Treadle sets it": (
        "output_dir overwrite_output_dir resume_from_checkpoint do_train local_rank save_strategy save_only_model "
        "save_on_each_node save_total_limit logging_strategy logging_steps logging_nan_inf_filter log_completions "
        "log_unique_prompts log_multimodal num_completions_to_print load_best_model_at_end disable_dropout "
        "dataloader_num_workers dataloader_persistent_workers dataloader_prefetch_factor dataloader_in_order"
    ),
    "a step is logged once, with all its updates": "logging_first_step",
    "it is the run's `seed`": "seed data_seed",
    "it follows from the questions of a step and their groups": (
        "gradient_accumulation_steps steps_per_generation generation_batch_size num_generations_eval "
        "per_device_eval_batch_size auto_find_batch_size num_iterations dataloader_drop_last accelerator_config"
    ),
    "Treadle sets rows, prompts and their order": (
        "shuffle_dataset remove_unused_columns chat_template_kwargs train_sampling_strategy length_column_name "
        "label_names"
    ),
    "an interrupted training must resume exactly, from the end of a step": (
        "ignore_data_skip enable_jit_checkpoint restore_callback_states_from_checkpoint"
    ),
    "validation is set by `rl.validation_questions`": (
        "do_eval do_predict eval_strategy eval_on_start eval_delay metric_for_best_model greater_is_better "
        "prediction_loss_only bf16_full_eval fp16_full_eval eval_accumulation_steps batch_eval_metrics "
        "include_for_metrics eval_do_concat_batches eval_use_gather_object"
    ),
    "Treadle generates the rollouts, in the run's environment": (
        "generation_kwargs repetition_penalty min_p max_tool_calling_iterations use_vllm vllm_mode "
        "vllm_structured_outputs_regex vllm_max_model_length vllm_server_base_url vllm_server_host vllm_server_port "
        "vllm_server_timeout vllm_group_port cache_implementation use_transformers_continuous_batching "
        "use_transformers_paged transformers_continuous_batching_config"
    ),
    "rollouts call vLLM directly, so it must not sleep": "vllm_enable_sleep_mode",
    "Treadle computes the rewards; see the keys of `rl`": (
        "reward_weights scale_rewards multi_objective_aggregation mask_truncated_completions importance_sampling_level"
    ),
    "the loss covers all tokens that the model wrote; see the keys of `rl`": (
        "top_entropy_quantile label_smoothing_factor neftune_noise_alpha sapo_temperature_neg sapo_temperature_pos "
        "vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg"
    ),
    "`rl.kl_coef` weights the divergence from the start policy": (
        "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps"
    ),
    'each device holds the whole policy; for a larger one set rl.engine = "verl"': (
        "fsdp fsdp_config deepspeed parallelism_config ds3_gather_for_generation"
    ),
    "Treadle loads the policy, in 32 bits": "model_init_kwargs cast_lm_head_to_fp32",
    "code that comes with a model is never run": "trust_remote_code",
    "nothing is uploaded": (
        "push_to_hub hub_model_id hub_private_repo hub_strategy hub_always_push hub_revision log_completions_hub_repo"
    ),
    "secrets are not configuration; set the environment variable that its library reads": "hub_token",
}
REFUSED_KEYS: Mapping[str, str] = {key: reason for reason, keys in _REFUSED.items() for key in keys.split()}
"""Keys of TRL's GRPOConfig that would break what the stage guarantees, each with the reason."""


class TrlEngine(RlEngine):
    """TRL: one process per device, each with the whole policy."""

    environment: ClassVar[str] = "trl"
    trains_several_samples: ClassVar[bool] = True
    trains_on_hints: ClassVar[bool] = True
    typed_keys: ClassVar[Mapping[str, str]] = TYPED_KEYS
    refused_keys: ClassVar[Mapping[str, str]] = REFUSED_KEYS

    @property
    def cancels_rollouts(self) -> bool:
        """True: rollouts can be cancelled between two batches of their requests."""
        return True

    def check_plan(self, plan: RlPlan) -> None:
        """Generate TRL's arguments; raise ConfigError for what it does not support."""
        trl_arguments(plan, Path("/training/output"))

    def check(self, job: Mapping[str, Any], events: EventFile) -> None:
        """See `RlEngine`."""
        from treadle.rl.engine.trl import commands

        commands.check(job, events)

    def train(self, job: dict[str, Any], events: EventFile) -> None:
        """See `RlEngine`."""
        from treadle.rl.engine.trl import commands

        commands.train(job, events)

    def finish(self, job: Mapping[str, Any], events: EventFile) -> None:
        """See `RlEngine`."""
        from treadle.rl.engine.trl import commands

        commands.finish(job, events)
