"""Run TRL's trainer on stored pairs, and report each step and the held-out pairs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig

from treadle.core.engines.events import EventFile
from treadle.core.engines.export_model import continue_greedily
from treadle.core.engines.trainer.reporter import TrainerReporter
from treadle.rl.engine.dpo.pair_trainer import PairCollator, PairTrainer

_FIGURES = ("accuracy", "margin", "num_pairs")


class PairReporter(TrainerReporter):
    """A callback that reports accuracy and margin with each step, and the event `validation` for held-out pairs."""

    def figures(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """See `TrainerReporter`."""
        return {name: logs.get(f"pairs/{name}") for name in _FIGURES}

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, Any] | None = None, **_: Any) -> None:
        """Write the event `validation`; the trainer has logged the figures of the pairs just before."""
        logged = state.log_history[-1] if state.log_history else {}
        if state.is_world_process_zero and "eval_pairs/num_pairs" in logged:
            figures = {name: logged[f"eval_pairs/{name}"] for name in (*_FIGURES, "num_right")}
            loss = float((metrics or logged)["eval_loss"])
            self._events.write("validation", step=state.global_step, epoch=state.epoch, loss=loss, **figures)


def train_on_pairs(plan: Mapping[str, Any], job: Mapping[str, Any], events: EventFile) -> None:
    """Train to the end of the plan, from the state in the job if it names one; the model is written to `output`.

    At the end, the event `live_greedy` has the greedy completion of the job's prompt by the model in training.
    """
    trainer = make_trainer(plan, Path(job["parquet"]), DPOConfig(**plan["arguments"]))
    trainer.add_callback(PairReporter(events))
    trainer.train(resume_from_checkpoint=job["resume"])
    trainer.save_model(job["output"])
    if job["prompt"] and trainer.is_world_process_zero():
        trainer.model.eval()
        events.write("live_greedy", **continue_greedily(trainer.model, job["prompt"], job["num_greedy_tokens"]))


def make_trainer(plan: Mapping[str, Any], parquet: Path, arguments: DPOConfig) -> PairTrainer:
    """Return the trainer of a plan on stored pairs. Raises ValueError if all pairs are held out."""
    rows = pq.read_table(parquet, use_threads=False)
    held_out = rows["held_out"].to_pylist()
    columns = rows.drop_columns(["held_out"]).to_pylist()
    train = [row for row, is_held_out in zip(columns, held_out, strict=True) if not is_held_out]
    others = [row for row, is_held_out in zip(columns, held_out, strict=True) if is_held_out]
    tokenizer = AutoTokenizer.from_pretrained(plan["model"], revision=plan["revision"])
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return PairTrainer(
        model=_load(plan),
        # With adapters, the reference is the model without them.
        ref_model=None if plan["lora"] else _load(plan).eval(),
        args=arguments,
        data_collator=PairCollator(tokenizer.pad_token_id, plan["aggregate"]),
        train_dataset=Dataset.from_list(train),
        eval_dataset=Dataset.from_list(others) if others else None,
        processing_class=tokenizer,
        peft_config=LoraConfig(**plan["lora"]) if plan["lora"] else None,
        aggregate=plan["aggregate"],
        nll_coef=plan["nll_coef"],
    )


def _load(plan: Mapping[str, Any]) -> Any:
    """Return the base model in 32 bits; in 16 bits small updates would be lost, and the policy equal the reference."""
    model = AutoModelForCausalLM.from_pretrained(
        plan["model"], revision=plan["revision"], dtype=torch.float32, attn_implementation="sdpa"
    )
    model.config.use_cache = False
    return model
