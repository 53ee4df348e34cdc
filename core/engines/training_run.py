"""Run a training from its configuration to the exported model: the flow that all kinds of training share.

The engine's processes run one after the other: a check of the configuration, `train`, `finish`. All files of a training
are in one folder; a run over the folder of an interrupted training resumes from the newest complete state. A kind of
training subclasses `TrainingRun`, and overrides the methods with an underscore that differ.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic

import orjson

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.cache import Notify, quiet
from treadle.core.engines.event_log import EventLog, InvalidEvent, T_Step
from treadle.core.engines.process import Child, log_tail, printable, start_child
from treadle.core.engines.training import (
    Advice,
    ConfiguredFolder,
    EngineFolder,
    EngineOptions,
    Greedy,
    error_text,
    explain_failure,
    follow,
    training_environ,
)
from treadle.core.engines.training_engine import TrainingEngine
from treadle.core.errors import EngineError
from treadle.core.runs.stage import Progress
from treadle.core.store.storage import storage_errors


@dataclass(frozen=True, kw_only=True)
class TrainingListener(Generic[T_Step]):
    """Callbacks for the progress of a training."""

    prepared: Callable[[Mapping[str, Any]], None] = lambda prepared: None
    """Called before training with the event `prepared`; an exception from it prevents the training."""
    begin: Callable[[int, int], None] = lambda num_steps, resumed_step: None
    """Called with the number of steps and the step from which training resumes."""
    step: Callable[[T_Step], None] = lambda step: None
    """Called for each step of this attempt."""
    notify: Notify = quiet
    """Called with messages for the user."""


class StepProgress(Generic[T_Step]):
    """A forwarder of training steps to a stage's progress; `begin` and `step` fit a `TrainingListener`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done = 0

    def begin(self, num_steps: int, resumed_step: int) -> None:
        """Start the progress, or continue it after `resumed_step`."""
        self._done = resumed_step
        self._progress.start(num_steps, resumed_step, "steps")

    def step(self, step: T_Step) -> None:
        """Report one training step to the stage's progress."""
        self._progress.advance(step.step - self._done, **self.facts(step))
        self._done = step.step

    def facts(self, step: T_Step) -> Mapping[str, str | float]:
        """Return the names and values that are shown next to the progress bar after a step."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult(Generic[T_Step]):
    """Result of a completed training."""

    model: Path
    """Folder in Hugging Face format, adapters merged, in the number type of the base model."""
    steps: tuple[T_Step, ...]
    """Logged steps, at least one."""
    num_steps: int
    num_epochs: float
    num_trained_parameters: int
    resumed_step: int
    """Step from which the last attempt resumed; 0 if it started from the beginning."""
    seconds: float
    """Training time over all attempts in seconds, without loading."""
    greedy: Greedy | None
    """Greedy completion by the exported model."""
    versions: dict[str, str]
    """Versions by package in the engine's environment."""

    def checkpoint_columns(self) -> dict[str, Any]:
        """Return the part of a row of `checkpoint` that is the same for all trainings; RL columns are null."""
        rl_columns = ("chosen_step", "first_reward", "last_reward", "validation_correctness")
        return {
            "num_steps": self.num_steps,
            "num_epochs": self.num_epochs,
            "first_loss": self.steps[0].loss,
            "last_loss": self.steps[-1].loss,
            "tokenizer_digest": ChatTokenizer.load(self.model).digest,
            "versions": orjson.dumps(self.versions, option=orjson.OPT_SORT_KEYS).decode(),
            **dict.fromkeys(rl_columns),
        }

    def metrics(self) -> dict[str, Any]:
        """Return the metrics for the stage record that all trainings have, apart from steps and losses."""
        return {
            "trained_parameters": self.num_trained_parameters,
            "seconds": round(self.seconds, 1),
            "greedy_ids": list(self.greedy.ids) if self.greedy else [],
            "greedy_margins": [round(margin, 4) for margin in self.greedy.margins] if self.greedy else [],
        }


@dataclass(kw_only=True)
class TrainingRun(ABC, Generic[T_Step]):
    """One call of a training; `run` makes the model in `folder`, then the caller builds a result from `facts`."""

    name: ClassVar[str]
    """Kind of training in messages, such as `fine-tuning`."""
    verb: ClassVar[str] = "training"
    """Opening of the message at the start of the training."""
    check_command: ClassVar[str] = "check"
    """Command that checks the configuration and writes the event `prepared`."""
    job_file: ClassVar[str] = "job.json"
    """Name of the file for the job of a command; `{}` is the command."""

    engine: TrainingEngine
    folder: EngineFolder
    options: EngineOptions
    events: EventLog[T_Step]
    listener: TrainingListener[T_Step]
    step_unit: str = "steps"
    """Name of the counted steps in the message at the start of the training."""
    resume: Path | None = None
    """State from which the process `train` resumes."""

    @abstractmethod
    def _store_config(self) -> bool:
        """Write the configuration to the folder; return whether the engine has accepted an equal one before."""

    @abstractmethod
    def _job(self, command: str) -> dict[str, Any]:
        """Return the entries of a command's job in addition to `output`, `events` and `resume`."""

    @abstractmethod
    def _advice(self, command: str) -> Advice:
        """Return the advice on a failure of a command."""

    def _announcement(self, command: str) -> str:
        """Return the message at the start of a command; empty for none."""
        return ""

    def _argv(self, command: str) -> list[str]:
        """Return the command line of a command."""
        return self.engine.argv(command, self.folder.path / self.job_file.format(command), self.options.variant)

    def _environ(self, command: str) -> dict[str, str]:
        """Return the environment variables of a command."""
        return self.engine.environ(command, training_environ(self.engine, self.folder, self.options))

    def _is_finished(self) -> bool:
        """Return whether nothing of the training is left to do: the model is written."""
        return self.folder.model.is_dir()

    def run(self) -> None:
        """Run the processes that are not done yet.

        Raises ConfigError if the engine refuses the configuration. Raises EngineError with the end of the log if a
        process fails, hangs, runs out of memory or diverges, and if training took no step or learned nothing.
        """
        with storage_errors("write", self.folder.path):
            self.events.end_torn_line()
            self.events.replay()
            if self.events.has_invalid and not self.folder.trained.is_file():
                self._discard_states()
            is_checked = self._store_config()
        if self._is_finished():
            return
        if not is_checked:
            self._process(self.check_command)
        if "prepared" not in self.events.last:
            raise self._failure(f"{self.name} was not prepared: the engine wrote no event `prepared`", "check")
        self.listener.prepared(self.events.last["prepared"])
        if not self.folder.trained.is_file():
            self.folder.remove_incomplete_states()
            self._process("train")
            self._check_training()
            self.folder.trained.touch()
        self._process("finish")
        if not self.folder.model.is_dir():
            raise self._failure(f"{self.name} exported no model: there is no folder {self.folder.model}", "finish")

    def _process(self, command: str) -> None:
        if message := self._announcement(command):
            self.listener.notify(message)
        self.events.end_torn_line()
        self.events.last.pop("error", None)
        self.resume = self.folder.newest_state() if command == "train" else None
        child = self._start(command)
        try:
            code = follow(child, self.events, self.options.stall_timeout_s, self._on_event, self._on_poll)
        except InvalidEvent as wrong:
            raise child.failure(f"wrote an event that cannot be used ({wrong})") from None
        if code:
            error = self.events.last.get("error")
            if error and error["kind"] == "nothing_learned":
                self._discard_states()
            raise self._explain(command, child, code, error)

    def _start(self, command: str) -> Child:
        """Write the job of a command and start its process."""
        folder, path = self.folder, self.folder.path / self.job_file.format(command)
        job = {
            "output": str(folder.output),
            "events": str(folder.events),
            "resume": str(self.resume) if self.resume else None,
            **self._job(command),
        }
        with storage_errors("write", path):
            path.write_bytes(orjson.dumps(job, option=orjson.OPT_INDENT_2))
        return start_child(
            self._argv(command),
            name=f"{self.name} ({command})",
            log_path=folder.logs / f"{command}.log",
            env=self._environ(command),
        )

    def _on_event(self, event: dict[str, Any]) -> None:
        """Pass on an event of this attempt; the log has already recorded it."""
        if event["event"] == "begin":
            self._on_begin(event)
        elif event["event"] == "step":
            self.listener.step(self.events.steps[-1])

    def _on_poll(self) -> None:
        """Do periodic work; called several times a second while a process runs."""

    def _on_begin(self, begin: Mapping[str, Any]) -> None:
        """Report that training starts or resumes."""
        resuming = f", resuming from step {begin['resumed_step']:,}" if begin["resumed_step"] else ""
        parameters, device = begin["num_trained_parameters"], printable(str(begin["device"]))
        steps = f"{begin['num_steps']:,} {self.step_unit}"
        self.listener.notify(f"{self.verb} {parameters:,} parameters on {device}: {steps}{resuming}")
        self.listener.begin(begin["num_steps"], begin["resumed_step"])

    def _explain(self, command: str, child: Child, code: int, error: Mapping[str, Any] | None) -> Exception:
        """Return the error for a failed process; `error` is the event that it wrote, if any."""
        return explain_failure(child, code, error, self._advice(command))

    def _discard_states(self) -> None:
        """Set aside the states of a training without effect: resuming from the last one would look like completion."""
        self.folder.set_output_aside()

    def _check_training(self) -> None:
        """Raise EngineError if training exited cleanly without training."""
        end, num_steps = self.events.last.get("end", {}), (self.events.begin or {}).get("num_steps", 0)
        if not end.get("step"):
            raise self._failure(f"{self.name} took no step")
        if end["step"] < num_steps:
            raise self._failure(f"{self.name} ended after {end['step']:,} of {num_steps:,} steps")

    def _failure(self, what: str, command: str = "train") -> EngineError:
        """Return the error for a training that failed a check, with the path of its log and the log's last lines."""
        log = self.folder.logs / f"{self.check_command if command == 'check' else command}.log"
        return EngineError(f"{what}; log: {log}\n{log_tail(log)}")

    def facts(self) -> dict[str, Any]:
        """Return the fields of `TrainingResult`, from the events of all attempts."""
        last, begin = self.events.last, self.events.begin or {}
        return {
            "model": self.folder.model,
            "steps": tuple(self.events.steps),
            "num_steps": last["end"]["step"],
            "num_epochs": last["end"]["epoch"],
            "num_trained_parameters": begin["num_trained_parameters"],
            "resumed_step": begin["resumed_step"],
            "seconds": self.events.steps[-1].seconds,
            "greedy": Greedy.of_event(last.get("greedy")),
            "versions": dict(last["prepared"]["versions"]),
        }


@dataclass(kw_only=True)
class LossTrainingRun(TrainingRun[T_Step]):
    """A training on stored rows whose steps log a loss, from one configuration file."""

    job_file = "{}.json"
    model_key: ClassVar[str]
    """Key of the base model, such as `sft.model`."""
    learned_from: ClassVar[str]
    """What the training learns from the rows, for advice in an error: `the rows' targets`, for example."""

    folder: ConfiguredFolder
    config_text: str
    """Content of the configuration file."""
    prompt: list[int]
    """Ids that the model continues greedily at the end; empty for none."""

    def _store_config(self) -> bool:
        content = self.config_text.encode()
        self.folder.config.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        return bool(self.events.last.get("prepared", {}).get("config_digest") == digest)

    def _is_finished(self) -> bool:
        """Return whether everything is done: the model is written, and the prompt, if any, is continued."""
        return super()._is_finished() and (not self.prompt or "greedy" in self.events.last)

    def _job(self, command: str) -> dict[str, Any]:
        return {
            "config": str(self.folder.config),
            "parquet": str(self.folder.parquet),
            "model": str(self.folder.model),
            "revision": self.events.last.get("prepared", {}).get("revision", ""),
            "prompt": self.prompt,
            "num_greedy_tokens": self.options.num_greedy_tokens,
        }

    def _explain(self, command: str, child: Child, code: int, error: Mapping[str, Any] | None) -> Exception:
        if error and error["kind"] == "no_model":
            reason = error_text(error).partition(": ")[2]
            return EngineError(
                f"{self.model_key} cannot be fetched from the model hub ({reason}); check its name and the network, or "
                f"set a local folder; log: {child.log_path}"
            )
        return super()._explain(command, child, code, error)

    def _check_training(self) -> None:
        """Raise EngineError also if no loss was logged, or always the same."""
        super()._check_training()
        steps, num_steps = self.events.steps, self.events.last["end"]["step"]
        if not steps:
            raise self._failure(f"no loss was logged in {num_steps} steps")
        if len(steps) > 1 and len({step.loss for step in steps}) == 1:
            raise self._failure(
                f"the loss was {steps[0].loss:g} in all {num_steps} steps: nothing was learned; check learning_rate "
                f"and {self.learned_from}"
            )
