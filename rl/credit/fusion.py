"""Join labels of steps with the outcomes of a group into advantages (AgentEvolver, arXiv 2511.10395, ADCA-GRPO).

Labels become values of steps, which are normalised within the group; each trajectory's outcome, compared with its
group's, is added to its steps; the advantage of a step is the sum of what it and all later steps got. Pure functions:
a list has one item per trajectory, and a list in it one per step. Documented in docs/behaviour/rewards.md.
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
"""Added to the variance of the values of steps; outcomes that spread no more than this count as equal."""
SUCCESS = 0.5
"""Reward above which the fusion takes a trajectory for a success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionSettings:
    """Settings of the fusion; the rule `attribution` has the same keys.

    Attributes:
        scheme: How labels become values of steps.
        outcome_on: Steps that the outcome is added to; `only_prm` adds it to none.
        alpha: Weight of the values of steps next to the outcome.
        fix_base: Size of a value in `decouple`.
        consistent, inconsistent: Weights in `allocation` of steps whose labels agree with the outcome, and of others.
        weighting: What counts alike in the mean and variance of the group.
        by_length: Whether the sums of K steps are divided by the root of K, in `decouple`.
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
    """Advantages of the steps of a trajectory, and what they consist of.

    Attributes:
        advantages: Advantage of each step.
        outcome_share: Share of the outcome in the sizes of all that was added; None if that is 0.
        agrees: Whether the first advantage, the sum of all, is above 0 exactly if the trajectory is a success.
    """

    advantages: list[float]
    outcome_share: float | None
    agrees: bool


def fuse(
    labels: Sequence[Sequence[bool]], num_steps: Sequence[int], rewards: Sequence[float], settings: FusionSettings
) -> list[FusedSteps]:
    """Return the advantages of the steps of a group.

    Labels state for each step whether it is good. Missing ones are taken for good, in `allocation` only if the
    trajectory is a success; those beyond its steps are ignored.
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
    """Return the values of the steps before the group is normalised.

    `decouple`: +`fix_base` for good ones, else -`fix_base`. `allocation`: shares of +1 for a success and of -1 for a
    failure, by the weights of the steps.
    """
    if settings.scheme == "decouple":
        return [[settings.fix_base if good else -settings.fix_base for good in flags] for flags in labels]
    return [
        _allocated([settings.consistent if good == (reward > SUCCESS) else settings.inconsistent for good in flags],
                   1.0 if reward > SUCCESS else -1.0)
        for flags, reward in zip(labels, rewards, strict=True)
    ]  # fmt: skip


def normalised(values: Sequence[Sequence[float]], weighting: Weighting) -> list[list[float]]:
    """Return values less their mean and divided by their deviation, in which trajectories or steps count alike."""
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
    """Return `alpha` at the start, `alpha_min` from `total_steps` on, and half a cosine wave between them."""
    progress = min(max(step / total_steps, 0.0), 1.0)
    return alpha_min + 0.5 * (alpha - alpha_min) * (1.0 + math.cos(math.pi * progress))


def _aligned(flags: Sequence[bool], number: int, missing: bool) -> list[bool]:
    return [*flags[:number], *[missing] * (number - len(flags))]


def _allocated(weights: Sequence[float], total: float) -> list[float]:
    """Return shares of a total by weights; 0 if all weights are."""
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
