"""Compute and draw the behaviour radar: five axes in a fixed order, each with its range.

Documented in docs/behaviour/metrics.md; the axes are those of ET-Agent (arXiv 2601.06860).
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

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
_STAR = tuple((math.sin(turn * math.pi / 5) * size, -math.cos(turn * math.pi / 5) * size)
              for turn, size in enumerate((1.3, 0.5) * 5))  # fmt: skip
_CROSS = tuple((x * sign, y * sign) for sign in (1, -1) for x, y in (
    (-0.35, -1.1), (0.35, -1.1), (0.35, -0.35), (1.1, -0.35), (1.1, 0.35), (0.35, 0.35)
))  # fmt: skip
MARKS: tuple[tuple[tuple[float, float], ...], ...] = (
    tuple((math.sin(turn * math.pi / 12), math.cos(turn * math.pi / 12)) for turn in range(24)),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0.0, -1.0), (1.0, 1.0), (-1.0, 1.0)),
    ((0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)),
    ((0.0, 1.0), (1.0, -1.0), (-1.0, -1.0)),
    _CROSS,
    tuple(((x - y) * math.sqrt(0.5), (x + y) * math.sqrt(0.5)) for x, y in _CROSS),
    _STAR,
)
"""Outlines of the models' markers in their order, so that they can be distinguished without colours."""
_GREY = "#9a9a9a"
_NAME_CHARS = 40
_WIDTH, _RADIUS, _CENTRE = 470.0, 135.0, (262.0, 168.0)
"""Width of the picture, radius of its outer circle, and centre of the circle, in typographic points."""
_LEGEND_TOP = 336.0
_FONT, _LINE, _MARK = 9.0, 11.5, 3.6
"""Size of texts, distance of their lines, and half the size of a marker, in points."""


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

    Only the first MAX_DRAWN models are drawn. Equal values give equal bytes.
    """
    models = list(axes[0].values)[:MAX_DRAWN]
    angles = [2 * math.pi * place / len(axes) for place in range(len(axes))]
    shapes = [*_grid(axes, angles)]
    for model, colour, mark in zip(models, COLOURS, MARKS, strict=False):
        shapes += _polygon(angles, [axis.position(model) for axis in axes], colour, mark)
    legend, bottom = _legend(models)
    size = f'width="{_WIDTH:g}pt" height="{bottom:g}pt" viewBox="0 0 {_WIDTH:g} {bottom:g}"'
    style = f'font-family="DejaVu Sans, Verdana, sans-serif" font-size="{_FONT:g}" stroke-linejoin="round"'
    paper = f'<rect x="0" y="0" width="{_WIDTH:g}" height="{bottom:g}" fill="#ffffff"/>'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', paper, *shapes, *legend, "</svg>"]
    return "\n".join(lines).encode() + b"\n"


def _point(angle: float, radius: float) -> tuple[float, float]:
    """Return the place at a distance from the centre; angles run clockwise from the top."""
    return _CENTRE[0] + radius * math.sin(angle), _CENTRE[1] - radius * math.cos(angle)


def _points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    # Terminals can show these two characters, but XML forbids them.
    shown = escape(one_line(text).translate({0xFFFE: "?", 0xFFFF: "?"}))
    return f'<text x="{x:.2f}" y="{y:.2f}" fill="#000000" text-anchor="{anchor}">{shown}</text>'


def _grid(axes: Sequence[Axis], angles: Sequence[float]) -> Iterator[str]:
    """Yield circles at each quarter, and a line with title and range for each axis."""
    line = f'stroke="{_GREY}" stroke-width="0.5"'
    for quarter in (0.25, 0.5, 0.75, 1.0):
        yield f'<circle cx="{_CENTRE[0]:g}" cy="{_CENTRE[1]:g}" r="{_RADIUS * quarter:g}" fill="none" {line}/>'
    for axis, angle in zip(axes, angles, strict=True):
        yield f'<polyline points="{_points([_CENTRE, _point(angle, _RADIUS)])}" fill="none" {line}/>'
        x, y = _point(angle, _RADIUS + 7.0)
        across, up = math.sin(angle), math.cos(angle)
        # A title extends away from the circle.
        anchor = "middle" if abs(across) < 1e-9 else "start" if across > 0 else "end"
        top = y + _FONT / 2 - _LINE * (1.0 + up) / 2
        yield _text(x, top, axis.title, anchor)
        yield _text(x, top + _LINE, f"{axis.low:g} to {axis.high:g}", anchor)


def _polygon(
    angles: Sequence[float], places: Sequence[float | None], colour: str, mark: Sequence[tuple[float, float]]
) -> Iterator[str]:
    """Yield markers for values, and lines between neighbours that both have one."""
    points = [
        None if place is None else _point(angle, _RADIUS * place) for angle, place in zip(angles, places, strict=True)
    ]
    known = [point for point in points if point is not None]
    if len(known) == len(points):
        yield f'<polygon points="{_points(known)}" fill="{colour}" fill-opacity="0.08"/>'
    for point, following in zip(points, [*points[1:], points[0]], strict=True):
        if point is not None and following is not None:
            yield _line(point, following, colour)
    for point in known:
        yield _marker(point, colour, mark)


def _line(start: tuple[float, float], end: tuple[float, float], colour: str) -> str:
    return f'<polyline points="{_points([start, end])}" fill="none" stroke="{colour}" stroke-width="1.4"/>'


def _marker(at: tuple[float, float], colour: str, mark: Sequence[tuple[float, float]]) -> str:
    outline = _points((at[0] + _MARK * x, at[1] + _MARK * y) for x, y in mark)
    return f'<polygon points="{outline}" fill="{colour}"/>'


def _legend(models: Sequence[str]) -> tuple[list[str], float]:
    """Return the shapes of the legend, and the height of the picture with it: two columns if all names are short."""
    names = [one_line(model)[:_NAME_CHARS] for model in models]
    num_columns = 2 if max(map(_num_cells, names), default=0) <= 30 and len(names) > 1 else 1
    num_rows = math.ceil(len(names) / num_columns)
    shapes = []
    for place, (name, colour, mark) in enumerate(zip(names, COLOURS, MARKS, strict=False)):
        x, y = 84.0 + 200.0 * (place // num_rows), _LEGEND_TOP + 14.0 * (place % num_rows)
        shapes += [_line((x, y), (x + 20.0, y), colour), _marker((x + 10.0, y), colour, mark)]
        shapes.append(_text(x + 27.0, y + 3.2, name))
    return shapes, _LEGEND_TOP + 14.0 * num_rows


def _num_cells(text: str) -> int:
    """Return the width of a text in letters; East Asian characters are twice as wide."""
    return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)
