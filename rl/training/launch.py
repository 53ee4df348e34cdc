"""Run an RL training as child processes in the engine's environment: check, train, finish.

All files of a training are in one folder. Called again with the folder of an interrupted training, `reinforce` resumes
from the newest complete state. Documented in docs/behaviour/rl.md, part "Engine".
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from treadle.core.engines.cache import Notify, quiet
from treadle.core.engines.devices import VISIBLE, first_gpus
from treadle.core.engines.environments import python_of
from treadle.core.engines.events import STATE_MARKER
from treadle.core.engines.process import Child, log_tail, printable, start_child
from treadle.core.engines.training import (
    Advice,
    EngineFolder,
    EngineOptions,
    Greedy,
    error_text,
    explain_failure,
    follow,
    training_environ,
)
from treadle.core.errors import EngineError
from treadle.core.store.storage import storage_errors
from treadle.rl.training.events import RlEvents, RlStep, Validation
from treadle.rl.training.plan import RlPlan
from treadle.rl.training.validation import choose_step, superseded


@dataclass(frozen=True, slots=True)
class RlFolder(EngineFolder):
    """Folder of one reinforcement, with the paths of its files."""

    @property
    def plan(self) -> Path:
        """The plan of the training."""
        return self.path / "plan.json"

    @property
    def validation(self) -> Path:
        """Held-out questions in the format of the rows; absent without validation."""
        return self.path / "validation.parquet"

    @property
    def rollouts(self) -> Path:
        """Dump of the rollouts, one file per step."""
        return self.path / "rollouts"

    @property
    def start_commit(self) -> Path:
        """File with the model hub's commit that the training started from; absent if it started from a folder."""
        return self.path / "start-commit"

    @property
    def web(self) -> Path:
        """Folder of the web record that the policy searches, if the run records the web; see `web_snapshot`."""
        return self.path / "web"

    @property
    def refused(self) -> Path:
        """Folder of an exported policy that failed the checks."""
        return self.path / "refused"

    def complete_state(self, name: str) -> Path | None:
        """Return the folder of the state that an engine reported, if the state is complete."""
        state = self.output / Path(name).name
        return state if (state / STATE_MARKER).is_file() else None


def saved_step(folder: RlFolder) -> int:
    """Return the step from which the next call of `reinforce` would resume; 0 if it would start from the beginning."""
    events = RlEvents(folder.events)
    for _ in events.new():
        pass
    return max((step for step, state in events.saved.items() if folder.complete_state(state) is not None), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """Inputs of an engine in addition to its plan and the files in the folder."""

    model: str
    """Folder of the policy that training starts from."""
    environment: Mapping[str, Any]
    """Settings of the environment as JSON-able data, with absolute paths."""
    interpreter: str
    """Python interpreter for the policy's programs, because the engine's environment may lack their packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforcement:
    """Result of a successful training."""

    model: Path
    """Folder of the policy in Hugging Face format, adapters merged, in the base model's number type, or in fp32 if
    the rollouts used fp32."""
    steps: tuple[RlStep, ...]
    """Steps of the training, at least one."""
    validations: tuple[Validation, ...]
    """Validations in the order of their steps."""
    chosen_step: int
    """Step whose state was exported as the model."""
    num_steps: int
    num_epochs: float
    num_trained_parameters: int
    resumed_step: int
    """Step from which the last attempt resumed; 0 if it started from the beginning."""
    seconds: float
    """Training time over all attempts in seconds, without loading."""
    live_greedy: Greedy | None
    """Greedy completion by the policy in training when the state was saved."""
    greedy: Greedy | None
    """Greedy completion by the exported model."""
    versions: dict[str, str]
    """Package -> version in the engine's environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Callbacks for the progress of a training."""

    begin: Callable[[int, int], None] = lambda num_steps, resumed_step: None
    """Called with the number of steps and the step from which training resumes."""
    step: Callable[[RlStep], None] = lambda step: None
    """Called for each step of this attempt."""
    validation: Callable[[Validation], None] = lambda validation: None
    """Called for each validation of this attempt."""
    notify: Notify = quiet
    """Called with messages for the user."""


def reinforce(
    folder: RlFolder, plan: RlPlan, job: EngineJob, options: EngineOptions, listener: Listener | None = None
) -> Reinforcement:
    """Train as planned on the rows in the folder, or resume an interrupted training.

    Raises ConfigError if the engine refuses the plan. Raises EngineError with the end of the log if a process fails,
    hangs, runs out of memory or diverges, and if training took no step, got no reward or had only equal rewards within
    each group.
    """
    run = _ReinforcementRun(folder, plan, job, options, listener or Listener())
    with storage_errors("write", folder.path):
        run.catch_up()
        same = folder.plan.is_file() and folder.plan.read_text(encoding="utf-8") == plan.to_json()
        folder.plan.write_text(plan.to_json(), encoding="utf-8")
    if folder.model.is_dir():
        return run.result()
    if not (same and "prepared" in run.events.last):
        run.listener.notify(f"{plan.options.engine} checks the plan")
        run.process("check")
    if not folder.trained.is_file():
        folder.remove_incomplete_states()
        run.process("train")
        run.check_training()
        folder.trained.touch()
    run.listener.notify(f"writing the policy of step {run.chosen_step():,}")
    run.process("finish")
    return run.result()


class _ReinforcementRun:
    """State of one call of `reinforce`."""

    def __init__(
        self, folder: RlFolder, plan: RlPlan, job: EngineJob, options: EngineOptions, listener: Listener
    ) -> None:
        self._folder = folder
        self._plan = plan
        self._job = job
        self._options = options
        self._resume: Path | None = None
        self.listener = listener
        self.events = RlEvents(folder.events)

    def catch_up(self) -> None:
        """Read the events of earlier attempts."""
        self.events.end_torn_line()
        for _ in self.events.new():
            pass

    def process(self, command: str) -> None:
        """Run one command of the engine to its end; raise EngineError or ConfigError if it fails."""
        self.events.end_torn_line()
        self.events.last.pop("error", None)
        self._resume = self._folder.newest_state() if command == "train" else None
        child = self._start(command)
        code = follow(child, self.events, self._options.stall_timeout_s, self._on_event)
        if not code:
            return
        error = self.events.last.get("error")
        kind = error["kind"] if error else ""
        if kind == "nothing_learned":
            self._delete_outputs()  # Resuming from the last state would look like a finished training.
            if self.events.steps:
                self._check_rewards()  # If equal rewards are the cause, this raises a more helpful error.
        if kind == "environment":
            raise child.failure(f"could not open the policy's environment ({error_text(error)})")
        raise explain_failure(child, code, error, _advice(self._plan.options.engine))

    def _start(self, command: str) -> Child:
        folder, options, engine = self._folder, self._options, self._plan.options.engine
        job_path = folder.path / "job.json"
        with storage_errors("write", job_path):
            job_path.write_bytes(orjson.dumps(self._describe(command), option=orjson.OPT_INDENT_2))
        return start_child(
            [str(python_of(engine, options.variant)), "-m", "treadle.rl.engine", command, str(job_path)],
            name=f"reinforcement ({command})",
            log_path=folder.logs / f"{command}.log",
            env=self._environ(),
        )

    def _environ(self) -> dict[str, str]:
        machine = self._plan.machine
        environ = training_environ(self._plan.options.engine, self._folder, self._options)
        if machine.variant == "cuda" and machine.num_nodes == 1:
            environ[VISIBLE] = first_gpus(machine.num_devices, environ)
        return environ

    def _describe(self, command: str) -> dict[str, Any]:
        folder = self._folder
        state = self._state(self.chosen_step()) if command == "finish" else None
        return {
            "plan": orjson.loads(self._plan.to_json()),
            "environment": self._job.environment,
            "environment_digest": self._plan.environment_digest,
            "interpreter": self._job.interpreter,
            "rows": str(folder.parquet),
            "validation": str(folder.validation) if folder.validation.is_file() else None,
            "model": self._job.model,
            "output": str(folder.output),
            "final": str(folder.model),
            "events": str(folder.events),
            "rollouts": str(folder.rollouts),
            "resume": str(self._resume) if self._resume else None,
            "state": str(state) if state else None,
            "greedy_tokens": self._options.num_greedy_tokens,
        }

    def _on_event(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "begin":
            self._begin(event)
        elif kind == "step":
            self.listener.step(self.events.steps[-1])
        elif kind == "validation":
            self.listener.validation(self.events.validations[event["step"]])
        elif kind == "saved":
            self._prune()
        elif kind == "warning":
            self.listener.notify(printable(event["message"]))

    def _begin(self, begin: Mapping[str, Any]) -> None:
        if begin["num_steps"] != self._plan.num_steps:
            raise EngineError(
                f"{self._plan.options.engine} would train {begin['num_steps']:,} steps, but the plan has "
                f"{self._plan.num_steps:,}; see {self._folder.path}"
            )
        if self._resume is not None:
            # A kill may have come after the state was saved and before its event was written.
            self.events.saved[begin["resumed_step"]] = self._resume.name
        resuming = f", resuming from step {begin['resumed_step']:,}" if begin["resumed_step"] else ""
        parameters, device = begin["num_trained_parameters"], printable(str(begin["device"]))
        self.listener.notify(
            f"reinforcing {parameters:,} parameters on {device}: {begin['num_steps']:,} steps of "
            f"{self._plan.trajectories_per_step:,} rollouts{resuming}"
        )
        self.listener.begin(begin["num_steps"], begin["resumed_step"])

    def _prune(self) -> None:
        """Delete states that are no longer needed; those of a large policy take hundreds of gigabytes each."""
        for step in superseded(self._plan.options.checkpoint_rule, self._kept(), self.events.validations):
            if (state := self._state(step)) is not None:
                shutil.rmtree(state, ignore_errors=True)

    def _kept(self) -> list[int]:
        return [step for step in self.events.saved if self._state(step) is not None]

    def _state(self, step: int) -> Path | None:
        """Return the folder of a step's state, if the state is complete."""
        return self._folder.complete_state(self.events.saved[step])

    def _delete_outputs(self) -> None:
        for path in (self._folder.output, self._folder.rollouts):
            shutil.rmtree(path, ignore_errors=True)

    def chosen_step(self) -> int:
        """Return the step whose state becomes the checkpoint."""
        return choose_step(self._plan.options.checkpoint_rule, self._kept(), self.events.validations)

    def check_training(self) -> None:
        """Raise EngineError if training exited cleanly without training."""
        steps, end, planned = self.events.steps, self.events.last.get("end", {}), self._plan.num_steps
        if not end.get("step") or not steps:
            raise self._failure("took no step")
        if end["step"] < planned:
            raise self._failure(f"ended after {end['step']:,} of {planned:,} steps")
        self._check_rewards()
        if not self._kept():
            raise self._failure(f"saved no state in {end['step']:,} steps")

    def _check_rewards(self) -> None:
        """Raise EngineError if no rollout was rewarded, or if all rewards are equal within each group."""
        steps = self.events.steps
        num_rollouts = sum(step.num_rollouts for step in steps)
        if not num_rollouts or all(step.reward is None for step in steps):
            self._delete_outputs()
            raise self._failure(f"got no reward: in {len(steps):,} steps no rollout was scored")
        num_groups = sum(step.num_groups for step in steps)
        if num_groups == sum(step.num_equal_groups for step in steps):
            self._delete_outputs()
            raise self._failure(_nothing_to_learn(steps, num_groups, num_rollouts))

    def _failure(self, what: str) -> EngineError:
        log = self._folder.logs / "train.log"
        return EngineError(f"reinforcement {what}; log: {log}\n{log_tail(log)}")

    def result(self) -> Reinforcement:
        """Return the result, from the events of all attempts."""
        events, begin = self.events, self.events.begin or {}
        chosen = self.chosen_step()
        return Reinforcement(
            model=self._folder.model,
            steps=tuple(events.steps),
            validations=tuple(events.validations[step] for step in sorted(events.validations)),
            chosen_step=chosen,
            num_steps=events.last["end"]["step"],
            num_epochs=events.last["end"]["epoch"],
            num_trained_parameters=begin["num_trained_parameters"],
            resumed_step=begin["resumed_step"],
            seconds=events.steps[-1].seconds,
            live_greedy=events.live_greedy.get(chosen),
            greedy=Greedy.of_event(events.last.get("greedy")),
            versions=dict(events.last["prepared"]["versions"]),
        )


def _nothing_to_learn(steps: list[RlStep], num_groups: int, num_rollouts: int) -> str:
    rewards = {step.reward for step in steps if step.reward is not None}
    mean = f"all {min(rewards):.3g}" if len(rewards) == 1 else f"mean {min(rewards):.3g} to {max(rewards):.3g}"
    return (
        f"had nothing to learn from: in all {num_groups:,} groups of {len(steps):,} steps ({num_rollouts:,} rollouts) "
        f"the rewards were equal ({mean}), so every advantage was 0; select questions whose rollouts differ, raise "
        "temperature or group_size, or start from a policy that is sometimes right"
    )


def _advice(engine: str) -> Advice:
    fewer = "lower rl.per_device_batch_size, max_response_tokens or group_size, use LoRA"
    return Advice(
        refused=f"{engine} refuses the configuration of rl",
        memory=f"{fewer}, set gradient_checkpointing, or lower gpu_memory_share",
        killed=f"{fewer}, or use a machine with more memory",
        diverged="lower learning_rate, or train in bf16 or fp32 instead of fp16",
        nothing_learned="check learning_rate and which weights are trained",
    )
