"""Define the plan of one phase, from which each engine's configuration is generated.

Documented in docs/behaviour/rewards.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from pydantic import Field, ValidationError

from treadle.core.config import Section
from treadle.core.engines.config import Machine
from treadle.core.errors import ConfigError, EngineError
from treadle.environments.mixture import find_environment
from treadle.environments.scorers.registry import AnyScorer
from treadle.rl.config import AlgebraLimits, RlOptions, RlSettings
from treadle.rl.training.step_rows import most_prompts, step_rows

PLAN_VERSION = 4
"""Version of the plan format; raised when the meaning of a plan changes."""


ONE_CPU = Machine()


class RlPlan(Section):
    """Plan of one phase: its rows, start policy, options and machine. Use `plan_phase` to make one for a training.

    A plan with options, machine and counts only is a draft, for estimates and checks before there are rows.

    A *step* rolls out `prompts_per_step` questions with `group_size` trajectories each, and makes `updates_per_step`
    *updates* of the policy. Plans always count steps, whatever an engine counts.
    """

    version: int = PLAN_VERSION
    """Version of the plan format."""
    address: str = ""
    """Instance of the stage, such as `1/rl@phase-2`; empty in a draft."""
    phase: int = Field(default=1, ge=1)
    """Number of the phase, from 1."""
    phases: int = Field(default=1, ge=1)
    """Number of phases in the curriculum."""
    start: str = ""
    """Policy that training starts from, as configured: an instance, `embedded`, a folder, or a hub id."""
    rows_digest: str = ""
    """Digest of the table of rows."""
    num_rows: int = Field(ge=0)
    """Number of rows that fit `max_prompt_tokens`; a pass goes over these."""
    num_validation_rows: int = Field(default=0, ge=0)
    """Number of held-out questions in each validation."""
    environment_digests: dict[str, str] = {}
    """Digest of each environment that rows and held-out questions belong to, by name; those of the engine must have
    the same."""
    environment_rows: dict[str, int] = {}
    """Number of rows of each environment."""
    seed: int = 0
    """Seed of the order of the rows and of all sampling."""
    machine: Machine = Machine()
    """Hardware that the phase is trained on."""
    scorers: dict[str, AnyScorer] = {}
    """Scorers that the tasks name, by name; see `Plan.scorers`."""
    algebra: AlgebraLimits | None = None
    """Limits of computer algebra in the reward; None if it is not used."""
    options: RlOptions
    """Options of the phase; `variant`, `num_devices` and `num_nodes` in here are as requested, `machine` is what is
    available."""

    @property
    def precision(self) -> Literal["bf16", "fp16", "fp32"]:
        """Number type of the policy's computation, in rollouts and updates: `auto` is fp32 on a CPU, else bf16."""
        if self.options.precision == "auto":
            return "fp32" if self.machine.variant == "cpu" else "bf16"
        return self.options.precision

    @property
    def trajectories_per_step(self) -> int:
        """Rollouts per step."""
        return self.options.prompts_per_step * self.options.group_size

    @property
    def steps_per_epoch(self) -> int:
        """Full steps per pass over the rows."""
        return self.num_rows // self.options.prompts_per_step

    @property
    def num_steps(self) -> int:
        """Number of steps of the phase."""
        steps = self.steps_per_epoch * self.options.num_epochs
        return steps if self.options.max_steps is None else min(steps, self.options.max_steps)

    @property
    def is_mixed(self) -> bool:
        """True if the tasks belong to more than one environment."""
        return len(self.environment_digests) > 1

    @property
    def updates_per_step(self) -> int:
        """Updates of the policy per step."""
        return self.options.prompts_per_step // self.options.mini_batch_prompts

    def rows_of_steps(self, environments: Sequence[str]) -> list[list[int]]:
        """Return the indices of the rows of each step, given the environment of each row. Needs `shares`."""
        options = self.options
        return step_rows(environments, options.shares, options.prompts_per_step, self.num_steps, self.seed)

    def validates_at(self, step: int) -> bool:
        """Return whether a validation follows a step, counted from 1."""
        return self.num_validation_rows > 0 and (step % self.options.validation_steps == 0 or step == self.num_steps)

    def saves_at(self, step: int) -> bool:
        """Return whether a state is saved after a step, counted from 1."""
        return step % self.options.save_steps == 0 or step == self.num_steps

    def to_json(self) -> str:
        """Return the plan as text; `from_json` reads it back."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> RlPlan:
        """Read `to_json` back; raise EngineError for anything but a plan of this version."""
        try:
            plan = cls.model_validate_json(text)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(map(str, problem["loc"])) or "it"
            raise EngineError(f"this is not a valid plan of a phase: {where}: {problem['msg']}") from None
        if plan.version != PLAN_VERSION:
            raise EngineError(f"the plan has version {plan.version}, but this code reads version {PLAN_VERSION}")
        return plan


def plan_phase(
    settings: RlSettings,
    *,
    address: str,
    rows_digest: str,
    rows: Mapping[str, int],
    validation_rows: Mapping[str, int] = MappingProxyType({}),
    machine: Machine = ONE_CPU,
) -> RlPlan:
    """Return the plan of one phase.

    `rows` and `validation_rows` count by environment the rows and held-out questions whose prompts fit; `machine` is
    what is available, not what was requested. Raises ConfigError if the plan cannot be trained, or if its reward or
    credit rule refuses its settings.
    """
    options = settings.options
    num_rows, num_validation_rows = sum(rows.values()), sum(validation_rows.values())
    options.reward.check(address)
    options.credit.check(address)
    if num_rows < options.prompts_per_step:
        raise ConfigError(
            f"{address}: {num_rows} rows are fewer than rl.prompts_per_step = {options.prompts_per_step}, so there "
            "would be no step; select more questions, or lower it"
        )
    if options.checkpoint_rule == "best" and not num_validation_rows:
        raise ConfigError(
            f'{address}: rl.checkpoint_rule = "best" needs validation; set rl.validation_questions, or use "last"'
        )
    if num_rows < options.prompts_per_draw:
        raise ConfigError(
            f"{address}: {num_rows} rows are fewer than rl.gen_prompts = {options.prompts_per_draw} questions of a "
            "draw; select more questions, or lower it"
        )
    _check_shares(options, address, rows)
    named = settings.named_environments()
    return RlPlan(
        address=address,
        phase=settings.phase,
        phases=settings.phases,
        start=options.start,
        rows_digest=rows_digest,
        num_rows=num_rows,
        num_validation_rows=num_validation_rows,
        environment_digests={
            name: find_environment(named, name).digest() for name in sorted({**rows, **validation_rows})
        },
        environment_rows=dict(rows),
        seed=settings.seed,
        machine=machine,
        scorers=settings.scorers,
        algebra=settings.algebra,
        options=options,
    )


def _check_shares(options: RlOptions, address: str, rows: Mapping[str, int]) -> None:
    """Raise ConfigError if an environment with rows has no share, or has fewer rows than its share of a step may need.

    Nothing is checked if `rl.shares` is empty.
    """
    shares = options.shares
    if not shares:
        return
    if without := sorted(rows.keys() - shares.keys()):
        raise ConfigError(
            f"{address}: {rows[without[0]]:,} rows are of environment {without[0]}, which has no share in rl.shares; "
            "add it, with 0 to leave its rows out"
        )
    for name, share in shares.items():
        most, number = most_prompts(share, shares, options.prompts_per_step), rows.get(name, 0)
        if number < most:
            raise ConfigError(
                f"{address}: rl.shares gives {name} up to {most} questions of a step, but only {number} rows are of "
                "this environment; select more of its questions, or lower its share or rl.prompts_per_step"
            )
