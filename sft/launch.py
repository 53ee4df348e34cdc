"""Run fine-tuning in child processes (prepare, train, finish), each in the environment of the engine `sft`.

All files of a training are in one folder. If called again with the folder of an interrupted training, it resumes from
the newest complete state. See docs/behaviour/sft.md, part "Engine".
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from treadle.core.engines import training
from treadle.core.engines.cache import Notify, quiet
from treadle.core.engines.devices import VISIBLE, first_gpus
from treadle.core.engines.environments import choose_variant, python_of
from treadle.core.engines.process import Child, log_tail, printable, start_child
from treadle.core.engines.training import (
    Advice,
    EngineFolder,
    Greedy,
    error_text,
    explain_failure,
    follow,
    training_environ,
)
from treadle.core.errors import EngineError
from treadle.core.store.storage import storage_errors
from treadle.sft.llamafactory_config import commands_of_nodes
from treadle.sft.training_events import TrainingEvents, TrainingStep

_log = logging.getLogger(__name__)

ENGINE = "sft"
_BLOCKED_VARIABLES = ("ALLOW_EXTRA_ARGS", "DISABLE_VERSION_CHECK", "LLAMABOARD_ENABLED", "USE_KT", "USE_MCA", "USE_RAY")
"""Switches of LLaMA-Factory that would change the program that runs."""
_ADVICE = Advice(
    refused="LLaMA-Factory refuses the configuration of sft",
    memory="lower per_device_batch_size or cutoff_tokens, set gradient_checkpointing, use LoRA, or "
    'spread the model over more GPUs with deepspeed = "zero3"',
    killed="lower per_device_batch_size or cutoff_tokens, use LoRA, or use a machine with more memory",
    diverged="lower learning_rate, or train in bf16 or fp32 instead of fp16",
    nothing_learned="check learning_rate and which weights are trained",
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
class TrainingFolder(EngineFolder):
    """Paths of the files of one fine-tuning."""

    @property
    def rows(self) -> Path:
        """Rows as `datasets` saves them, for `tokenized_path`."""
        return self.path / "rows"

    @property
    def config(self) -> Path:
        """LLaMA-Factory's YAML."""
        return self.path / "train.yaml"

    @property
    def deepspeed(self) -> Path:
        """DeepSpeed's JSON; the caller writes it."""
        return self.path / "deepspeed.json"

    @property
    def nothing_learned(self) -> Path:
        """States of a training that seemed not to change the weights; not resumed."""
        return self.path / "nothing_learned"

    @property
    def nodes(self) -> Path:
        """Commands for the other nodes, one per line."""
        return self.path / "nodes.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions(training.EngineOptions):
    """Options of the engine's processes."""

    torchrun: tuple[str, ...] | None = None
    """Arguments of torchrun, for distributed training."""
    num_nodes: int = 1
    """Number of machines that train together; if there are several, `torchrun` has the arguments of the first one."""

    @property
    def num_devices(self) -> int:
        """Number of GPUs used on this node: the number of processes that torchrun starts, else one."""
        option = "--nproc_per_node="
        return next((int(part.removeprefix(option)) for part in self.torchrun or () if part.startswith(option)), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The result of a completed training."""

    model: Path
    """Folder in Hugging Face format, adapters merged, in the data type of the base model."""
    steps: tuple[TrainingStep, ...]
    """Logged steps, at least one."""
    num_steps: int
    """Number of updates."""
    num_epochs: float
    num_trained_parameters: int
    resumed_step: int
    """Step from which the last attempt resumed; 0 if it started from the beginning."""
    seconds: float
    """Time in training in seconds, over all attempts, without loading."""
    greedy: Greedy | None
    versions: dict[str, str]
    """Versions by package in the engine's environment."""
    revision: str
    """Commit of the base model on the model hub; empty for a folder."""
    tokenizer_digest: str
    """Digest of the base model's tokenizer and chat template, as in `ChatTokenizer.digest`."""


def store_rows(folder: TrainingFolder, batches: Iterable[pa.RecordBatch]) -> int:
    """Write `input_ids` and `labels` of the batches as they arrive; return the number of rows.

    The file is written atomically. An existing file is kept, because the folder belongs to one set of rows.
    """
    import pyarrow.parquet as pq

    if folder.parquet.is_file():
        return int(pq.read_metadata(folder.parquet).num_rows)
    unfinished = folder.parquet.with_suffix(".tmp")
    num_rows = 0
    with storage_errors("write", folder.parquet):
        folder.path.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(unfinished, _ROWS_SCHEMA, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch.select(_ROWS_SCHEMA.names).cast(_ROWS_SCHEMA))
                num_rows += batch.num_rows
        unfinished.rename(folder.parquet)
    return num_rows


def fine_tune(
    folder: TrainingFolder,
    config_text: str,
    options: EngineOptions,
    *,
    prompt: Sequence[int] = (),
    on_prepared: Callable[[Mapping[str, Any]], None] = lambda prepared: None,
    on_begin: Callable[[int, int], None] = lambda num_steps, resumed_step: None,
    on_step: Callable[[TrainingStep], None] = lambda step: None,
    notify: Notify = quiet,
) -> Training:
    """Train on the stored rows according to LLaMA-Factory's YAML, or resume an interrupted training.

    The YAML must name the folder's `rows` and `output`. `on_prepared` is called before training with the event
    `prepared` (`tokenizer_digest`, `revision`); an exception from it prevents the training. `on_begin` is called with
    the number of steps and the step resumed from, `on_step` with each logged step of this attempt. Raises ConfigError
    if LLaMA-Factory refuses the YAML. Raises EngineError with the end of the log if a process fails, hangs, runs out of
    memory or diverges, and if training took no step or did not change the weights.
    """
    run = _FineTuningRun(folder, options, prompt, notify)
    with storage_errors("write", folder.path):
        run.catch_up()
        folder.config.write_text(config_text, encoding="utf-8")
    if run.is_finished():
        return run.result()
    if not (folder.rows.is_dir() and run.is_config_checked(config_text)):
        notify("checking LLaMA-Factory's configuration and saving the rows")
        run.process("prepare")
    on_prepared(run.events.last["prepared"])
    if not folder.trained.is_file():
        folder.remove_incomplete_states()
        run.process("train", on_begin, on_step)
        run.check_training()
        folder.trained.touch()
    notify("writing the model")
    run.process("finish")
    return run.result()


class _FineTuningRun:
    """One call of `fine_tune`."""

    def __init__(self, folder: TrainingFolder, options: EngineOptions, prompt: Sequence[int], notify: Notify) -> None:
        self._folder = folder
        self._options = options
        self._prompt = list(prompt)
        self._notify = notify
        self.events = TrainingEvents(folder.events)

    def catch_up(self) -> None:
        """Read the events of earlier attempts."""
        self.events.end_torn_line()
        for _ in self.events.new():
            pass

    def is_finished(self) -> bool:
        """Return whether everything is done: the model is written, and the prompt, if any, is continued."""
        return self._folder.model.is_dir() and (not self._prompt or "greedy" in self.events.last)

    def is_config_checked(self, config_text: str) -> bool:
        """Return whether this exact YAML was the last that LLaMA-Factory accepted."""
        prepared = self.events.last.get("prepared", {})
        return bool(prepared.get("config_digest") == hashlib.sha256(config_text.encode()).hexdigest())

    def process(
        self,
        command: str,
        on_begin: Callable[[int, int], None] = lambda num_steps, resumed_step: None,
        on_step: Callable[[TrainingStep], None] = lambda step: None,
    ) -> None:
        """Run one command of the engine to its end; raise EngineError or ConfigError if it fails."""
        self.events.end_torn_line()
        self.events.last.pop("error", None)
        child = self._start(command)

        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "begin":
                self._notify_begin(event)
                on_begin(event["num_steps"], event["resumed_step"])
            elif event["event"] == "step":
                on_step(self.events.steps[-1])

        code = follow(child, self.events, self._options.stall_timeout_s, on_event)
        if code:
            error = self.events.last.get("error")
            if error and error["kind"] == "nothing_learned":
                self._set_aside()
            if error and error["kind"] == "no_model":
                reason = error_text(error).partition(": ")[2]
                raise EngineError(
                    f"sft.model cannot be fetched from the model hub ({reason}); check its name and the network, or "
                    f"set a local folder; log: {child.log_path}"
                )
            raise explain_failure(child, code, error, _FINISH_ADVICE if command == "finish" else _ADVICE)

    def _set_aside(self) -> None:
        """Move the states of a training without effect aside: resuming from the last one would look like completion."""
        folder = self._folder
        if folder.output.is_dir():
            shutil.rmtree(folder.nothing_learned, ignore_errors=True)
            folder.output.rename(folder.nothing_learned)

    def _start(self, command: str) -> Child:
        folder, options = self._folder, self._options
        python = str(python_of(ENGINE, options.variant))
        resume = folder.newest_state()
        job = {
            "config": str(folder.config),
            "parquet": str(folder.parquet),
            "rows": str(folder.rows),
            "output": str(folder.output),
            "model": str(folder.model),
            "events": str(folder.events),
            "resume": str(resume) if resume else None,
            "revision": self.events.last.get("prepared", {}).get("revision", ""),
            "prompt": self._prompt,
            "num_greedy_tokens": options.num_greedy_tokens,
        }
        job_path = folder.path / f"{command}.json"
        job_path.write_bytes(orjson.dumps(job))
        start = [python, "-m", "treadle.sft.engine"]
        if command == "train" and options.torchrun is not None:
            start = [python, "-m", "torch.distributed.run", *options.torchrun, "-m", "treadle.sft.engine"]
        argv, environ = [*start, command, str(job_path)], self._environ(command)
        if command == "train":
            self._write_node_commands(argv, environ)
        return start_child(argv, name=f"fine-tuning ({command})", log_path=folder.logs / f"{command}.log", env=environ)

    def _environ(self, command: str) -> dict[str, str]:
        options = self._options
        environ = training_environ(ENGINE, self._folder, options, without=_BLOCKED_VARIABLES)
        if choose_variant(ENGINE, options.variant) != "cpu":
            # LLaMA-Factory takes a single process that sees several GPUs for a wrong start.
            environ[VISIBLE] = first_gpus(options.num_devices, environ)
        if command == "prepare" and options.torchrun is not None:
            # LLaMA-Factory refuses settings that need torchrun if it is started otherwise; port 0 is any free one.
            environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
            environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        return environ

    def _write_node_commands(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Write and log the commands to run on the other nodes, which this node waits for."""
        if self._options.num_nodes == 1:
            return
        ours = {name: value for name, value in environ.items() if os.environ.get(name) != value}
        commands = commands_of_nodes(argv, ours, self._options.num_nodes)
        self._folder.nodes.write_text("".join(f"{line}\n" for line in commands), encoding="utf-8")
        _log.warning(
            "training waits for %d further node(s): run line 1 of %s on the second one, line 2 on the third, and so "
            "on. The first line is: %s",
            len(commands),
            self._folder.nodes,
            commands[0],
        )

    def _notify_begin(self, begin: Mapping[str, Any]) -> None:
        resuming = f", resuming from step {begin['resumed_step']:,}" if begin["resumed_step"] else ""
        parameters, device = begin["num_trained_parameters"], printable(str(begin["device"]))
        self._notify(f"training {parameters:,} parameters on {device}: {begin['num_steps']:,} steps{resuming}")

    def check_training(self) -> None:
        """Raise EngineError if training exited cleanly without training."""
        steps, end, log = self.events.steps, self.events.last.get("end", {}), self._folder.logs / "train.log"
        num_steps = (self.events.begin or {}).get("num_steps", 0)
        if not end.get("step"):
            raise EngineError(f"fine-tuning took no step; log: {log}\n{log_tail(log)}")
        if end["step"] < num_steps:
            raise EngineError(
                f"fine-tuning ended after {end['step']} of {num_steps} steps; log: {log}\n{log_tail(log)}"
            )
        if not steps:
            raise EngineError(f"no loss was logged in {end['step']} steps; log: {log}\n{log_tail(log)}")
        if len(steps) > 1 and len({step.loss for step in steps}) == 1:
            raise EngineError(
                f"the loss was {steps[0].loss:g} in all {end['step']} steps: nothing was learned; check "
                f"learning_rate and the rows' targets; log: {log}\n{log_tail(log)}"
            )

    def result(self) -> Training:
        """Return the result, from the events of all attempts."""
        last, steps = self.events.last, self.events.steps
        begin = self.events.begin or {}
        return Training(
            model=self._folder.model,
            steps=tuple(steps),
            num_steps=last["end"]["step"],
            num_epochs=last["end"]["epoch"],
            num_trained_parameters=begin["num_trained_parameters"],
            resumed_step=begin["resumed_step"],
            seconds=last["end"]["seconds"] + self.events.earlier_s,
            greedy=Greedy.of_event(last.get("greedy")),
            versions=dict(last["prepared"]["versions"]),
            revision=last["prepared"]["revision"],
            tokenizer_digest=last["prepared"]["tokenizer_digest"],
        )
