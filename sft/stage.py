"""Implement the stage `sft`: train a model on fine-tuning rows, and write a checkpoint.

The checkpoint can be served and trained further. The training is kept in the stage's workspace, so an interrupted
attempt resumes from its newest complete state. See docs/behaviour/sft.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.base_model import base_model
from treadle.core.engines.training import find_machine
from treadle.core.engines.training_run import StepProgress
from treadle.core.errors import ConfigError, StageFailed
from treadle.core.runs.stage import StageContext
from treadle.core.store.storage import storage_errors
from treadle.core.tables import CHECKPOINTS, MODEL_FOLDER
from treadle.sft.config import SftSettings
from treadle.sft.launch import (
    EngineOptions,
    Listener,
    Training,
    TrainingFolder,
    TrainingStep,
    fine_tune,
    store_rows,
)
from treadle.sft.tables import TRAINING_LOG
from treadle.sft.trained_rows import COLUMNS, RowSelection, RowStatistics, draw_rows, metrics_of, render_statistics
from treadle.sft.training_plan import Paths, TrainingPlan

_log = logging.getLogger(__name__)

_READ = tuple(dict.fromkeys((*COLUMNS, "num_tokens", "input_ids", "labels", "tokenizer_digest")))
_MASKED = -100


class _SftProgress(StepProgress[TrainingStep]):
    """Reporter of logged steps to the stage's progress."""

    def facts(self, step: TrainingStep) -> dict[str, str | float]:
        """See `StepProgress.facts`."""
        return {"loss": round(step.loss, 4), "learning_rate": f"{step.learning_rate:.2g}"}


class SftRun:
    """State of one attempt of the stage."""

    def __init__(self, context: StageContext) -> None:
        self._context = context
        self._settings: SftSettings = context.settings
        self._options = self._settings.options
        self._folder = TrainingFolder(context.workspace)
        self._selection = RowSelection(self._options)
        self._statistics = RowStatistics()
        self._digests: set[str] = set()
        self._prompt: list[int] = []

    def run(self) -> dict[str, Any]:
        """Train or resume training, then write the checkpoint and its tables."""
        base = base_model(self._options.model, self._context.inputs.get("checkpoint", ()), _log.info, key="sft.model")
        num_rows = self._store()
        if isinstance(base, Path):
            self._check_tokenizer(ChatTokenizer.load(base).digest)
        plan = self._plan(base)
        # Before the training, so that a missing matplotlib does not cost hours of it.
        picture = draw_rows(self._statistics, self._options.cutoff_tokens)
        progress = _SftProgress(self._context.progress)
        training = fine_tune(
            self._folder,
            plan.yaml(),
            EngineOptions(
                engine=self._options.engine,
                variant=plan.machine.variant,
                threads=self._options.threads,
                devices=self._options.devices,
                num_devices=plan.machine.num_devices,
                stall_timeout_s=self._options.stall_timeout_s,
                offline=isinstance(base, Path),
                torchrun=plan.torchrun,
                num_nodes=plan.machine.num_nodes,
            ),
            Listener(
                # For a hub id, only the engine has the tokenizer, after downloading it.
                prepared=lambda prepared: self._check_tokenizer(prepared["tokenizer_digest"]),
                begin=progress.begin,
                step=progress.step,
                notify=_log.info,
            ),
            prompt=self._prompt,
        )
        self._check_checkpoint(training)
        return self._write(training, plan, num_rows, picture)

    def _store(self) -> int:
        """Select the rows and store them for the engine; return their number."""
        num_rows = store_rows(self._folder, self._selected_batches())
        if not self._selection.num_read:
            for _ in self._selected_batches():
                pass
        if not num_rows:
            left_out = ", ".join(f"{why} {count:,}" for why, count in self._selection.left_out().items() if count)
            raise StageFailed(
                f"{self._context.address}: 0 of {self._selection.num_read:,} rows can be trained on ({left_out})"
            )
        return num_rows

    def _selected_batches(self) -> Iterator[pa.RecordBatch]:
        for table in self._context.inputs["sft_rows"]:
            for batch in table.batches(_READ):
                chosen = self._selection.take(batch)
                if not chosen.num_rows:
                    continue
                self._statistics.add(chosen)
                self._digests.update(chosen["tokenizer_digest"].unique().to_pylist())
                if not self._prompt:
                    labels = chosen["labels"][0].as_py()
                    first = next((place for place, label in enumerate(labels) if label != _MASKED), len(labels))
                    self._prompt = chosen["input_ids"][0].as_py()[:first]
                yield chosen

    def _check_tokenizer(self, digest: str) -> None:
        """Raise ConfigError if the rows were made with another tokenizer than the model's."""
        if strange := self._digests - {digest}:
            raise ConfigError(
                f"{self._context.address}: the rows were made with tokenizer {min(strange)[:12]}, but that of "
                f"sft.model = {self._options.model} is {digest[:12]}; set it, or sft_rows.tokenizer, to the other"
            )

    def _plan(self, base: Path | str) -> TrainingPlan:
        options, folder = self._options, self._folder
        machine = find_machine(options.engine, options, options.num_nodes)
        paths = Paths(model=str(base), rows=folder.rows, output=folder.output, deepspeed=folder.deepspeed)
        longest_row, seed = self._selection.longest_row, self._settings.seed
        plan: TrainingPlan = options.engine.plan(options, paths, machine, longest_row=longest_row, seed=seed)
        for path, content in plan.files.items():
            with storage_errors("write", path):
                path.write_bytes(content)
        for note in plan.notes:
            _log.warning("%s", note)
        return plan

    def _check_checkpoint(self, training: Training) -> None:
        """Raise StageFailed if the trained model's tokenizer or chat template is not that of its rows."""
        digest = ChatTokenizer.load(training.model).digest
        if strange := self._digests - {digest}:
            raise StageFailed(
                f"{self._context.address}: the tokenizer or chat template of the checkpoint differs from that of the "
                f"rows ({digest[:12]} instead of {min(strange)[:12]}); see {training.model}"
            )

    def _write(self, training: Training, plan: TrainingPlan, num_rows: int, picture: bytes) -> dict[str, Any]:
        context, options = self._context, self._options
        overall = self._statistics.groups()[0]
        first, last = training.steps[0], training.steps[-1]
        row = {
            **training.checkpoint_columns(),
            "name": str(context.address),
            "base_model": options.model,
            "base_digest": self._base_digest() or training.revision,
            "finetuning_type": options.finetuning_type,
            "num_rows": num_rows,
            "num_target_tokens": overall.target_tokens,
            "seed": self._settings.seed,
            "engine": options.engine.label(training.versions, plan.machine.variant),
        }
        log = [{name: getattr(step, name) for name in TRAINING_LOG.schema.names} for step in training.steps]
        context.write_telemetry(TRAINING_LOG.kind, log)
        context.write(CHECKPOINTS.kind, [row])
        context.add_file(CHECKPOINTS.kind, "rows.svg", picture)
        context.add_file(CHECKPOINTS.kind, "report.md", self._report(training).encode())
        context.add_file(CHECKPOINTS.kind, "train.yaml", self._without_local_paths(plan).encode())
        context.add_folder(CHECKPOINTS.kind, MODEL_FOLDER, training.model)
        return {
            **metrics_of(self._statistics, self._selection),
            "steps": training.num_steps,
            "resumed_step": training.resumed_step,
            "first_loss": first.loss,
            "last_loss": last.loss,
            **training.metrics(),
        }

    def _base_digest(self) -> str:
        bound = self._context.inputs.get("checkpoint", ())
        return bound[0].digest if bound else self._settings.model_digest

    def _without_local_paths(self, plan: TrainingPlan) -> str:
        """Return the YAML without absolute paths of this machine, so that equal trainings give equal bytes."""
        inside = f"{self._folder.path}/"
        arguments = {
            name: f"./{value.removeprefix(inside)}" if isinstance(value, str) and value.startswith(inside) else value
            for name, value in plan.arguments.items()
        }
        return replace(plan, arguments=arguments | {"model_name_or_path": self._options.model}).yaml()

    def _report(self, training: Training) -> str:
        first, last = training.steps[0], training.steps[-1]
        return (
            "# Fine-tuning\n\n"
            f"{training.num_steps:,} steps, {training.num_epochs:g} epochs of {self._options.model}; loss "
            f"{first.loss:.3f} at step {first.step}, {last.loss:.3f} at step {last.step}.\n\n"
            f"![rows](rows.svg)\n\n{render_statistics(self._statistics, self._selection)}"
        )


def run(context: StageContext) -> Mapping[str, Any]:
    """Fine-tune one model; return statistics of the rows, steps and losses."""
    return SftRun(context).run()
