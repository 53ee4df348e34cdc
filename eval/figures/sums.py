"""Hold the terms of a figure, summed by question."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FigureSums:
    """Terms of a figure summed by question. Its mean and interval are computed from these."""

    questions: dict[str, tuple[float, float]]
    """Question key -> sums of numerators and of denominators. Questions without a value on any rollout are absent."""
    is_binary: bool
    """Whether every rollout counts once, as 0 or 1."""
    num_undecided: int
    """Number of rollouts without a value."""
    is_per_pass: bool = False
    """Whether the denominators count right answers, so that rollouts with a denominator of 0 count, too."""

    @property
    def value(self) -> float | None:
        """Value of the figure; None without rollouts; infinite for an amount per right answer if no answer is right."""
        total = math.fsum(count for _, count in self.questions.values())
        if not total:
            return math.inf if self.is_per_pass and self.questions else None
        return math.fsum(amount for amount, _ in self.questions.values()) / total
