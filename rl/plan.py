"""One phase of reinforcement as data, the same for every engine; each engine's files are generated from it.

Documented in docs/behaviour/rewards.md.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError

from treadle.core.config import Section
from treadle.core.errors import ConfigError, EngineError
from treadle.rl.config import RlOptions, RlSettings
from treadle.rl.sigmas import SigmaSchedule, check_sigmas

PLAN_VERSION = 1
"""Raised when the meaning of a plan changes."""


class Machine(Section):
    """What a phase is trained on."""

    variant: Literal["cpu", "cuda"] = "cpu"
    """Build of the engine."""
    num_devices: int = Field(default=1, ge=1)
    """GPUs of each node; a CPU counts as one."""
    num_nodes: int = Field(default=1, ge=1)
    """Machines that train together."""

    @property
    def num_processes(self) -> int:
        """Devices that train together, over all nodes."""
        return self.num_devices * self.num_nodes


ONE_CPU = Machine()


class RlPlan(Section):
    """One phase: which rows, from which policy, with which options, on what. `plan_phase` makes those that are
    followed.

    Counting: a *step* rolls out `prompts_per_step` questions, `group_size` trajectories each, and makes
    `updates_per_step` *updates* of the policy. Whatever an engine counts, plans count steps.
    """

    version: int = PLAN_VERSION
    """Version of the plan's meaning."""
    address: str
    """Instance of the stage, such as `1/rl@phase-2`."""
    phase: int = Field(ge=1)
    """Number of the phase, from 1."""
    phases: int = Field(ge=1)
    """Phases of the curriculum."""
    start: str
    """Policy that training begins with, as configured: an instance, `embedded`, a folder, or a hub id."""
    rows_digest: str
    """Digest of the table of rows."""
    num_rows: int = Field(ge=0)
    """Rows that fit `max_prompt_tokens`, of which a pass consists."""
    num_validation_rows: int = Field(default=0, ge=0)
    """Held-out questions that are answered in validations."""
    environment_digest: str
    """Digest of the environment; the engine's must be the same."""
    seed: int
    """Decides the order of rows and all sampling."""
    machine: Machine = Machine()
    """What it is trained on."""
    options: RlOptions
    """How; `variant`, `num_devices` and `num_nodes` in here are what was asked for, `machine` is what there is."""

    @property
    def precision(self) -> Literal["bf16", "fp16", "fp32"]:
        """What the policy computes in, in rollouts and updates alike: `auto` is fp32 on a CPU, else bf16."""
        if self.options.precision == "auto":
            return "fp32" if self.machine.variant == "cpu" else "bf16"
        return self.options.precision

    @property
    def trajectories_per_step(self) -> int:
        """Rollouts of one step."""
        return self.options.prompts_per_step * self.options.group_size

    @property
    def steps_per_epoch(self) -> int:
        """Whole steps in one pass over the rows."""
        return self.num_rows // self.options.prompts_per_step

    @property
    def num_steps(self) -> int:
        """Steps of the phase."""
        steps = self.steps_per_epoch * self.options.num_epochs
        return steps if self.options.max_steps is None else min(steps, self.options.max_steps)

    @property
    def updates_per_step(self) -> int:
        """Updates of the policy in one step."""
        return self.options.prompts_per_step // self.options.mini_batch_prompts

    @property
    def sigmas(self) -> SigmaSchedule:
        """Sigmas over the steps."""
        tool, length = self.options.sigma_tool, self.options.sigma_length
        assert tool is not None and length is not None, "plan_phase checks it"
        return SigmaSchedule(
            sigma_tool=tool, sigma_length=length, decay=self.options.sigma_decay, num_steps=self.num_steps
        )

    def validates_at(self, step: int) -> bool:
        """Whether a step, counted from 1, is followed by a validation."""
        return self.num_validation_rows > 0 and (step % self.options.validation_steps == 0 or step == self.num_steps)

    def saves_at(self, step: int) -> bool:
        """Whether a step, counted from 1, is followed by a saved state."""
        return step % self.options.save_steps == 0 or step == self.num_steps

    def to_json(self) -> str:
        """The plan as text; `from_json` reads it back."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> RlPlan:
        """Read `to_json` back; raises EngineError for anything but a plan of this version."""
        try:
            plan = cls.model_validate_json(text)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(map(str, problem["loc"])) or "it"
            raise EngineError(f"this is no plan of a phase of reinforcement: {where}: {problem['msg']}") from None
        if plan.version != PLAN_VERSION:
            raise EngineError(f"the plan is of version {plan.version}, and this code follows {PLAN_VERSION}")
        return plan


def draft_plan(
    options: RlOptions, *, num_rows: int, num_validation_rows: int = 0, machine: Machine = ONE_CPU
) -> RlPlan:
    """A plan of which only options and numbers are known: for estimates and checks before there are rows."""
    return RlPlan(
        address="",
        phase=1,
        phases=1,
        start=options.start,
        rows_digest="",
        num_rows=num_rows,
        num_validation_rows=num_validation_rows,
        environment_digest="",
        seed=0,
        machine=machine,
        options=options,
    )


def plan_phase(
    settings: RlSettings,
    *,
    address: str,
    rows_digest: str,
    num_rows: int,
    num_validation_rows: int = 0,
    machine: Machine = ONE_CPU,
) -> RlPlan:
    """The plan of one phase; raises ConfigError for one that cannot be followed, or would teach nothing about effort.

    `num_rows`: those whose prompts are not too long. `machine`: what there is, not what was asked for.
    """
    options = settings.options
    if options.sigma_tool is None or options.sigma_length is None:
        raise ConfigError(
            f"{address}: rl.sigma_tool and rl.sigma_length are open; set them, or the phase's in curriculum"
        )
    check_sigmas(options.sigma_tool, options.sigma_length, allow_plain=options.allow_plain, where=address)
    if num_rows < options.prompts_per_step:
        raise ConfigError(
            f"{address}: {num_rows} rows are fewer than rl.prompts_per_step = {options.prompts_per_step}, so there "
            "would be no step; select more questions, or lower it"
        )
    if options.checkpoint_rule == "best" and not num_validation_rows:
        raise ConfigError(
            f'{address}: rl.checkpoint_rule = "best" needs validation; set rl.validation_questions, or take "last"'
        )
    return RlPlan(
        address=address,
        phase=settings.phase,
        phases=settings.phases,
        start=options.start,
        rows_digest=rows_digest,
        num_rows=num_rows,
        num_validation_rows=num_validation_rows,
        environment_digest=settings.environment.digest(),
        seed=settings.seed,
        machine=machine,
        options=options,
    )
