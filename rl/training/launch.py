"""Run an RL training as child processes in the engine's environment: check, train, finish.

All files of a training are in one folder. Called again with the folder of an interrupted training, `reinforce` resumes
from the newest complete state. Documented in docs/behaviour/rl.md, part "Engine".
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from treadle.core.engines.events import STATE_MARKER
from treadle.core.engines.process import Child, printable
from treadle.core.engines.training import Advice, EngineFolder, EngineOptions, Greedy, PathIn, error_text
from treadle.core.engines.training_run import TrainingListener, TrainingResult, TrainingRun
from treadle.core.errors import EngineError
from treadle.rl.groups.live import LIVE, ProcessStatus
from treadle.rl.groups.live_files import LiveFiles
from treadle.rl.training.events import RlEvents, RlStep, Validation
from treadle.rl.training.plan import RlPlan


@dataclass(frozen=True, slots=True)
class RlFolder(EngineFolder):
    """Folder of one RL training, with the paths of its files."""

    plan = PathIn("plan.json")
    """The plan of the training."""
    validation = PathIn("validation.parquet")
    """Held-out questions in the format of the rows; absent without validation."""
    payloads = PathIn("payloads.parquet")
    """Hidden payloads of the tasks, which only episodes and scorers read; absent if they read none."""
    rollouts = PathIn("rollouts")
    """Dump of the rollouts, one file per step."""
    start_commit = PathIn("start-commit")
    """File with the model hub's commit that the training started from; absent if it started from a folder."""
    web = PathIn("web")
    """Folder of the web record that the policy searches, if the run records the web; see `web_snapshot`."""
    live = PathIn(LIVE)
    """Files that show what the engine's processes do now."""
    experience = PathIn("experience")
    """Files of the pool of experience; absent without one."""
    refused = PathIn("refused")
    """Folder of an exported policy that failed the checks."""

    def complete_state(self, name: str) -> Path | None:
        """Return the folder of the state that an engine reported, if the state is complete."""
        state = self.output / Path(name).name
        return state if (state / STATE_MARKER).is_file() else None


def saved_step(folder: RlFolder) -> int:
    """Return the step from which the next call of `reinforce` would resume; 0 if it would start from the beginning."""
    events = RlEvents(folder.events)
    events.replay()
    if events.has_invalid:
        return 0
    return max((step for step, state in events.saved.items() if folder.complete_state(state) is not None), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """Inputs of an engine in addition to its plan and the files in the folder."""

    model: str
    """Folder of the policy that training starts from."""
    environments: Mapping[str, Mapping[str, Any]]
    """Settings of the environments of the rows, by name, as JSON-able data, with absolute paths."""
    interpreter: str
    """Python interpreter for the policy's programs, because the engine's environment may lack their packages."""
    import_folders: tuple[Path, ...] = ()
    """Folders of the modules with code of users; see `Registry.import_folder`."""
    experience: Mapping[str, Any] | None = None
    """Files and rules of the pool of experience, as `ExperienceFiles.of_job` reads them; None without a pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforcement(TrainingResult[RlStep]):
    """Result of a successful training; its model is in fp32 if the rollouts used fp32."""

    validations: tuple[Validation, ...]
    """Validations in the order of their steps."""
    chosen_step: int
    """Step whose state was exported as the model."""
    live_greedy: Greedy | None
    """Greedy completion by the policy in training when it saved the state that was exported."""

    @property
    def chosen_validation(self) -> Validation | None:
        """Validation of the exported policy; None if it was not validated."""
        return next((made for made in self.validations if made.step == self.chosen_step), None)


@dataclass(frozen=True, kw_only=True)
class Listener(TrainingListener[RlStep]):
    """Callbacks for the progress of a training."""

    validation: Callable[[Validation], None] = lambda validation: None
    """Called for each validation of this attempt."""
    live: Callable[[ProcessStatus], None] = lambda status: None
    """Called with the status of the engine's processes, whenever it changes."""


def reinforce(
    folder: RlFolder, plan: RlPlan, job: EngineJob, options: EngineOptions, listener: Listener | None = None
) -> Reinforcement:
    """Train as planned on the rows in the folder, or resume an interrupted training.

    Raises the errors of `TrainingRun.run`, and EngineError if there was no reward or only equal ones within each group.
    """
    events = RlEvents(folder.events)
    run = _ReinforcementRun(
        engine=plan.options.engine,
        folder=folder,
        options=options,
        events=events,
        listener=listener or Listener(),
        step_unit=f"steps of {plan.trajectories_per_step:,} rollouts",
        plan=plan,
        engine_job=job,
    )
    run.run()
    chosen = run.chosen_step()
    return Reinforcement(
        **run.facts(),
        validations=tuple(events.validations[step] for step in sorted(events.validations)),
        chosen_step=chosen,
        live_greedy=events.live_greedy.get(chosen),
    )


@dataclass(kw_only=True)
class _ReinforcementRun(TrainingRun[RlStep]):
    """One call of `reinforce`."""

    name = "reinforcement"
    verb = "reinforcing"

    folder: RlFolder
    events: RlEvents
    listener: Listener
    plan: RlPlan
    engine_job: EngineJob
    live_files: LiveFiles = field(init=False)

    def __post_init__(self) -> None:
        self.live_files = LiveFiles(self.folder.live)

    def _store_config(self) -> bool:
        """Write the plan; return whether an earlier attempt stored an equal plan and the engine accepted it."""
        path, text = self.folder.plan, self.plan.to_json()
        same = path.is_file() and path.read_text(encoding="utf-8") == text
        path.write_text(text, encoding="utf-8")
        return same and "prepared" in self.events.last

    def _announcement(self, command: str) -> str:
        if command == "finish":
            return f"writing the policy of step {self.chosen_step():,}"
        return f"{self.engine.title} checks the plan" if command == "check" else ""

    def _advice(self, command: str) -> Advice:
        fewer = "lower rl.per_device_batch_size, max_response_tokens or group_size, use LoRA"
        return Advice(
            refused=f"{self.engine.title} refuses the configuration of rl",
            memory=f"{fewer}, set gradient_checkpointing, or lower gpu_memory_share",
            killed=f"{fewer}, or use a machine with more memory",
        )

    def _job(self, command: str) -> dict[str, Any]:
        folder = self.folder
        state = self._state(self.chosen_step()) if command == "finish" else None
        return {
            "plan": orjson.loads(self.plan.to_json()),
            "environments": self.engine_job.environments,
            "interpreter": self.engine_job.interpreter,
            "import_folders": [str(folder) for folder in self.engine_job.import_folders],
            "rows": str(folder.parquet),
            "validation": str(folder.validation) if folder.validation.is_file() else None,
            "payloads": str(folder.payloads) if folder.payloads.is_file() else None,
            "experience": self.engine_job.experience,
            "model": self.engine_job.model,
            "final": str(folder.model),
            "rollouts": str(folder.rollouts),
            "state": str(state) if state else None,
            "greedy_tokens": self.options.num_greedy_tokens,
        }

    def _start(self, command: str) -> Child:
        """Start a process, after deleting the status files of an earlier one."""
        shutil.rmtree(self.folder.live, ignore_errors=True)
        self.listener.live(ProcessStatus())
        return super()._start(command)

    def _on_poll(self) -> None:
        if (status := self.live_files.new()) is not None:
            self.listener.live(status)

    def _on_event(self, event: dict[str, Any]) -> None:
        """Pass an event of this attempt to the listener; after a new state, delete states that are no longer needed."""
        super()._on_event(event)
        kind = event["event"]
        if kind == "validation":
            self.listener.validation(self.events.validations[event["step"]])
        elif kind == "saved":
            self._prune()
        elif kind == "warning":
            self.listener.notify(printable(event["message"]))

    def _on_begin(self, begin: Mapping[str, Any]) -> None:
        """Report that training starts or resumes; raise EngineError if its steps are not those of the plan."""
        if begin["num_steps"] != self.plan.num_steps:
            raise EngineError(
                f"{self.engine.title} would train {begin['num_steps']:,} steps, but the plan has "
                f"{self.plan.num_steps:,}; see {self.folder.path}"
            )
        if self.resume is not None:
            # A kill may have come after the state was saved and before its event was written.
            self.events.saved[begin["resumed_step"]] = self.resume.name
        super()._on_begin(begin)

    def _prune(self) -> None:
        """Delete states that are no longer needed; those of a large policy take hundreds of gigabytes each."""
        for step in superseded(self.plan.options.checkpoint_rule, self._kept(), self.events.validations):
            if (state := self._state(step)) is not None:
                shutil.rmtree(state, ignore_errors=True)

    def _kept(self) -> list[int]:
        return [step for step in self.events.saved if self._state(step) is not None]

    def _state(self, step: int) -> Path | None:
        """Return the folder of a step's state, if the state is complete."""
        return self.folder.complete_state(self.events.saved[step])

    def chosen_step(self) -> int:
        """Return the step whose state becomes the checkpoint."""
        return choose_step(self.plan.options.checkpoint_rule, self._kept(), self.events.validations)

    def _explain(self, command: str, child: Child, code: int, error: Mapping[str, Any] | None) -> Exception:
        kind = error["kind"] if error else ""
        if kind == "nothing_learned" and self.events.steps:
            self._check_rewards()  # If equal rewards are the cause, this raises a more helpful error.
        if kind == "no_spread":
            # Without the end of the log: its traceback would suggest an error of the engine.
            said = f"had nothing to learn from ({error_text(error)})"
            return EngineError(f"{child.name} {said}; log: {child.log_path}")
        if kind == "environment":
            return child.failure(f"could not open the policy's environment ({error_text(error)})")
        return super()._explain(command, child, code, error)

    def _discard_states(self) -> None:
        """Delete states and rollouts of a training that cannot be used, so that the next attempt begins again."""
        for path in (self.folder.output, self.folder.rollouts):
            shutil.rmtree(path, ignore_errors=True)

    def _check_training(self) -> None:
        """See the base class. Also raises EngineError if there was nothing to learn from, or if no state was saved."""
        if not self.events.steps:
            raise self._failure("reinforcement took no step")
        super()._check_training()
        self._check_rewards()
        if not self._kept():
            raise self._failure(f"reinforcement saved no state in {self.events.last['end']['step']:,} steps")

    def _check_rewards(self) -> None:
        """Raise EngineError if no rollout was rewarded, or if all rewards are equal within each group."""
        steps = self.events.steps
        num_rollouts = sum(step.num_rollouts for step in steps)
        if not num_rollouts or all(step.reward is None for step in steps):
            self._discard_states()
            raise self._failure(f"reinforcement got no reward: in {len(steps):,} steps no rollout was scored")
        num_groups = sum(step.num_groups for step in steps)
        # With another credit rule, or a critic, rollouts with equal rewards may have different advantages.
        is_usual = not self.plan.options.credits_turns and not self.plan.options.engine.has_critic
        if is_usual and num_groups == sum(step.num_equal_groups for step in steps):
            self._discard_states()
            raise self._failure(_nothing_to_learn(steps, num_groups, num_rollouts))


def _nothing_to_learn(steps: list[RlStep], num_groups: int, num_rollouts: int) -> str:
    rewards = {step.reward for step in steps if step.reward is not None}
    mean = f"all {min(rewards):.3g}" if len(rewards) == 1 else f"mean {min(rewards):.3g} to {max(rewards):.3g}"
    return (
        f"reinforcement had nothing to learn from: in all {num_groups:,} groups of {len(steps):,} steps "
        f"({num_rollouts:,} rollouts) the rewards were equal ({mean}), so every advantage was 0; select questions "
        "whose rollouts differ, raise temperature or group_size, or start from a policy that is sometimes right"
    )


def choose_step(rule: Literal["last", "best"], saved: Collection[int], validations: Mapping[int, Validation]) -> int:
    """Return the step whose saved policy becomes the checkpoint; `saved` is not empty.

    `best` takes the step with the highest score in validation; ties go to the most efficient one, then to the
    latest. Steps without a validation, or with no scored answer in it, are skipped. If no step is left, or the rule is
    `last`, the last step is returned.
    """
    validated = [step for step in saved if step in validations and validations[step].overall.score is not None]
    if rule == "last" or not validated:
        return max(saved)
    return max(validated, key=lambda step: _rank_key(validations[step]))


def _rank_key(validation: Validation) -> tuple[float, float, int]:
    figures = validation.overall
    return figures.score or 0.0, figures.efficiency or 0.0, validation.step


def superseded(
    rule: Literal["last", "best"], saved: Collection[int], validations: Mapping[int, Validation]
) -> set[int]:
    """Return the steps whose states can be deleted: all but the newest, for resuming, and the chosen one."""
    return set(saved) - {max(saved), choose_step(rule, saved, validations)} if saved else set()
