"""The curriculum: how many phases there are, how their sigmas fall, and which policy each of them begins with.

Phase k samples trajectories with policy k-1, selects questions whose trajectories still differ, and trains policy k on
them. Documented in docs/behaviour/curriculum.md.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from treadle.agent.rollouts import RolloutOptions
from treadle.core.config import Growing, Operational, Section
from treadle.core.stage import Address

MAX_PHASES = 20
PHASED_STAGES = ("rollouts", "scores", "selection", "rl")
"""Stages with an instance for every phase, in the order of their work."""

_PHASE = re.compile(r"phase-([1-9]\d{0,3})")

Sigma = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class PhaseRollouts(RolloutOptions):
    """Trajectories that the questions of a phase are selected by; keys as in `rollouts`."""

    role: ClassVar[str] = "policy"
    samples_per_question: int = Field(default=16, ge=1)
    """K: trajectories per question, whose spread decides what is selected."""
    split: Literal["train", "heldout"] | None = "train"
    """Part of the questions to answer; none means both."""


class CurriculumSettings(Section):
    """Phases of reinforcement learning, each of which samples, selects and trains with the policy of the one before.

    Every phase is `rollouts@phase-<k>`, `scores@phase-<k>`, `selection@phase-<k>` and `rl@phase-<k>`."""

    phases: Operational[int] = Field(default=3, ge=1, le=MAX_PHASES)
    """Number of phases; a run may get further ones, with a sigma more in each list."""
    sigma_tool: Growing[tuple[Sigma, ...]] = (0.1, 0.05, 0.025)
    """How strongly tool calls above the group's mean lower the reward, by phase; `rl.sigma_tool` overrules all."""
    sigma_length: Growing[tuple[Sigma, ...]] = (0.1, 0.05, 0.025)
    """The same for the length, in standard deviations of the group; `rl.sigma_length` overrules all."""
    sampling_model: str | None = None
    """Model whose settings serve the policy of a phase, by its name under `models`: what its server loads is replaced
    by that policy. None: the policy of `pools`."""
    rollouts: PhaseRollouts = PhaseRollouts()
    """Stage `rollouts` of every phase."""

    @model_validator(mode="after")
    def _check_lengths(self) -> CurriculumSettings:
        for name in ("sigma_tool", "sigma_length"):
            if (given := len(getattr(self, name))) < self.phases:
                raise ValueError(f"{name} has {given} values for {self.phases} phases; give one for each")
        return self

    def sigmas(self, phase: int) -> tuple[float, float]:
        """Sigmas of a phase, counted from 1: of tool calls and of the length."""
        return self.sigma_tool[phase - 1], self.sigma_length[phase - 1]


def phase_name(phase: int) -> str:
    """What stands for a phase in addresses and rows, such as `phase-2`."""
    return f"phase-{phase}"


def phase_of(name: str | None) -> int | None:
    """The phase that a name stands for; None for another one."""
    match = _PHASE.fullmatch(name or "")
    return int(match[1]) if match else None


def phase_addresses(iteration: int, phase: int) -> tuple[Address, ...]:
    """The instances of one phase, producers first."""
    return tuple(Address(iteration, stage, phase_name(phase)) for stage in PHASED_STAGES)


def policy_before(start: str, iteration: int, phase: int) -> str:
    """What a phase begins with: `start`, or the address of the training before it."""
    return start if phase == 1 else str(Address(iteration, "rl", phase_name(phase - 1)))
