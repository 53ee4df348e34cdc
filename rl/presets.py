"""Published settings of `[rl]`: GAP (arXiv 2510.25320), Agent Foundation Models, AFM (arXiv 2508.13167), AgentEvolver
(arXiv 2511.10395).

Each value names its source: "script" is the launch script published with the paper, "paper" the article,
"default" a default of the published trainer, and "here" a choice of Treadle. A key of each reward rule sets how answers
are compared; questions and tools are set by the files in `configs/`.
"""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "temperature": 1.0,  # script
    "top_p": 1.0,  # default
    "top_k": -1,  # default
    "max_grad_norm": 1.0,  # script
    "loss_agg": "token_mean",  # script
    "learning_rate": 1e-6,  # script
    "lr_scheduler_type": "constant",  # default
    "finetuning_type": "full",  # script
    "precision": "bf16",  # default
    "gradient_checkpointing": True,  # script
}

_DAPO: dict[str, Any] = {
    **_COMMON,
    "engine": "verl",  # script
    "group_size": 8,  # script
    "clip_low": 0.2,  # script
    "clip_high": 0.28,  # script
    "kl_coef": 0.0,  # script
    "dynamic_sampling": True,  # script
    "max_extra_batches": 10,  # here: the scripts have no limit
}

GAP_3B: dict[str, Any] = {
    **_DAPO,
    "warmup_steps": 3,  # script
    "weight_decay": 0.1,  # script
    "prompts_per_step": 32,  # script
    "gen_prompts": 64,  # script
    "mini_batch_prompts": 32,  # script
    "dual_clip": 10.0,  # script
    "max_prompt_tokens": 2048,  # script
    "max_response_tokens": 8192,  # script
    "overlong": "none",  # script: exact match alone
    "num_epochs": 2,  # script
    "max_steps": 200,  # script
    "validation_steps": 10,  # script
    "save_steps": 200,  # script
    "num_devices": 2,  # script
    "tensor_parallel": 2,  # script
    "gpu_memory_share": 0.5,  # script
}
"""GAP on multi-hop questions over a local Wikipedia; reward by exact match."""

AFM_MHQA_7B: dict[str, Any] = {
    **_COMMON,
    # script: PPO with a critic, whose learning rate is 1e-5 with a warm-up of 0.05 of the steps.
    "engine": {"type": "verl", "critic": True, "critic_learning_rate": 1e-5, "critic_warmup_ratio": 0.05},
    "group_size": 1,  # script
    "clip_low": 0.2,  # script
    "clip_high": 0.2,  # script
    "dual_clip": 3.0,  # script
    "kl_coef": 0.001,  # script
    "warmup_steps": 286,  # script: 0.285 of 1,005 steps
    "weight_decay": 0.01,  # script
    "prompts_per_step": 512,  # script
    "mini_batch_prompts": 256,  # script
    "max_prompt_tokens": 2048,  # script
    "max_response_tokens": 8192,  # script
    "num_epochs": 15,  # script
    "max_steps": 1005,  # script
    "validation_steps": 10,  # here
    "save_steps": 20,  # here
    "num_devices": 8,  # script: 16 GPUs
    "num_nodes": 2,  # script
    "tensor_parallel": 4,  # script
    "gpu_memory_share": 0.5,  # script
}
"""AFM on multi-hop questions over a local Wikipedia; reward by exact match. Only verl has a critic."""

AFM_MHQA_32B: dict[str, Any] = {
    **AFM_MHQA_7B,  # here: no values are published for this size
    "num_nodes": 8,  # here: those of the other policies of this size
    "tensor_parallel": 8,  # here
}
"""AFM on multi-hop questions, with the larger policy."""

AFM_WEB_32B: dict[str, Any] = {
    **_DAPO,
    "warmup_steps": 3,  # script
    "weight_decay": 0.1,  # script
    "prompts_per_step": 64,  # script
    "gen_prompts": 128,  # script
    "mini_batch_prompts": 64,  # script
    "dual_clip": 10.0,  # script
    "max_prompt_tokens": 2048,  # script
    "max_response_tokens": 30_720,  # script
    "overlong": "none",  # script: the judge alone
    "num_epochs": 2,  # script
    "max_steps": 60,  # script
    "validation_steps": 20,  # here
    "save_steps": 20,  # here
    "num_devices": 8,  # script: 64 GPUs
    "num_nodes": 8,  # script
    "tensor_parallel": 8,  # script
    "gpu_memory_share": 0.3,  # script
}
"""AFM with web search and pages; reward by a judge."""

AFM_WEB_7B: dict[str, Any] = {
    **AFM_WEB_32B,  # here: the published script is that of 32B
    "num_nodes": 1,  # here
    "tensor_parallel": 2,  # here
    "gpu_memory_share": 0.5,  # here
}
"""AFM with web search and pages, with the smaller policy."""

AFM_CODE_32B: dict[str, Any] = {
    **_DAPO,
    "warmup_steps": 10,  # script
    "weight_decay": 0.01,  # script
    "prompts_per_step": 256,  # script
    "gen_prompts": 256,  # script
    "mini_batch_prompts": 32,  # script
    "dual_clip": 3.0,  # script
    "max_prompt_tokens": 4096,  # script
    "max_response_tokens": 16_384,  # script; paper: 32,768 from step 40
    "overlong": "buffer",  # paper; default: no penalty
    "num_epochs": 100,  # script
    "max_steps": 120,  # paper; script: 2,000
    "validation_steps": 10,  # here
    "save_steps": 20,  # here
    "num_devices": 8,  # script: 64 GPUs
    "num_nodes": 8,  # script
    "tensor_parallel": 4,  # script
    "gpu_memory_share": 0.5,  # script
}
"""AFM with a sandbox for Python, on programs and math; reward by tests and symbolic comparison."""

AFM_CODE_7B: dict[str, Any] = {
    **AFM_CODE_32B,  # here: the published script is that of 32B
    "max_response_tokens": 32_768,  # paper
    "max_steps": 150,  # paper
    "num_nodes": 2,  # here
    "tensor_parallel": 2,  # here
}
"""AFM with a sandbox for Python, with the smaller policy."""

PLANNING_PRESETS: dict[str, dict[str, Any]] = {
    "gap-3b": GAP_3B,
    "afm-mhqa-7b": AFM_MHQA_7B,
    "afm-mhqa-32b": AFM_MHQA_32B,
    "afm-web-7b": AFM_WEB_7B,
    "afm-web-32b": AFM_WEB_32B,
    "afm-code-7b": AFM_CODE_7B,
    "afm-code-32b": AFM_CODE_32B,
}
"""Settings by the name of the preset; the same names are presets of `[sft]`."""

AGENTEVOLVER_7B: dict[str, Any] = {
    "engine": "verl",  # script: a trainer derived from it
    "reward": "outcome",  # script: the environment's score
    "group_size": 8,  # script
    "prompts_per_step": 32,  # script
    "mini_batch_prompts": 8,  # script
    "num_epochs": 40,  # script
    "learning_rate": 1e-6,  # script
    "lr_scheduler_type": "constant",  # default
    "weight_decay": 0.01,  # default
    "max_grad_norm": 1.0,  # default
    "clip_low": 0.2,  # default
    "clip_high": 0.28,  # default
    "dual_clip": 3.0,  # default
    "loss_agg": "token_mean",  # default
    "kl_coef": 0.001,  # script
    "temperature": 0.9,  # script
    "top_p": 1.0,  # default
    "top_k": -1,  # default
    "max_prompt_tokens": 4000,  # script
    "max_response_tokens": 21_580,  # script
    "max_new_tokens": 4096,  # script
    # script: alpha. default: all others. here: how often an unreadable reply is asked for again.
    "credit": {
        "type": "attribution",  # script
        "scheme": "decouple",  # script
        "outcome_on": "last_step",  # default
        "alpha": 0.2,  # script
        "alpha_decay": "none",  # default
        "fix_base": 0.2,  # default
        "consistent": 1.0,  # script
        "inconsistent": 0.2,  # script
        "weighting": "trajectories",  # script
        "by_length": False,  # default
        "prm_steps": 100,  # default
        "skip": "none",  # script
        "max_tokens": 8192,  # default
        "request_time_s": 120.0,  # default
        "concurrency": 20,  # default: what is in effect; 5 in the file
    },
    # script: rollout_mode "mixed", which needs engine "trl", as verl has no hints. default: what is not of the script.
    "experience": {
        "rollout_ratio": 0.5,  # script
        "keep_ratio": 0.0,  # script
        "top_k": 3,  # default
        "off_clip_high": 0.6,  # default
        "initial": True,  # script
        "update_steps": 0,  # default
    },
    "validation_questions": 256,  # default: a batch of the validation
    "validation_steps": 10,  # script
    "save_steps": 10,  # here: script: 10,000, after which an interrupted training starts over
    "finetuning_type": "full",  # script
    "precision": "bf16",  # default
    "gradient_checkpointing": True,  # script
    "num_devices": 8,  # script
    "tensor_parallel": 1,  # script
    "per_device_batch_size": 1,  # script
    "gpu_memory_share": 0.6,  # script
}
"""AgentEvolver with Qwen2.5-7B-Instruct, with labels of steps; `rl.credit.model` has to be set (script: qwen-plus)."""

AGENTEVOLVER_14B: dict[str, Any] = {
    **AGENTEVOLVER_7B,  # here: the published script is that of 7B; its defaults name the 14B policy
    "credit": {**AGENTEVOLVER_7B["credit"], "alpha": 0.1},  # script: that of the 14B policy with labels alone
}
"""AgentEvolver with Qwen2.5-14B-Instruct."""

EVOLVER_PRESETS: dict[str, dict[str, Any]] = {
    "agentevolver-7b": AGENTEVOLVER_7B,
    "agentevolver-14b": AGENTEVOLVER_14B,
}
"""Settings by the name of the preset."""
