"""Run the stage `dpo`: train a model on preferences, and write a checkpoint.

The training is in the stage's workspace, so a later attempt resumes from the newest complete state. See
docs/behaviour/preferences.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.base_model import base_model, context_window
from treadle.core.engines.training import EngineOptions, find_machine
from treadle.core.engines.training_run import StepProgress, TrainingListener
from treadle.core.errors import ConfigError
from treadle.core.runs.stage import StageContext
from treadle.core.tables import CHECKPOINTS, MODEL_FOLDER
from treadle.rl.dpo.arguments import training_plan
from treadle.rl.dpo.config import DpoSettings
from treadle.rl.dpo.engine import ENGINE
from treadle.rl.dpo.figures import draw_pair_curves
from treadle.rl.dpo.launch import DpoFolder, PairStep, PairTraining, train_on_pairs
from treadle.rl.dpo.rows import PairSelection, PairStore
from treadle.rl.dpo.tables import PAIR_LOG
from treadle.rl.training.checkpoint_checks import check_exported

_log = logging.getLogger(__name__)


class _PairProgress(StepProgress[PairStep]):
    """Reporter of logged steps to the stage's progress."""

    def facts(self, step: PairStep) -> dict[str, str | float]:
        """See `StepProgress.facts`."""
        accuracy = {} if step.accuracy is None else {"accuracy": round(step.accuracy, 3)}
        return {"loss": round(step.loss, 4), **accuracy}


class DpoRun:
    """State of one attempt of the stage."""

    def __init__(self, context: StageContext) -> None:
        self._context = context
        self._settings: DpoSettings = context.settings
        self._options = self._settings.options
        self._folder = DpoFolder(context.workspace)

    def run(self) -> dict[str, Any]:
        """Train or resume training, check the model, then write the checkpoint and its tables."""
        base = base_model(self._options.model, self._context.inputs.get("checkpoint", ()), _log.info, key="dpo.model")
        address = str(self._context.address)
        window_tokens = context_window(base) if isinstance(base, Path) else None
        pairs = PairStore(self._settings, self._context.inputs["preferences"], address, window_tokens)
        selection = pairs.select()
        pairs.store(self._folder.parquet, selection)
        if isinstance(base, Path):
            self._check_tokenizer(ChatTokenizer.load(base).digest, selection)
        machine = find_machine(ENGINE, self._options, 1)
        progress = _PairProgress(self._context.progress)
        done = train_on_pairs(
            self._folder,
            training_plan(
                self._options,
                str(base),
                machine,
                num_rows=len(selection.train),
                has_holdout=bool(selection.held_out),
                longest_row=selection.longest,
                output=str(self._folder.output),
                seed=self._settings.seed,
            ),
            EngineOptions(
                variant=machine.variant,
                threads=self._options.threads,
                devices=self._options.devices,
                num_devices=machine.num_devices,
                stall_timeout_s=self._options.stall_timeout_s,
                offline=isinstance(base, Path),
            ),
            ENGINE,
            TrainingListener(
                # For a hub id, only the engine has the tokenizer, after downloading it.
                prepared=lambda prepared: self._check_tokenizer(prepared["tokenizer_digest"], selection),
                begin=progress.begin,
                step=progress.step,
                notify=_log.info,
            ),
            prompt=selection.prompt,
        )
        if isinstance(base, Path):
            check_exported(done, base, ChatTokenizer.load(base), moved_to=self._folder.refused, address=address)
        return self._write(done, machine.variant, selection)

    def _check_tokenizer(self, digest: str, selection: PairSelection) -> None:
        """Raise ConfigError if the pairs were made with another tokenizer than the model's."""
        if strange := selection.tokenizers - {digest}:
            raise ConfigError(
                f"{self._context.address}: the pairs were made with tokenizer {min(strange)[:12]}, but that of "
                f"dpo.model = {self._options.model} is {digest[:12]}; set it to the policy that was rolled out"
            )

    def _write(self, done: PairTraining, variant: str, selection: PairSelection) -> dict[str, Any]:
        context, options = self._context, self._options
        bound = context.inputs.get("checkpoint", ())
        row = {
            **done.checkpoint_columns(),
            "name": str(context.address),
            "base_model": options.model,
            "base_digest": bound[0].digest if bound else self._settings.model_digest or done.revision,
            "finetuning_type": options.finetuning_type,
            "num_rows": len(selection.train),
            "num_target_tokens": selection.num_target_tokens,
            "seed": self._settings.seed,
            "engine": ENGINE.label(done.versions, variant),
        }
        log = pair_log(done)
        context.write_telemetry(PAIR_LOG.kind, log)
        context.write(CHECKPOINTS.kind, [row])
        context.add_file(CHECKPOINTS.kind, "curves.svg", draw_pair_curves(log))
        context.add_file(CHECKPOINTS.kind, "plan.json", self._without_local_paths())
        context.add_folder(CHECKPOINTS.kind, MODEL_FOLDER, done.model)
        return {
            "rows": len(selection.train),
            "longest_row": selection.longest,
            "target_tokens": selection.num_target_tokens,
            "aggregate": options.aggregate,
            **{f"left_out.{why}": count for why, count in sorted(selection.left_out.items())},
            "steps": done.num_steps,
            "resumed_step": done.resumed_step,
            "first_loss": done.steps[0].loss,
            "last_loss": done.steps[-1].loss,
            **_held_out_metrics(done),
            **done.metrics(),
        }

    def _without_local_paths(self) -> bytes:
        """Return the plan without paths of this machine, so that equal trainings give equal bytes."""
        plan = orjson.loads(self._folder.config.read_bytes())
        plan["model"] = self._options.model
        plan["arguments"]["output_dir"] = "output"
        return orjson.dumps(plan, option=orjson.OPT_INDENT_2)


def pair_log(done: PairTraining) -> list[dict[str, Any]]:
    """Return the rows of `pair_log`: training steps, then the figures of held-out pairs."""
    empty = dict.fromkeys(("learning_rate", "grad_norm", "seconds"))
    names = PAIR_LOG.schema.names[1:]
    train = [{"split": "train", **{name: getattr(step, name) for name in names}} for step in done.steps]
    held_out = [{"split": "heldout", **empty, **asdict(one)} for one in done.validations]
    return train + [{name: row[name] for name in PAIR_LOG.schema.names} for row in held_out]


def _held_out_metrics(done: PairTraining) -> dict[str, Any]:
    if not done.validations:
        return {}
    last = done.validations[-1]
    return {
        "held_out_pairs": last.num_pairs,
        "held_out_right": last.num_right,
        "held_out_accuracy": last.accuracy,
        "held_out_margin": last.margin,
    }


def run(context: StageContext) -> Mapping[str, Any]:
    """Train one model on preferences; return statistics of the pairs, steps and losses."""
    return DpoRun(context).run()
