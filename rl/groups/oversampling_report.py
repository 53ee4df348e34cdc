"""Compare the rollouts that an over-sampled training used with those that it cancelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.core.figures import Figures


@dataclass(frozen=True, slots=True)
class OverSampled:
    """Figures of over-sampling over all steps; a mean is None if there were no such rollouts or groups.

    Attributes:
        num_trained: Number of rollouts that were trained on.
        length: Mean number of the policy's tokens in rollouts that were trained on.
        num_cancelled: Number of rollouts that were cancelled.
        cancelled_length: Mean number of the policy's tokens in cancelled rollouts.
        num_unused: Number of rollouts that finished in time and were not chosen.
        num_audited_groups: Number of audited groups, in which no rollout was cancelled.
        length_bias: In audited groups, mean number of tokens of trained rollouts minus that of all rollouts.
        reward_bias: In audited groups, mean reward of trained rollouts minus that of all rollouts.
    """

    num_trained: int
    length: float | None
    num_cancelled: int
    cancelled_length: float | None
    num_unused: int
    num_audited_groups: int
    length_bias: float | None
    reward_bias: float | None

    @classmethod
    def of(cls, log: Sequence[Mapping[str, Any]]) -> OverSampled | None:
        """Return the figures of rows of `rl_log`; None without over-sampling."""
        steps = [step for step in log if step["num_cancelled"] is not None]
        if not steps:
            return None
        totals = {
            name: sum(step[name] for step in steps)
            for name in ("num_rollouts", "num_cancelled", "num_unused", "num_audited_groups")
        }
        return cls(
            num_trained=totals["num_rollouts"],
            length=_mean(steps, "length", "num_rollouts"),
            num_cancelled=totals["num_cancelled"],
            cancelled_length=_mean(steps, "cancelled_length", "num_cancelled"),
            num_unused=totals["num_unused"],
            num_audited_groups=totals["num_audited_groups"],
            length_bias=_mean(steps, "length_bias", "num_audited_groups"),
            reward_bias=_mean(steps, "reward_bias", "num_audited_groups"),
        )


def oversampling_figures(log: Sequence[Mapping[str, Any]]) -> list[Figures]:
    """Return a table of trained, cancelled and unused rollouts, from rows of `rl_log`; empty without over-sampling."""
    over = OverSampled.of(log)
    if over is None:
        return []
    rows = (
        ("trained", f"{over.num_trained:,}", _number(over.length)),
        ("cancelled, so far", f"{over.num_cancelled:,}", _number(over.cancelled_length)),
        ("finished, not chosen", f"{over.num_unused:,}", "-"),
    )
    if over.num_audited_groups:
        note = (
            f"In {over.num_audited_groups:,} groups nothing was cancelled. There, the trained rollouts differ from all "
            f"by {over.length_bias:+.1f} tokens and {over.reward_bias:+.3f} reward on average: its bias."
        )
    else:
        note = "No group ran to its end, so the bias of over-sampling is unknown: raise rl.audit_share."
    return [Figures("Over-sampling", ("rollouts", "number", "mean length in tokens"), rows, note)]


def _mean(steps: Sequence[Mapping[str, Any]], name: str, weight: str) -> float | None:
    known = [(step[name], step[weight]) for step in steps if step[name] is not None and step[weight]]
    total = sum(count for _, count in known)
    return sum(value * count for value, count in known) / total if total else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
