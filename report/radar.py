"""Compute and draw the behaviour radar: five axes in a fixed order, each with its range.

Documented in docs/behaviour/metrics.md; the axes are those of ET-Agent (arXiv 2601.06860).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.core.plots import draw_svg
from treadle.core.untrusted.sanitize import one_line

AXES = (
    ("correctness", "score"),
    ("efficiency", "efficiency"),
    ("conciseness", "conciseness"),
    ("successful execution", "successful_execution"),
    ("reasoning length (x1000)", "reasoning_length"),
)
"""Title of each axis and the figure on it, in the order around the radar."""

_UNBOUNDED = frozenset({"reasoning_length"})
MAX_DRAWN = 8
"""Maximum number of polygons; more cannot be distinguished."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6472", "#7a6a00")
"""Colours of models in their order, here and in the charts of the page."""
_MARKS = "os^DvPX*"
"""Markers of models in their order, so that they can be distinguished without colours."""
_GREY = "#9a9a9a"
_NAME_CHARS = 40


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


def draw_radar(axes: Sequence[Axis]) -> bytes:
    """Return an SVG on white with the range of each axis, and a gap where a model has no value.

    Only the first MAX_DRAWN models are drawn. Equal values give equal bytes. Raise ConfigError without matplotlib.
    """
    models = list(axes[0].values)[:MAX_DRAWN]
    angles = [2 * math.pi * place / len(axes) for place in range(len(axes))]

    def draw(figure: Any) -> None:
        plane = figure.add_subplot(projection="polar")
        plane.set_theta_zero_location("N")
        plane.set_theta_direction(-1)
        plane.set(ylim=(0.0, 1.0))
        plane.set_yticks([0.25, 0.5, 0.75, 1.0], [])
        plane.set_xticks(angles, [f"{axis.title}\n{axis.low:g} to {axis.high:g}" for axis in axes])
        for angle, label in zip(angles, plane.get_xticklabels(), strict=True):
            label.set_horizontalalignment(_side(angle))
        plane.grid(color=_GREY, linewidth=0.5)
        plane.spines["polar"].set(visible=True, color=_GREY, linewidth=0.5)
        for model, colour, mark in zip(models, COLOURS, _MARKS, strict=False):
            _draw_model(plane, angles, [axis.position(model) for axis in axes], colour, mark)
            plane.plot([], [], color=colour, marker=mark, label=one_line(model)[:_NAME_CHARS])
        figure.legend(loc="outside lower center", ncols=2, frameon=False)

    return draw_svg(draw, width=6.2, height=5.2 + 0.2 * math.ceil(len(models) / 2))


def _side(angle: float) -> str:
    """Return the alignment of an axis title, so that it extends away from the circle."""
    across = math.sin(angle)
    return "center" if abs(across) < 1e-9 else "left" if across > 0 else "right"


def _draw_model(plane: Any, angles: Sequence[float], places: Sequence[float | None], colour: str, mark: str) -> None:
    """Draw markers for values, and lines between neighbours that both have one."""
    for place, (angle, value) in enumerate(zip(angles, places, strict=True)):
        following = (place + 1) % len(angles)
        if value is None:
            continue
        plane.plot([angle], [value], color=colour, marker=mark, markersize=5, linestyle="none")
        if (other := places[following]) is not None:
            plane.plot([angle, angles[following]], [value, other], color=colour, linewidth=1.4)
    if all(value is not None for value in places):
        plane.fill(angles, places, color=colour, alpha=0.08)
