"""Train with TRL's group-relative policy optimisation, using Treadle's own rollouts and rewards.

TRL gets the trajectories of a step as token ids, with a mask that keeps tool results out of the loss. Rewards are
computed where whole groups are known, and passed to TRL. Written for TRL 1.16, whose `rollout_func` is experimental;
tests/e2e/test_trl_engine.py checks what is used here. Documented in docs/behaviour/rl.md.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig

from treadle.agent.contract import Task
from treadle.core.chat import ChatTokenizer
from treadle.core.engines.events import EventFile
from treadle.core.engines.export_model import continue_greedily
from treadle.environments.mixture import Environments
from treadle.rl.engine.experience import open_experience
from treadle.rl.engine.group_source import open_source
from treadle.rl.engine.rows import Payloads, check_rows, prompt_ids, read_tasks
from treadle.rl.engine.trl.events import TrlReporter
from treadle.rl.engine.trl.generators import open_generator
from treadle.rl.engine.trl.group_trainer import GroupTrainer, innermost
from treadle.rl.engine.trl.rollout_function import RolloutFunction, RolloutFunctionSlot, precomputed_rewards
from treadle.rl.engine.trl.validation import validator
from treadle.rl.training.plan import RlPlan
from treadle.rl.trl.config import lora_arguments, trl_arguments


def train_policy(plan: RlPlan, job: dict[str, Any], environments: Environments, events: EventFile) -> None:
    """Train to the end of the plan, from the state in the job if it names one.

    States are saved in the job's `output`.
    """
    start = Path(job["model"])
    codec = ChatTokenizer.load(start)
    payloads = Payloads.of_job(job)
    rows = read_tasks(Path(job["rows"]), payloads)
    check_rows(rows, plan.num_rows, plan.options.max_prompt_tokens, environments, codec)
    validation = read_tasks(Path(job["validation"]), payloads) if job["validation"] else []
    arguments = GRPOConfig(**trl_arguments(plan, Path(job["output"])))
    reporter = TrlReporter(plan, events, is_first=arguments.process_index == 0)
    trainer, slot = _trainer(plan, start, rows, arguments, reporter)
    generate, refresh_weights, max_batch = open_generator(plan, trainer, codec, reporter)
    limits = dict(max_model_len=_max_context_tokens(trainer), max_batch=max_batch)
    with (
        open_source(plan, job, environments, generate, codec, **limits) as source,
        open_experience(plan, job, rows, environments, codec, is_first=arguments.process_index == 0) as experience,
    ):
        dump = Path(job["rollouts"])
        slot.rollouts = RolloutFunction(plan, rows, source, refresh_weights, reporter, dump, experience)
        trainer.validate = validator(plan, validation, source, refresh_weights, reporter)
        reporter.greedy_of_state = lambda: _greedy(
            trainer, prompt_ids(rows[0], environments, codec), job["greedy_tokens"]
        )
        trainer.train(resume_from_checkpoint=job["resume"])


def _max_context_tokens(trainer: GroupTrainer) -> int | None:
    """Return the maximum context length of the model, and of vLLM if it generates; None if there is no limit."""
    own = getattr(innermost(trainer.model).config.get_text_config(), "max_position_embeddings", None)
    served = trainer.args.vllm_max_model_length if trainer.use_vllm else None
    return min((length for length in (own, served) if length is not None), default=None)


def _trainer(
    plan: RlPlan, start: Path, rows: Sequence[Task], arguments: GRPOConfig, reporter: TrlReporter
) -> tuple[GroupTrainer, RolloutFunctionSlot]:
    # Keep weights in fp32 whatever the precision of the computation: 16 bits would round away the small updates.
    policy = AutoModelForCausalLM.from_pretrained(str(start), dtype=torch.float32, attn_implementation="sdpa")
    policy.config.use_cache = False
    lora = lora_arguments(plan)
    slot = RolloutFunctionSlot()
    # Silences TRL's warning that `rollout_func` may change; the TRL version is pinned for that reason.
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    trainer = GroupTrainer(
        model=policy,
        reward_funcs=precomputed_rewards,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [str(index) for index in range(len(rows))]}),
        processing_class=AutoTokenizer.from_pretrained(str(start)),
        rollout_func=slot,
        callbacks=[reporter, _StepSchedule(plan, slot)],
        peft_config=LoraConfig(**lora) if lora is not None else None,
    )
    trainer.follow(plan, rows)
    return trainer, slot


class _StepSchedule(TrainerCallback):  # type: ignore[misc]
    """Callback that makes TRL evaluate and save at the plan's steps, after the step's update of experience."""

    def __init__(self, plan: RlPlan, slot: RolloutFunctionSlot) -> None:
        self._plan = plan
        self._slot = slot

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step, rest = divmod(state.global_step, self._plan.updates_per_step)
        if not rest:
            self._slot.rollouts.end_step(step)
        control.should_evaluate = not rest and self._plan.validates_at(step)
        control.should_save = not rest and self._plan.saves_at(step)


def _greedy(trainer: GroupTrainer, prompt: Sequence[int], num_tokens: int) -> dict[str, Any]:
    """Return the greedy continuation of a prompt by the policy in training."""
    was_training = trainer.model.training
    trainer.model.eval()
    try:
        return continue_greedily(trainer.model, prompt, num_tokens)
    finally:
        trainer.model.train(was_training)
