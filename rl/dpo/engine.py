"""Train on preferences with TRL's DPOTrainer, in the environment `trl`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from treadle.core.engines.events import EventFile
from treadle.core.engines.training_engine import TrainingEngine

_TYPED: Mapping[str, str] = {
    "model_name_or_path": "model",
    "loss_type": "aggregate",
    "loss_weights": "nll_coef",
    "warmup_steps": "warmup_ratio",
    "lr_scheduler_kwargs": "min_lr_rate",
    "max_length": "max_tokens",
    "per_device_train_batch_size": "per_device_batch_size",
    "gradient_accumulation_steps": "batch_size",
    "max_steps": "num_train_epochs",
    "report_to": "trackers",
    "bf16": "precision",
    "fp16": "precision",
    "use_cpu": "variant",
    "no_cuda": "variant",
}
"""TRL's key -> key of `dpo` with the same meaning."""

_REFUSED = {
    "Treadle sets it": (
        "output_dir overwrite_output_dir resume_from_checkpoint do_train save_strategy save_only_model "
        "save_total_limit logging_strategy logging_nan_inf_filter disable_dropout remove_unused_columns label_names"
    ),
    "it is the run's `seed`": "seed data_seed",
    "pairs are never truncated, and keep their own ids and masks": (
        "truncation_mode padding_free pad_token dataset_num_proc pad_to_multiple_of"
    ),
    "the score of a side is set by `dpo.aggregate`": "ld_alpha use_weighting f_divergence_type",
    "the reference is the start model": "sync_ref_model precompute_ref_log_probs ref_model_mixup_alpha",
    "held-out pairs are set by `dpo.holdout_share`": "eval_strategy eval_steps do_eval load_best_model_at_end",
    "code that comes with a model is never run": "trust_remote_code",
    "nothing is uploaded": "push_to_hub hub_model_id hub_strategy hub_private_repo",
    "secrets are not configuration; set the environment variable that its library reads": "hub_token",
}


class PairEngine(TrainingEngine):
    """TRL's DPOTrainer: one process per device, each with the policy and its reference."""

    type: str = "trl"
    environment: ClassVar[str] = "trl"
    module: ClassVar[str] = "treadle.rl.engine.dpo"
    section: ClassVar[str] = "dpo"
    typed_keys: ClassVar[Mapping[str, str]] = _TYPED
    refused_keys: ClassVar[Mapping[str, str]] = {
        key: reason for reason, keys in _REFUSED.items() for key in keys.split()
    }

    def check(self, job: Mapping[str, Any], events: EventFile) -> None:
        """See `TrainingEngine`."""
        from treadle.rl.engine.dpo import commands

        commands.check(job, events)

    def train(self, job: dict[str, Any], events: EventFile) -> None:
        """See `TrainingEngine`."""
        from treadle.rl.engine.dpo import commands

        commands.train(job, events)

    def finish(self, job: Mapping[str, Any], events: EventFile) -> None:
        """See `TrainingEngine`."""
        from treadle.rl.engine.dpo import commands

        commands.finish(job, events)


ENGINE = PairEngine()
