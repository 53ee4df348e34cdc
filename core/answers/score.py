"""Define the verdict on an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_F1_THRESHOLD = 0.8
"""Token F1 above which a qa answer is right."""


@dataclass(frozen=True, slots=True)
class Score:
    """Verdict on a rollout. `score` and `correct` are None if and only if the answer was not decided (see `error`).

    Attributes:
        score: P of the metrics (`docs/behaviour/metrics.md`): 1 or 0 for math and choice, F1 for qa.
        correct: Whether the answer is right.
        scorer: Rule that decided; filled in for scorers of users.
        error: Why there is no verdict.
        parts: Further figures by name, as the scorer declares them.
        detail: JSON with the facts that decided, such as the outcome of each test; empty if there are none.
    """

    score: float | None
    correct: bool | None = None
    scorer: str = ""
    error: str | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""
