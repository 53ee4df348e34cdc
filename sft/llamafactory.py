"""Fine-tune with LLaMA-Factory, with torchrun on several devices or nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from treadle.core.engines.config import Machine
from treadle.core.engines.events import EventFile
from treadle.sft.config import SftOptions
from treadle.sft.llamafactory_config import plan_training
from treadle.sft.training_engine import SftEngine
from treadle.sft.training_plan import Paths, TrainingPlan

_BLOCKED_VARIABLES = ("ALLOW_EXTRA_ARGS", "DISABLE_VERSION_CHECK", "LLAMABOARD_ENABLED", "USE_KT", "USE_MCA", "USE_RAY")
"""Switches of LLaMA-Factory that would change the program that runs."""

TYPED_KEYS: Mapping[str, str] = {
    "model_name_or_path": "model",
    "model_revision": "revision",
    "report_to": "trackers",
    "ddp_timeout": "ddp_timeout_s",
    "flash_attn": "attention",
    "enable_liger_kernel": "liger_kernel",
    "use_unsloth_gc": "unsloth_gradient_checkpointing",
    "disable_gradient_checkpointing": "gradient_checkpointing",
    "bf16": "precision",
    "fp16": "precision",
    "cutoff_len": "cutoff_tokens",
    "max_samples": "max_rows",
    "per_device_train_batch_size": "per_device_batch_size",
    "gradient_accumulation_steps": "batch_size",
    "use_cpu": "variant",
    "no_cuda": "variant",
}
"""Names of Treadle's keys by LLaMA-Factory's names, if they differ."""

_REFUSED = {
    "Treadle sets it": (
        "stage do_train output_dir overwrite_output_dir resume_from_checkpoint save_strategy save_only_model "
        "save_on_each_node logging_strategy"
    ),
    "it is the run's `seed`": "seed data_seed",
    "training uses only the tokenised rows of `sft_rows`, with their labels": (
        "dataset dataset_dir media_dir tokenized_path streaming buffer_size mix_strategy interleave_probs tool_format "
        "default_system train_on_prompt mask_history packing neat_packing ignore_pad_token_for_loss "
        "data_shared_file_system"
    ),
    "there is no evaluation during training; `rollouts` and `scores` measure the checkpoint": (
        "val_size eval_dataset do_eval do_predict eval_strategy predict_with_generate load_best_model_at_end "
        "compute_accuracy early_stopping_steps"
    ),
    "the rows have the token ids of the base model's tokenizer, which must stay as it is": (
        "resize_vocab add_tokens add_special_tokens new_special_tokens_config split_special_tokens use_fast_tokenizer"
    ),
    "set the start model as `model`; adapters are merged at the end of a training": "adapter_name_or_path",
    "every training starts from a merged model, so there is no older adapter": "create_new_adapter",
    "code that comes with a model is never run": "trust_remote_code",
    "Ray is not used": "ray_num_workers ray_init_kwargs master_addr master_port",
    "secrets are not configuration; set the environment variable that its library reads": (
        "hf_hub_token ms_hub_token om_hub_token hub_token swanlab_api_key swanlab_lark_secret"
    ),
}
REFUSED_KEYS: Mapping[str, str] = {key: reason for reason, keys in _REFUSED.items() for key in keys.split()}
"""Keys of LLaMA-Factory that would break guarantees of the stage, each with the reason."""


class LlamaFactory(SftEngine):
    """LLaMA-Factory, which reads its configuration from YAML and the rows as `datasets` saves them."""

    environment: ClassVar[str] = "sft"
    typed_keys: ClassVar[Mapping[str, str]] = TYPED_KEYS
    refused_keys: ClassVar[Mapping[str, str]] = REFUSED_KEYS

    @property
    def title(self) -> str:
        """Name of the engine in messages."""
        return "LLaMA-Factory"

    def plan(self, options: SftOptions, paths: Paths, machine: Machine, *, longest_row: int, seed: int) -> TrainingPlan:
        """See `plan_training`."""
        return plan_training(options, paths, machine, longest_row=longest_row, seed=seed)

    def environ(self, command: str, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables without those that would change the program."""
        return {name: value for name, value in environ.items() if name not in _BLOCKED_VARIABLES}

    def check(self, job: Mapping[str, Any], events: EventFile) -> None:
        """Check the configuration with LLaMA-Factory's parser, find the base model, and save the rows."""
        from treadle.sft.engine import commands

        commands.check(self, job, events)

    def train(self, job: dict[str, Any], events: EventFile) -> None:
        """See `SftEngine`."""
        from treadle.sft.engine import commands

        commands.train(job, events)

    def finish(self, job: Mapping[str, Any], events: EventFile) -> None:
        """See `SftEngine`."""
        from treadle.sft.engine import commands

        commands.finish(job, events)
