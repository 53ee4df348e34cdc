"""Published settings of `[sft]`: GAP (arXiv 2510.25320), Agent Foundation Models, AFM (arXiv 2508.13167), and the
baseline of rejection fine-tuning of SWEET-RL (arXiv 2503.15478).

Each value names its source: "script" is the launch script published with the paper, "paper" the article,
"default" a default of LLaMA-Factory, and "here" a choice of Treadle. A batch is the product of the script's
accumulation and GPUs.
"""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "finetuning_type": "full",  # script
    "template": "qwen",  # script
    "precision": "bf16",  # script
    "deepspeed": "zero3",  # script
    "per_device_batch_size": 1,  # script
    "logging_steps": 10,  # script
    "num_devices": 8,  # script
}

GAP_3B: dict[str, Any] = {
    **_COMMON,
    "model": "Qwen/Qwen2.5-3B-Instruct",  # script
    "learning_rate": 1e-5,  # script
    "lr_scheduler_type": "linear",  # default: neither script nor paper names one
    "warmup_ratio": 0.03,  # script
    "batch_size": 32,  # script: 16 x 2
    "num_train_epochs": 4.0,  # script
    "cutoff_tokens": 5120,  # script
    "num_devices": 2,  # script
}
"""GAP, on plans of parallel calls."""

AFM_MHQA_7B: dict[str, Any] = {
    **_COMMON,
    "model": "Qwen/Qwen2.5-7B",  # script
    "learning_rate": 2e-5,  # script
    "lr_scheduler_type": "linear",  # default: neither script nor paper names one
    "warmup_ratio": 0.03,  # script
    "batch_size": 32,  # script: 4 x 8
    "num_train_epochs": 4.0,  # script
    "cutoff_tokens": 5120,  # script
}
"""AFM, on multi-hop questions."""

AFM_MHQA_32B: dict[str, Any] = {
    **AFM_MHQA_7B,  # here: no values are published for this size
    "model": "Qwen/Qwen2.5-32B",  # here
    "num_nodes": 2,  # here
}
"""AFM, on multi-hop questions, with the larger policy."""

AFM_WEB_7B: dict[str, Any] = {
    **_COMMON,
    "model": "Qwen/Qwen2.5-7B-Instruct",  # script
    "learning_rate": 1.4e-5,  # script
    "lr_scheduler_type": "cosine",  # paper
    "warmup_ratio": 0.1,  # script
    "batch_size": 128,  # script: 16 x 8; paper: 256
    "num_train_epochs": 4.0,  # script; paper: 2.5
    "cutoff_tokens": 32_768,  # script
}
"""AFM, with web search and pages."""

AFM_WEB_32B: dict[str, Any] = {
    **AFM_WEB_7B,
    "model": "Qwen/Qwen2.5-32B-Instruct",  # script
    "batch_size": 256,  # script: 16 x 8 on two nodes
    "num_nodes": 2,  # script
}
"""AFM, with web search and pages, with the larger policy."""

AFM_CODE_7B: dict[str, Any] = {
    **_COMMON,
    "model": "Qwen/Qwen2.5-Coder-7B-Instruct",  # script
    "learning_rate": 3e-5,  # script
    "lr_scheduler_type": "cosine",  # paper
    "warmup_ratio": 0.1,  # paper; script: none
    "batch_size": 32,  # script: 4 x 8
    "num_train_epochs": 2.0,  # script
    "cutoff_tokens": 32_768,  # script
}
"""AFM, with a sandbox for Python."""

AFM_CODE_32B: dict[str, Any] = {
    **AFM_CODE_7B,
    "model": "Qwen/Qwen2.5-Coder-32B-Instruct",  # script
    "learning_rate": 1.4e-5,  # script
    "batch_size": 64,  # script: 4 x 16
    "num_nodes": 2,  # script
}
"""AFM, with a sandbox for Python, with the larger policy."""

RFT_LLAMA_8B: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",  # paper
    "finetuning_type": "full",  # paper
    "learning_rate": 2e-7,  # paper
    "batch_size": 32,  # paper
    "num_train_epochs": 4.0,  # paper
    "lr_scheduler_type": "cosine",  # here: the stage does not have the script's schedule, a cosine with a minimum
    "warmup_ratio": 0.03,  # script
    "precision": "bf16",  # script
    "deepspeed": "zero3",  # script
    "per_device_batch_size": 1,  # script
    "cutoff_tokens": 16_384,  # paper
}
"""Fine-tuning on the rollouts that pass all tests; published result: 28.2 % of ColBench's tasks solved."""

PLANNING_PRESETS: dict[str, dict[str, Any]] = {
    "gap-3b": GAP_3B,
    "afm-mhqa-7b": AFM_MHQA_7B,
    "afm-mhqa-32b": AFM_MHQA_32B,
    "afm-web-7b": AFM_WEB_7B,
    "afm-web-32b": AFM_WEB_32B,
    "afm-code-7b": AFM_CODE_7B,
    "afm-code-32b": AFM_CODE_32B,
}
"""Settings by the name of the preset; the same names are presets of `[rl]`."""
