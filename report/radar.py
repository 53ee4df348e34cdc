"""Compute the behaviour radar: five axes in a fixed order, each with its range. Numbers only, no drawing.

Documented in docs/behaviour/metrics.md; the axes are those of ET-Agent (arXiv 2601.06860).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

AXES = (
    ("correctness", "score"),
    ("efficiency", "efficiency"),
    ("conciseness", "conciseness"),
    ("successful execution", "successful_execution"),
    ("reasoning length (x1000)", "reasoning_length"),
)
"""Title of each axis and the figure on it, in the order around the radar."""

_UNBOUNDED = frozenset({"reasoning_length"})


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis with the values of all models."""

    title: str
    low: float
    high: float
    values: dict[str, float | None]
    """Model -> value; None leaves a gap in the model's polygon."""

    def position(self, model: str) -> float | None:
        """Return the position of the model's value on the axis, from 0 to 1, or None without a value."""
        value = self.values[model]
        return None if value is None else (value - self.low) / (self.high - self.low)


def radar_axes(models: Mapping[str, Mapping[str, float | None]]) -> list[Axis]:
    """Return the axes for models, given their figures by name (those of `AXES`).

    Shares run from 0 to 1. Reasoning length has no upper bound: its axis ends at the smallest of 1, 2, 5, 10, … that is
    not below the largest value, and is the same for all models. A missing figure is None.
    """
    axes = []
    for title, figure in AXES:
        values = {model: figures.get(figure) for model, figures in models.items()}
        high = _round_end(values.values()) if figure in _UNBOUNDED else 1.0
        axes.append(Axis(title, 0.0, high, values))
    return axes


def _round_end(values: Iterable[float | None]) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that no value exceeds; 1 if all are 0."""
    largest = max((value for value in values if value is not None), default=0.0)
    if largest <= 0:
        return 1.0
    power = math.floor(math.log10(largest))
    candidates = (float(f"{digit}e{exponent}") for exponent in (power - 1, power, power + 1) for digit in (1, 2, 5))
    return next(candidate for candidate in candidates if candidate >= largest)
