"""Compute the figures of a step and of a validation that every engine reports.

Means are over scored trajectories. Documented in docs/behaviour/rewards.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from treadle.rl.rewards.base import CONTEXT_FULL, FAILED
from treadle.rl.rewards.rewarded import RewardedItem

CUT_OFF = frozenset({"length", "budget", "context_full"})
"""Statuses of rollouts that ended because there was no room for more tokens."""


def step_figures(groups: Iterable[Sequence[RewardedItem]], environments: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the figures of one training step from the rewards of its groups; means are None if nothing was scored.

    `reward_std` is the mean over groups of the standard deviation (n - 1) of rewards within each group: at 0 there is
    nothing to learn. `parts` has the mean of each part by name. If `environments` names the environment of each group,
    the result has under `environments` the number of rollouts, the mean reward and the mean score of each environment.
    """
    groups = list(groups)
    of_each = {} if environments is None else {"environments": _by_environment(groups, environments)}
    scored = [kept for group in groups if (kept := [reward for reward in group if reward.scored])]
    deviations = [deviation([reward.reward for reward in group]) for group in scored]
    rewards = [reward for group in scored for reward in group]
    return {
        "num_rollouts": len(rewards),
        "num_groups": len(scored),
        "num_equal_groups": deviations.count(0.0),
        "reward": _mean(reward.reward for reward in rewards),
        "reward_std": _mean(deviations),
        "answered": _mean(reward.status == "answered" for reward in rewards),
        "cut_off": _mean(reward.status in CUT_OFF for reward in rewards),
        "timeout": _mean(reward.status == "timeout" for reward in rewards),
        **_lost(groups),
        **_too_long(groups),
        "tool_failures": _mean(reward.tool_failures for reward in rewards),
        **_common_means(rewards),
        **of_each,
    }


def _lost(groups: Sequence[Sequence[RewardedItem]]) -> dict[str, int]:
    """Return the numbers of rollouts, and of whole groups, that were lost to infrastructure; empty without any."""
    lost = [sum(reward.status == FAILED for reward in group) for group in groups]
    whole = sum(count == len(group) for count, group in zip(lost, groups, strict=True))
    return {"num_lost": sum(lost), "num_lost_groups": whole} if any(lost) else {}


def _too_long(groups: Sequence[Sequence[RewardedItem]]) -> dict[str, int]:
    """Return the number of rollouts whose prompts left no room for a turn; empty if there are none."""
    number = sum(
        not reward.scored and reward.status == CONTEXT_FULL and not reward.length
        for group in groups
        for reward in group
    )
    return {"num_too_long": number} if number else {}


def environment_figures(by_environment: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield the mean reward and score of each environment as `environments/<name>/<figure>`, for trackers."""
    for name, figures in by_environment.items():
        for figure in ("reward", "score"):
            if (value := figures.get(figure)) is not None:
                yield f"environments/{name}/{figure}", value


def _by_environment(
    groups: Sequence[Sequence[RewardedItem]], environments: Sequence[str]
) -> dict[str, dict[str, float | None]]:
    found = {}
    for name in sorted(set(environments)):
        rewards = [
            reward
            for group, environment in zip(groups, environments, strict=True)
            for reward in group
            if environment == name and reward.scored
        ]
        found[name] = {
            "num_rollouts": len(rewards),
            "reward": _mean(reward.reward for reward in rewards),
            "score": _mean(reward.score for reward in rewards if reward.score is not None),
        }
    return found


def validation_figures(
    rewards: Sequence[RewardedItem], domains: Sequence[str], environments: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the figures of one validation, with one trajectory per question, overall and under `by_domain`.

    If `environments` names the environment of each question, the figures are also given under `by_environment`.
    `efficiency` is the mean of score / max(1, calls), `executed` the share of executed calls that did not fail; figures
    are None if nothing was scored, or no tool was called.
    """
    grouped = {"by_domain": _validation_by(rewards, domains)}
    if environments is not None:
        grouped["by_environment"] = _validation_by(rewards, environments)
    return {**_validation([reward for reward in rewards if reward.scored]), **grouped}


def _validation_by(rewards: Sequence[RewardedItem], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    pairs = [(reward, name) for reward, name in zip(rewards, names, strict=True) if reward.scored]
    known = sorted({name for _, name in pairs})
    return {name: _validation([reward for reward, own in pairs if own == name]) for name in known}


def _validation(rewards: Sequence[RewardedItem]) -> dict[str, Any]:
    calls = sum(reward.tool_calls for reward in rewards)
    failures = sum(reward.tool_failures for reward in rewards)
    return {
        "num_questions": len(rewards),
        "efficiency": _mean(reward.score / max(1, reward.tool_calls) for reward in rewards if reward.score is not None),
        "executed": (calls - failures) / calls if calls else None,
        **_common_means(rewards),
    }


def _common_means(rewards: Sequence[RewardedItem]) -> dict[str, Any]:
    """Return the means that both steps and validations have."""
    return {
        "score": _mean(reward.score for reward in rewards if reward.score is not None),
        "calls": _mean(reward.tool_calls for reward in rewards),
        "length": _mean(reward.length for reward in rewards),
        "web_misses": _mean(reward.web_misses for reward in rewards),
        "parts": _mean_parts(rewards),
    }


def _mean_parts(rewards: Sequence[RewardedItem]) -> dict[str, float]:
    """Return name -> mean of each part of the rewards over those that have it, sorted by name."""
    values: dict[str, list[float]] = {}
    for reward in rewards:
        for name, value in reward.parts.items():
            values.setdefault(name, []).append(value)
    return {name: math.fsum(found) / len(found) for name, found in sorted(values.items())}


def deviation(rewards: Sequence[float]) -> float:
    """Return the sample standard deviation (n - 1); exactly 0 for equal rewards and for fewer than two."""
    count = len(rewards)
    if count < 2 or min(rewards) == max(rewards):
        return 0.0
    mean = math.fsum(rewards) / count
    return math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (count - 1))


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else None
