"""Define the curriculum: the number of phases, their sigmas, and the policy that each starts from.

Phase k samples trajectories with policy k-1, selects questions whose trajectories still differ, and trains policy k on
them. Documented in docs/behaviour/curriculum.md.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from treadle.core.config import Growing, Operational, Section
from treadle.core.runs.address import Address, phase_name
from treadle.environments.rollouts.settings import RolloutOptions

MAX_PHASES = 20

Sigma = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class PhaseRollouts(RolloutOptions):
    """Rollouts from which the questions of a phase are selected.

    The keys are those of `rollouts`, but they are locked in a run, because they decide what policies are trained on.
    """

    role: ClassVar[str] = "policy"
    samples_per_question: int = Field(default=16, ge=1)
    """Trajectories per question (K); the selection uses their spread."""
    max_questions: int | None = Field(default=None, ge=1)
    """Maximum number of questions, taken in their order; None means all."""
    max_questions_per_dataset: int | None = Field(default=None, ge=1)
    """Maximum number of questions per data set; None means all."""
    datasets: tuple[str, ...] = ()
    """Data sets to answer; empty means all."""
    split: Literal["train", "heldout"] | None = "train"
    """Split of the questions to answer; None means both."""


class CurriculumSettings(Section):
    """Phases of reinforcement learning; each samples, selects and trains with the policy of the previous phase.

    The stages of a phase are `rollouts@phase-<k>`, `scores@phase-<k>`, `selection@phase-<k>` and `rl@phase-<k>`.
    """

    phases: Operational[int] = Field(default=3, ge=1, le=MAX_PHASES)
    """Number of phases; it can be raised in an existing run, with one more sigma in each list."""
    sigma_tool: Growing[tuple[Sigma, ...]] = (0.1, 0.05, 0.025)
    """Weight of tool calls in the reward, by phase: how steeply it falls per call above the group's mean;
    `rl.sigma_tool` overrides all."""
    sigma_length: Growing[tuple[Sigma, ...]] = (0.1, 0.05, 0.025)
    """Weight of length in the reward, by phase: how steeply it falls per standard deviation above the group's mean;
    `rl.sigma_length` overrides all."""
    sampling_model: str | None = None
    """Name under `models` of the model whose settings serve the policy of a phase; the policy replaces the weights
    that its server loads. None: the policy of `pools`."""
    rollouts: PhaseRollouts = PhaseRollouts()
    """Settings of the stage `rollouts` in every phase."""

    @model_validator(mode="after")
    def _check_lengths(self) -> CurriculumSettings:
        for name in ("sigma_tool", "sigma_length"):
            if (given := len(getattr(self, name))) < self.phases:
                raise ValueError(f"{name} has {given} values for {self.phases} phases; give one for each")
        return self

    def sigmas(self, phase: int) -> tuple[float, float]:
        """Return the sigmas of a phase, counted from 1: (tool calls, length)."""
        return self.sigma_tool[phase - 1], self.sigma_length[phase - 1]


def policy_before(start: str, iteration: int, phase: int) -> str:
    """Return the policy that a phase starts from: `start`, or the address of the previous phase's training."""
    return start if phase == 1 else str(Address(iteration, "rl", phase_name(phase - 1)))
