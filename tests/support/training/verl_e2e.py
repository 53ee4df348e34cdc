"""A training's folder for verl with everything but a GPU: tiny model, rows, job, overrides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from support.training.scripted_groups import CONTRACT_ENVIRONMENT
from support.training.verl_plans import FOUR_GPUS, LABELLED, preset_plan, verl_files, verl_plan

from treadle.core.engines.config import Machine
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.question.settings import QuestionSettings
from treadle.rl.engine.verl.folder import VerlFolder
from treadle.rl.presets import EVOLVER_PRESETS, PLANNING_PRESETS
from treadle.rl.training.plan import RlPlan
from treadle.rl.verl.config import loop_yaml, override_lines, verl_overrides
from treadle.rl.verl.data import write_verl_rows
from treadle.rl.verl.rows import TRAINING_SCHEMA

TINY_QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 272, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "bos_token_id": 256, "eos_token_id": 258, "dtype": "bfloat16", "use_cache": True,
}  # fmt: skip
"""Configuration of a policy of 30,000 parameters over the byte tokenizer."""
LONG = 3
"""Row whose prompt is too long."""


def contract_plan(environment: QuestionSettings = CONTRACT_ENVIRONMENT, **keys: Any) -> RlPlan:
    """Return a plan with the scenario's branching and sigmas."""
    prompts_per_step = keys.pop("prompts_per_step", 2)
    return verl_plan(
        FOUR_GPUS,
        num_rows=keys.pop("num_rows", 4),
        num_validation_rows=0,
        environment=environment,
        group_size=8,
        initial_rollouts=4,
        prompts_per_step=prompts_per_step,
        mini_batch_prompts=prompts_per_step,
        max_prompt_tokens=400,
        max_response_tokens=512,
        max_new_tokens=256,
        extra={"+trainer.note": "it's \\ 'quoted' ${trainer.nnodes}"},
        **keys,
    )


def write_start(folder: Path) -> Path:
    """Tokenizer and configuration of the tiny policy; no weights."""
    write_byte_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(TINY_QWEN))
    return folder


def prepare_folder(
    root: Path, environment: QuestionSettings = CONTRACT_ENVIRONMENT, *, interpreter: str = "", **keys: Any
) -> dict[str, Any]:
    """Write it, with further keys of the plan; returns the job."""
    root.mkdir(parents=True, exist_ok=True)
    plan = contract_plan(environment, **keys)
    start = write_start(root / "start")
    rows = [
        {
            "question_key": f"key-{at}", "question": f"Question {at}?" + " long" * 300 * (at == LONG), "choices": [],
            "answers": ["12"], "domain": "math", "dataset": "set", "score_tool": 0.5,
            "score_corr": 0.5, "rank": 0, "environment": "default",
        }
        for at in range(4)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, TRAINING_SCHEMA), root / "rows.parquet")
    job: dict[str, Any] = {
        "plan": json.loads(plan.to_json()),
        "environments": {"default": environment.model_dump(mode="json")},
        "interpreter": interpreter,
        "rows": str(root / "rows.parquet"),
        "validation": None,
        "model": str(start),
        "output": str(root / "output"),
        "final": str(root / "model"),
        "events": str(root / "events.jsonl"),
        "rollouts": str(root / "rollouts"),
        "resume": None,
        "state": None,
        "greedy_tokens": 4,
    }
    (root / "job.json").write_text(json.dumps(job))
    files = VerlFolder.of_job(job).files(job)
    files.job.parent.mkdir(exist_ok=True)
    files.job.write_text(json.dumps(job))
    files.loop.write_text(loop_yaml(files.job))
    write_verl_rows(root / "rows.parquet", files.rows, {"default": environment})
    write_verl_rows(root / "rows.parquet", files.validation, {"default": environment}, split="valid", only_first=True)
    two_nodes = Machine(variant="cuda", num_devices=8, num_nodes=2)
    lines = {
        "job": override_lines(verl_overrides(plan, files)),
        "et-agent-7b": override_lines(verl_overrides(verl_plan(preset="et-agent-7b"), verl_files())),
        **{name: _lines_of(preset_plan(name)) for name in PLANNING_PRESETS},
        **{name: _lines_of(preset_plan(name, **LABELLED)) for name in EVOLVER_PRESETS},
        "lora": override_lines(
            verl_overrides(
                verl_plan(two_nodes, num_validation_rows=0, finetuning_type="lora", kl_coef=0.01, dual_clip=None,
                          loss_agg="sequence_mean", lr_scheduler_type="cosine", precision="fp16"),
                verl_files("global_step_30"),
            )
        ),
    }  # fmt: skip
    (root / "overrides.json").write_text(json.dumps(lines))
    return job


def _lines_of(plan: RlPlan) -> list[str]:
    return override_lines(verl_overrides(plan, verl_files()))
