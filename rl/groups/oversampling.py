"""Decide when an over-sampled group has enough finished rollouts, and which of them are trained on.

A group of n starts more than n rollouts and ends when the first ones suffice; the others are cancelled. Short rollouts
end first, so the trained ones are a biased sample. Audited groups, chosen by the seed, run to their end to measure that
bias. Normative: docs/behaviour/group-rollouts.md, part "Over-sampling". Only the standard library is imported.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

RolloutUse = Literal["trained", "unused", "cancelled", "audit", "lost"]
"""Use of a started rollout: `unused` if it finished in time and was not chosen, `audit` if it would have been cancelled
but its group was audited, `lost` if infrastructure failed."""

_ROUNDING = 1e-9
"""Added before products are rounded down, so that floating-point errors do not turn 100 times 1.15 into 114."""


@dataclass(frozen=True, slots=True)
class OverSampling:
    """Numbers of rollouts of an over-sampled group.

    Attributes:
        size: Rollouts that are trained on.
        num_started: Rollouts that are started.
        num_confirmed: Number of finished rollouts after which the group ends even if all their rewards are equal.
        audit_share: Share of groups in which no rollout is cancelled.
    """

    size: int
    num_started: int
    num_confirmed: int
    audit_share: float = 0.0

    @classmethod
    def of(cls, size: int, multiplier: float, audit_share: float = 0.0) -> OverSampling:
        """Return the numbers of a group of `size`; raise ValueError unless size < num_confirmed < num_started."""
        started = math.floor(size * multiplier + _ROUNDING)
        confirmed = math.floor(size * (1 + multiplier) / 2 + _ROUNDING)
        if not size < confirmed < started:
            raise ValueError(
                f"oversample {multiplier:g} starts {started} rollouts for a group of {size} and confirms equal rewards "
                f"after {confirmed}; these three numbers must increase: raise oversample or group_size"
            )
        return cls(size, started, confirmed, audit_share)

    def is_done(self, rewards: Sequence[float], num_open: int) -> bool:
        """Return whether a group has enough rollouts.

        `rewards` are those of the finished rollouts, `num_open` is the number of rollouts that have not ended.
        """
        enough = self.size if len(set(rewards)) > 1 else self.num_confirmed
        return not num_open or len(rewards) >= enough


def diverse_subset(rewards: Sequence[float], size: int) -> list[int]:
    """Return the indices, in ascending order, of `size` rewards that are as different as possible.

    Rewards are chosen one at a time, each with the value that was chosen least often so far; of these, the first.
    """
    chosen: list[int] = []
    counts: Counter[float] = Counter()
    left = list(range(len(rewards)))
    while left and len(chosen) < size:
        place = min(left, key=lambda one: (counts[rewards[one]], one))
        counts[rewards[place]] += 1
        left.remove(place)
        chosen.append(place)
    return sorted(chosen)


@dataclass(frozen=True, slots=True)
class StartedRollout:
    """One rollout that an over-sampled group started.

    Attributes:
        session: Number in the group, from 0.
        use: Whether the rollout was trained on, or why not.
        model_tokens: Number of tokens that the model wrote, without those of an unfinished turn.
        num_turns: Number of finished turns of the model.
        reward: Reward of the rollout; None if it is not known.
        place: Place in the order in which rollouts finished, from 0; None for a rollout that did not finish.
    """

    session: int
    use: RolloutUse
    model_tokens: int
    num_turns: int
    reward: float | None = None
    place: int | None = None


def oversampling_figures(groups: Iterable[tuple[Sequence[StartedRollout], bool]]) -> dict[str, Any]:
    """Return the figures of a step from the started rollouts of each group, and whether it was audited.

    Lengths are mean numbers of tokens of the model, None without rollouts. A bias is the mean over audited groups of
    the mean of the trained rollouts minus that of all rollouts that ran to their end.
    """
    started = list(groups)
    by_use: dict[str, list[int]] = {}
    for rollouts, _ in started:
        for one in rollouts:
            by_use.setdefault(one.use, []).append(one.model_tokens)
    lengths, rewards = [], []
    for rollouts, is_audit in started:
        ended = [one for one in rollouts if one.reward is not None]
        if is_audit and (trained := [one for one in ended if one.use == "trained"]):
            lengths.append(_excess([one.model_tokens for one in trained], [one.model_tokens for one in ended]))
            rewards.append(_excess([one.reward or 0.0 for one in trained], [one.reward or 0.0 for one in ended]))
    return {
        "num_cancelled": len(by_use.get("cancelled", ())),
        "cancelled_length": _mean(by_use.get("cancelled", ())),
        "num_unused": len(by_use.get("unused", ())),
        "num_audited_groups": len(lengths),
        "length_bias": _mean(lengths),
        "reward_bias": _mean(rewards),
    }


def _excess(some: Sequence[float], every: Sequence[float]) -> float:
    return math.fsum(some) / len(some) - math.fsum(every) / len(every)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
