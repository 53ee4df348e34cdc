"""Compute both sigmas over the steps of a phase.

The curriculum lowers them from phase to phase; `linear` also lowers them to 0 within a phase, as the program published
with arXiv 2601.06860 does. Documented in docs/behaviour/rewards.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from treadle.core.errors import ConfigError

SigmaDecay = Literal["none", "linear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SigmaSchedule:
    """Sigmas of one phase with `num_steps` steps; a step may make several updates."""

    sigma_tool: float
    sigma_length: float
    decay: SigmaDecay
    num_steps: int

    def at(self, step: int) -> tuple[float, float]:
        """Return the effective (sigma_tool, sigma_length) at a step, counted from 1."""
        factor = decay_factor(self.decay, step, self.num_steps)
        return self.sigma_tool * factor, self.sigma_length * factor


def decay_factor(decay: SigmaDecay, step: int, num_steps: int) -> float:
    """Return the factor of both sigmas at `step` (from 1): 1 without decay, else max(0, (T - t) / (T - 1)).

    For a phase of one step, the factor with decay is 0. Raises ValueError if `step` is below 1.
    """
    if step < 1:
        raise ValueError(f"steps are counted from 1, not {step}")
    if decay == "none":
        return 1.0
    return max(0.0, (num_steps - step) / (num_steps - 1)) if num_steps > 1 else 0.0


def check_sigmas(sigma_tool: float, sigma_length: float, *, allow_zero_sigmas: bool, where: str) -> None:
    """Raise ConfigError if a sigma is negative or not finite, or if both are 0 without `allow_zero_sigmas`.

    `where` is the address for messages, such as `1/rl@phase-2`. With both at 0, the factors are the same for every
    trajectory, and the policy learns nothing about calls and length.
    """
    for name, sigma in (("sigma_tool", sigma_tool), ("sigma_length", sigma_length)):
        if not (math.isfinite(sigma) and sigma >= 0):
            raise ConfigError(f"{where}: {name} = {sigma:g} must be a finite number of at least 0")
    if sigma_tool == 0 and sigma_length == 0 and not allow_zero_sigmas:
        raise ConfigError(
            f"{where}: sigma_tool and sigma_length are both 0, so neither calls nor length would count; "
            "raise one of them, or set rl.allow_zero_sigmas = true"
        )
