"""Reinforcement as child processes: check, train, finish, each in the environment of its engine.

All files of a training lie in one folder. Called again with the folder of a training that was cut off, by whatever, it
goes on from the newest complete state. Documented in docs/behaviour/rl.md, part "Engine".
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
from treadle.core.storage import storage_errors
from treadle.rl.plan import RlPlan
from treadle.rl.training_events import RlEvents, RlStep, Validation
from treadle.rl.validation import choose_step, superseded


@dataclass(frozen=True, slots=True)
class RlFolder(EngineFolder):
    """Where the files of one reinforcement lie."""

    @property
    def plan(self) -> Path:
        """The plan that is followed."""
        return self.path / "plan.json"

    @property
    def validation(self) -> Path:
        """Held-out questions in the format of the rows; absent without validation."""
        return self.path / "validation.parquet"

    @property
    def rollouts(self) -> Path:
        """The dump of rollouts, a file per step."""
        return self.path / "rollouts"

    @property
    def start_commit(self) -> Path:
        """Commit on the model hub that the training began with; absent where it began with a folder."""
        return self.path / "start-commit"

    @property
    def web(self) -> Path:
        """The web's record that the policy searches, where the run records one; see `web_snapshot`."""
        return self.path / "web"

    @property
    def refused(self) -> Path:
        """A written policy that failed the checks of the hand-over."""
        return self.path / "refused"

    def complete_state(self, name: str) -> Path | None:
        """The state of a name that an engine told, if it is on the disk as a whole."""
        state = self.output / Path(name).name
        return state if (state / STATE_MARKER).is_file() else None


def saved_step(folder: RlFolder) -> int:
    """The step that the next call of `reinforce` would go on from; 0 where it would begin."""
    events = RlEvents(folder.events)
    for _ in events.new():
        pass
    return max((step for step, state in events.saved.items() if folder.complete_state(state) is not None), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What an engine needs besides its plan and the files in the folder."""

    model: str
    """Folder of the policy that training begins with."""
    environment: Mapping[str, Any]
    """Settings of the environment as JSON-able data, with absolute paths."""
    interpreter: str
    """Python that runs the programs of the policy: the engine's own need not hold their packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforcement:
    """A training that ended as it should."""

    model: Path
    """Folder in Hugging Face format, adapters merged, in the number type of its start, or in fp32 if it sampled so."""
    steps: tuple[RlStep, ...]
    """At least one."""
    validations: tuple[Validation, ...]
    """In the order of their steps."""
    chosen_step: int
    """Step of the state that the model was made of."""
    num_steps: int
    num_epochs: float
    num_trained_parameters: int
    resumed_step: int
    """Step from which the last attempt went on; 0 where it began anew."""
    seconds: float
    """Time in training, over all attempts, without loading."""
    live_greedy: Greedy | None
    """What the policy in training wrote when the state was saved."""
    greedy: Greedy | None
    """What the model wrote."""
    versions: dict[str, str]
    """Package -> version in the engine's environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who is told what goes on."""

    begin: Callable[[int, int], None] = lambda num_steps, resumed_step: None
    """Number of steps, and the one that is gone on from."""
    step: Callable[[RlStep], None] = lambda step: None
    """Each step of this attempt."""
    validation: Callable[[Validation], None] = lambda validation: None
    """Each validation of this attempt."""
    notify: Notify = quiet
    """Lines for people."""


def reinforce(
    folder: RlFolder, plan: RlPlan, job: Job, options: EngineOptions, listener: Listener | None = None
) -> Reinforcement:
    """Follow the plan on the rows in the folder, or go on with a training that was cut off.

    Raises ConfigError where the engine refuses the plan, EngineError with the end of the log where a process fails,
    hangs, runs out of memory or diverges, and where training took no step, got no reward or had nothing to learn from.
    """
    run = _Run(folder, plan, job, options, listener or Listener())
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


class _Run:
    """One call of `reinforce`."""

    def __init__(self, folder: RlFolder, plan: RlPlan, job: Job, options: EngineOptions, listener: Listener) -> None:
        self._folder = folder
        self._plan = plan
        self._job = job
        self._options = options
        self._resume: Path | None = None
        self.listener = listener
        self.events = RlEvents(folder.events)

    def catch_up(self) -> None:
        """Read what earlier attempts told."""
        self.events.mend()
        for _ in self.events.new():
            pass

    def process(self, command: str) -> None:
        """Run one command of the engine to its end; raises EngineError or ConfigError."""
        self.events.mend()
        self.events.last.pop("error", None)
        self._resume = self._folder.newest_state() if command == "train" else None
        child = self._start(command)
        code = follow(child, self.events, self._options.stall_timeout_s, self._heard)
        if not code:
            return
        error = self.events.last.get("error")
        kind = error["kind"] if error else ""
        if kind == "unmoved":
            self._forget()  # To go on from the last state would look like an end.
            if self.events.steps:
                self._check_rewards()  # Equal rewards are why, and what to do about them can be said.
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

    def _heard(self, event: dict[str, Any]) -> None:
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
                f"{self._plan.options.engine} would train {begin['num_steps']:,} steps where the plan has "
                f"{self._plan.num_steps:,}; see {self._folder.path}"
            )
        if self._resume is not None:
            # A kill may have come between a state and the event that tells of it.
            self.events.saved[begin["resumed_step"]] = self._resume.name
        going_on = f", going on from step {begin['resumed_step']:,}" if begin["resumed_step"] else ""
        parameters, device = begin["num_trained_parameters"], printable(str(begin["device"]))
        self.listener.notify(
            f"reinforcing {parameters:,} parameters on {device}: {begin['num_steps']:,} steps of "
            f"{self._plan.trajectories_per_step:,} rollouts{going_on}"
        )
        self.listener.begin(begin["num_steps"], begin["resumed_step"])

    def _prune(self) -> None:
        """Remove states that are needed no more; a large policy's are hundreds of gigabytes each."""
        for step in superseded(self._plan.options.checkpoint_rule, self._kept(), self.events.validations):
            if (state := self._state(step)) is not None:
                shutil.rmtree(state, ignore_errors=True)

    def _kept(self) -> list[int]:
        return [step for step in self.events.saved if self._state(step) is not None]

    def _state(self, step: int) -> Path | None:
        """The complete state of a step, if it is there."""
        return self._folder.complete_state(self.events.saved[step])

    def _forget(self) -> None:
        for path in (self._folder.output, self._folder.rollouts):
            shutil.rmtree(path, ignore_errors=True)

    def chosen_step(self) -> int:
        """The step whose state is handed over."""
        return choose_step(self._plan.options.checkpoint_rule, self._kept(), self.events.validations)

    def check_training(self) -> None:
        """Raise EngineError for a training that ended without an error and still is none."""
        steps, end, planned = self.events.steps, self.events.last.get("end", {}), self._plan.num_steps
        if not end.get("step") or not steps:
            raise self._failure("took no step")
        if end["step"] < planned:
            raise self._failure(f"ended after {end['step']:,} of {planned:,} steps")
        self._check_rewards()
        if not self._kept():
            raise self._failure(f"saved no state in {end['step']:,} steps")

    def _check_rewards(self) -> None:
        """Raise EngineError where no reward was given, or none that differs within its group."""
        steps = self.events.steps
        num_rollouts = sum(step.num_rollouts for step in steps)
        if not num_rollouts or all(step.reward is None for step in steps):
            self._forget()
            raise self._failure(f"got no reward: in {len(steps):,} steps no rollout was scored")
        num_groups = sum(step.num_groups for step in steps)
        if num_groups == sum(step.num_equal_groups for step in steps):
            self._forget()
            raise self._failure(_nothing_to_learn(steps, num_groups, num_rollouts))

    def _failure(self, what: str) -> EngineError:
        log = self._folder.logs / "train.log"
        return EngineError(f"reinforcement {what}; log: {log}\n{log_tail(log)}")

    def result(self) -> Reinforcement:
        """What came of it, from the events of all attempts."""
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
        "temperature or group_size, or begin with a policy that is right now and then"
    )


def _advice(engine: str) -> Advice:
    fewer = "lower rl.per_device_batch_size, max_response_tokens or group_size, use LoRA"
    return Advice(
        refused=f"{engine} refuses the configuration of rl",
        memory=f"{fewer}, set gradient_checkpointing, or lower gpu_memory_share",
        killed=f"{fewer}, or take a machine with more memory",
        diverged="lower learning_rate, or train in bf16 or fp32 instead of fp16",
        unmoved="look at learning_rate and at what is trained",
    )
