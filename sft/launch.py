"""Run fine-tuning in child processes (prepare, train, finish), each in the environment of the engine.

All files of a training are in one folder. If called again with the folder of an interrupted training, it resumes from
the newest complete state. See docs/behaviour/sft.md, part "Engine".
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from treadle.core.engines import training
from treadle.core.engines.event_log import EventLog
from treadle.core.engines.process import Child
from treadle.core.engines.training import Advice, ConfiguredFolder, PathIn, write_rows
from treadle.core.engines.training_run import LossTrainingRun, TrainingListener, TrainingResult
from treadle.sft.llamafactory_config import commands_of_nodes
from treadle.sft.training_engine import SFT_ENGINES, SftEngine

_log = logging.getLogger(__name__)

_ADVICE = Advice(
    refused="the engine refuses the configuration of sft",
    memory="lower per_device_batch_size or cutoff_tokens, set gradient_checkpointing, use LoRA, or "
    'spread the model over more GPUs with deepspeed = "zero3"',
    killed="lower per_device_batch_size or cutoff_tokens, use LoRA, or use a machine with more memory",
)
_FINISH_ADVICE = replace(
    _ADVICE,
    memory="the training is saved, only its model must still be written; free memory: all weights are held at once, "
    "in fp32 if adapters are merged",
    killed="the training is saved, only its model must still be written; free memory or use a machine with more: "
    "all weights are held at once, in fp32 if adapters are merged",
)
_ROWS_SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int32()))])


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A logged step."""

    step: int
    """Number of updates so far, earlier attempts included."""
    num_steps: int
    """Number of updates of the whole training."""
    loss: float
    """Mean loss per target token since the previous logged step."""
    learning_rate: float
    grad_norm: float | None
    """Norm of the gradient before clipping."""
    epoch: float
    seconds: float
    """Seconds in training so far, over all attempts, without steps that were lost when an attempt ended."""


@dataclass(frozen=True, slots=True)
class TrainingFolder(ConfiguredFolder):
    """Paths of the files of one fine-tuning."""

    rows = PathIn("rows")
    """Rows as `datasets` saves them, for `tokenized_path`."""
    config = PathIn("train.yaml")
    """The engine's YAML."""
    deepspeed = PathIn("deepspeed.json")
    """DeepSpeed's JSON; the caller writes it."""
    nodes = PathIn("nodes.txt")
    """Commands for the other nodes, one per line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions(training.EngineOptions):
    """The engine, and options of its processes."""

    engine: SftEngine = field(default_factory=lambda: SFT_ENGINES.parse("llamafactory"))
    torchrun: tuple[str, ...] | None = None
    """Arguments of torchrun, for distributed training."""
    num_nodes: int = 1
    """Number of machines that train together; if there are several, `torchrun` has the arguments of the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(TrainingResult[TrainingStep]):
    """The result of a completed fine-tuning; its steps are updates."""

    revision: str
    """Commit of the base model on the model hub; empty for a folder."""
    tokenizer_digest: str
    """Digest of the base model's tokenizer and chat template, as in `ChatTokenizer.digest`."""


Listener = TrainingListener[TrainingStep]


def store_rows(folder: TrainingFolder, batches: Iterable[pa.RecordBatch]) -> int:
    """Write `input_ids` and `labels` of the batches as they arrive; return the number of rows.

    The file is written atomically. An existing file is kept, because the folder belongs to one set of rows.
    """
    import pyarrow.parquet as pq

    if folder.parquet.is_file():
        return int(pq.read_metadata(folder.parquet).num_rows)
    columns = (batch.select(_ROWS_SCHEMA.names).cast(_ROWS_SCHEMA) for batch in batches)
    return write_rows(folder.parquet, _ROWS_SCHEMA, columns)


def fine_tune(
    folder: TrainingFolder,
    config_text: str,
    options: EngineOptions,
    listener: Listener | None = None,
    *,
    prompt: Sequence[int] = (),
) -> Training:
    """Train on the stored rows according to the engine's YAML, or resume an interrupted training.

    The YAML must name the folder's `rows` and `output`. The event `prepared` has `tokenizer_digest` and `revision`.
    Raises the errors of `TrainingRun.run`.
    """
    run = _FineTuningRun(
        engine=options.engine,
        folder=folder,
        options=options,
        events=EventLog(folder.events, TrainingStep),
        listener=listener or Listener(),
        config_text=config_text,
        prompt=list(prompt),
    )
    run.run()
    last = run.events.last
    return Training(
        **run.facts() | {"seconds": last["end"]["seconds"] + run.events.earlier_s},
        revision=last["prepared"]["revision"],
        tokenizer_digest=last["prepared"]["tokenizer_digest"],
    )


@dataclass(kw_only=True)
class _FineTuningRun(LossTrainingRun[TrainingStep]):
    """One call of `fine_tune`."""

    name = "fine-tuning"
    check_command = "prepare"
    model_key = "sft.model"
    learned_from = "the rows' targets"

    folder: TrainingFolder
    options: EngineOptions

    def _announcement(self, command: str) -> str:
        if command == "prepare":
            return f"checking {self.engine.title}'s configuration and saving the rows"
        return "writing the model" if command == "finish" else ""

    def _advice(self, command: str) -> Advice:
        advice = _FINISH_ADVICE if command == "finish" else _ADVICE
        return replace(advice, refused=f"{self.engine.title} refuses the configuration of sft")

    def _job(self, command: str) -> dict[str, Any]:
        engine_folder = SFT_ENGINES.import_folder(self.engine)
        return {
            **super()._job(command),
            "engine": self.engine.model_dump(mode="json"),
            "engine_folder": str(engine_folder) if engine_folder else None,
            "rows": str(self.folder.rows),
        }

    def _argv(self, command: str) -> list[str]:
        """Return the command line, with torchrun for a distributed training."""
        argv = super()._argv(command)
        if command == "train" and self.options.torchrun is not None:
            argv[1:1] = ["-m", "torch.distributed.run", *self.options.torchrun]
        return argv

    def _environ(self, command: str) -> dict[str, str]:
        """Return the environment variables; those of torchrun are set for `prepare` too, which runs without it."""
        environ = super()._environ(command)
        if command == "prepare" and self.options.torchrun is not None:
            # LLaMA-Factory refuses settings that need torchrun if it is started otherwise; port 0 is any free one.
            environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
            environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        return environ

    def _start(self, command: str) -> Child:
        """Start a process; before `train` on several nodes, write and log commands of the nodes that it waits for."""
        if command == "train" and self.options.num_nodes > 1:
            self._write_node_commands()
        return super()._start(command)

    def _write_node_commands(self) -> None:
        ours = {name: value for name, value in self._environ("train").items() if os.environ.get(name) != value}
        commands = commands_of_nodes(self._argv("train"), ours, self.options.num_nodes)
        self.folder.nodes.write_text("".join(f"{line}\n" for line in commands), encoding="utf-8")
        _log.warning(
            "training waits for %d further node(s): run line 1 of %s on the second one, line 2 on the third, and so "
            "on. The first line is: %s",
            len(commands),
            self.folder.nodes,
            commands[0],
        )
