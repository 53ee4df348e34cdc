"""Join labels of steps with the outcomes of a group into advantages (AgentEvolver, arXiv 2511.10395, ADCA-GRPO).

Labels become values of steps, which are normalised within the group. A trajectory's outcome (its reward, standardised
within the group) is added to the values of its steps. The advantage of a step is the sum over it and all later steps.
All functions are pure: a list has one item per trajectory, a list within it one per step. Documented in
docs/behaviour/rewards.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Scheme = Literal["decouple", "allocation"]
OutcomeOn = Literal["last_step", "all_steps", "only_prm"]
Weighting = Literal["trajectories", "steps", "none"]

EPSILON = 1e-8
"""Added to the variance of the values of steps. Rewards whose standard deviation is at most this count as equal."""
SUCCESS = 0.5
"""Reward above which the fusion counts a trajectory as a success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionSettings:
    """Settings of the fusion; the rule `attribution` has the same keys.

    Attributes:
        scheme: How labels become values of steps.
        outcome_on: Steps that the outcome is added to; `only_prm` adds it to none.
        alpha: Factor of the values of steps, to which the outcome is added with factor 1; not used with `only_prm`.
        fix_base: Absolute value of a step's value in `decouple`.
        consistent, inconsistent: Weights in `allocation` of steps whose labels agree with the outcome, and of others.
        weighting: Whether each trajectory or each step has the same weight in the group's mean and variance; with
            `none` values are not normalised.
        by_length: Whether the terms of a trajectory with K steps are divided by the square root of K.
    """

    scheme: Scheme = "decouple"
    outcome_on: OutcomeOn = "last_step"
    alpha: float = 0.1
    fix_base: float = 0.2
    consistent: float = 1.0
    inconsistent: float = 0.2
    weighting: Weighting = "trajectories"
    by_length: bool = False


@dataclass(frozen=True, slots=True)
class FusedSteps:
    """Advantages of the steps of a trajectory, and facts about the terms that they are sums of.

    Attributes:
        advantages: Advantage of each step.
        outcome_share: Sum of the absolute values of the outcome's terms, divided by that of all terms (outcome and
            step values); None if the divisor is 0.
        agrees: Whether the advantage of the first step, which sums the terms of all steps, is above 0 exactly if the
            trajectory is a success; False without steps.
    """

    advantages: list[float]
    outcome_share: float | None
    agrees: bool


def fuse(
    labels: Sequence[Sequence[bool]], num_steps: Sequence[int], rewards: Sequence[float], settings: FusionSettings
) -> list[FusedSteps]:
    """Return the advantages of the steps of a group.

    `labels` has for each step whether it is good. Missing labels count as good in `decouple`; in `allocation` as good
    if the trajectory is a success, else as bad. Labels beyond the last step are ignored.
    """
    aligned = [
        _aligned(flags, number, settings.scheme == "decouple" or reward > SUCCESS)
        for flags, number, reward in zip(labels, num_steps, rewards, strict=True)
    ]
    values = normalised(step_values(aligned, rewards, settings), settings.weighting)
    outcomes = standard_scores(rewards)
    return [
        _fused(of_steps, outcome, reward > SUCCESS, settings)
        for of_steps, outcome, reward in zip(values, outcomes, rewards, strict=True)
    ]


def step_values(
    labels: Sequence[Sequence[bool]], rewards: Sequence[float], settings: FusionSettings
) -> list[list[float]]:
    """Return the values of the steps before they are normalised within the group.

    `decouple`: +`fix_base` for a good step, -`fix_base` for a bad one. `allocation`: +1 for a success, or -1 for a
    failure, divided among the steps in proportion to their weights.
    """
    if settings.scheme == "decouple":
        return [[settings.fix_base if good else -settings.fix_base for good in flags] for flags in labels]
    return [
        _allocated([settings.consistent if good == (reward > SUCCESS) else settings.inconsistent for good in flags],
                   1.0 if reward > SUCCESS else -1.0)
        for flags, reward in zip(labels, rewards, strict=True)
    ]  # fmt: skip


def normalised(values: Sequence[Sequence[float]], weighting: Weighting) -> list[list[float]]:
    """Return values less their mean, divided by their deviation; `weighting` is explained in `FusionSettings`."""
    groups: list[Sequence[float]] = [own for own in values if own]
    if weighting == "none" or not groups:
        return [list(own) for own in values]
    if weighting == "steps":
        groups = [list(itertools.chain(*groups))]
    mean = _mean([_mean(own) for own in groups])
    variance = _mean([_mean([(value - mean) ** 2 for value in own]) for own in groups])
    deviation = math.sqrt(variance + EPSILON)
    return [[(value - mean) / deviation for value in own] for own in values]


def standard_scores(rewards: Sequence[float]) -> list[float]:
    """Return rewards less their mean and divided by their population deviation; all 0 if they do not spread."""
    mean = _mean(rewards)
    deviation = math.sqrt(_mean([(reward - mean) ** 2 for reward in rewards]))
    return [(reward - mean) / deviation if deviation > EPSILON else 0.0 for reward in rewards]


def decayed(alpha: float, alpha_min: float, step: int, total_steps: int) -> float:
    """Return the weight at a step: `alpha` at 0, `alpha_min` from `total_steps` on, half a cosine wave between them."""
    progress = min(max(step / total_steps, 0.0), 1.0)
    return alpha_min + 0.5 * (alpha - alpha_min) * (1.0 + math.cos(math.pi * progress))


def _aligned(flags: Sequence[bool], number: int, missing: bool) -> list[bool]:
    return [*flags[:number], *[missing] * (number - len(flags))]


def _allocated(weights: Sequence[float], total: float) -> list[float]:
    """Divide a total in proportion to weights; all shares are 0 if all weights are 0."""
    whole = math.fsum(weights)
    return [total * weight / whole if whole > EPSILON else 0.0 for weight in weights]


def _fused(values: Sequence[float], outcome: float, success: bool, settings: FusionSettings) -> FusedSteps:
    """Return the fused advantages of one trajectory, from the normalised values of its steps."""
    number, where = len(values), settings.outcome_on
    weight = 1.0 if where == "only_prm" else settings.alpha
    added = {"last_step": [0.0] * (number - 1) + [outcome], "all_steps": [outcome] * number, "only_prm": [0.0] * number}
    scale = 1.0 / math.sqrt(number) if settings.by_length and number else 1.0
    of_outcome = added[where][:number]
    steps = [scale * (weight * value + own) for value, own in zip(values, of_outcome, strict=True)]
    sums = list(itertools.accumulate(reversed(steps)))[::-1]
    outcome_size = math.fsum(map(abs, of_outcome))
    size = outcome_size + weight * math.fsum(map(abs, values))
    return FusedSteps(sums, outcome_size / size if size else None, bool(sums) and (sums[0] > 0.0) == success)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
