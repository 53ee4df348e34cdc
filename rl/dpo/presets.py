"""Published settings of `[dpo]`: SWEET-RL on ColBench with Llama-3.1-8B-Instruct (arXiv 2503.15478).

Each value names its source: "paper" the article, "command" a training command published with the code, "code" a default
or a constant of that code, and "here" a choice of Treadle. Published results of the preset, as targets: 40.4 % of tasks
solved with `sweet`, 34.4 % with `multi-turn-dpo`, 28.2 % with rejection fine-tuning, 22.4 % before training.
"""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",  # paper
    "finetuning_type": "full",  # command
    "beta": 0.1,  # paper
    "learning_rate": 2e-7,  # paper
    "batch_size": 8,  # paper
    "per_device_batch_size": 1,  # command
    "lr_scheduler_type": "cosine_with_min_lr",  # code
    "min_lr_rate": 0.1,  # code
    "warmup_ratio": 0.03,  # code
    "adam_beta2": 0.95,  # code
    "weight_decay": 0.0,  # code
    "max_grad_norm": 1.0,  # code
    "precision": "bf16",  # command
    "gradient_checkpointing": True,  # command
    "holdout_share": 0.03,  # code
    "holdout": "task",  # here: the code holds out the first pairs, whose tasks it trains on
    "logging_steps": 1,  # command
}

CRITIC: dict[str, Any] = {
    **_COMMON,
    "aggregate": "token_mean",  # code; the paper sums over turns
    "num_train_epochs": 4.0,  # paper
    "nll_coef": 0.0,  # command; 0.01 in the paper's table
    "max_tokens": 8192,  # paper
}

POLICY: dict[str, Any] = {
    **_COMMON,
    "aggregate": "sum",  # paper
    "num_train_epochs": 1.0,  # paper
    "nll_coef": 0.01,  # paper
    "max_tokens": 16_384,  # paper
}

MULTI_TURN: dict[str, Any] = {**POLICY, "num_train_epochs": 4.0}  # paper

DPO_PRESETS: dict[str, dict[str, Any]] = {
    "sweet-llama-8b": POLICY,
    "sweet-llama-8b-critic": CRITIC,
    "multi-turn-dpo-llama-8b": MULTI_TURN,
}
