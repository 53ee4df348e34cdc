"""Draw trajectories as points in a plane, one colour and marker per model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

from treadle.core.untrusted.sanitize import one_line
from treadle.report.radar import COLOURS, MARKS, MAX_DRAWN

_SIDE, _MARGIN = 400.0, 14.0
"""Side and margin of the square in which trajectories are drawn, in typographic points."""
_MARK, _FONT, _ROW = 3.0, 9.0, 14.0
_NAME_CHARS = 60

Point = tuple[str, float, float]
"""Name of the model and the place of one of its trajectories, in any unit."""


def draw_action_space(points: Sequence[Point], models: Sequence[str]) -> bytes:
    """Return an SVG of the points of models, at least one, with a legend; both axes have the same scale.

    The order of `models` gives the colours; only the first MAX_DRAWN are drawn. Equal points give equal bytes.
    """
    series = {model: place for place, model in enumerate(models[:MAX_DRAWN])}
    shown = [point for point in points if point[0] in series]
    named = {model: place for model, place in series.items() if any(model == point[0] for point in shown)}
    height = _SIDE + _ROW * len(named) + 6
    size = f'width="{_SIDE:g}pt" height="{height:g}pt" viewBox="0 0 {_SIDE:g} {height:g}"'
    style = f'font-family="DejaVu Sans, Verdana, sans-serif" font-size="{_FONT:g}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>',
        f'<rect x="0" y="0" width="{_SIDE:g}" height="{height:g}" fill="#ffffff"/>',
        f'<rect x="1" y="1" width="{_SIDE - 2:g}" height="{_SIDE - 2:g}" fill="none" stroke="#9a9a9a"/>',
        *_markers(shown, series),
        *_legend(named),
        "</svg>",
    ]
    return "\n".join(lines).encode() + b"\n"


def _markers(points: Sequence[Point], series: Mapping[str, int]) -> Iterator[str]:
    across, up = [x for _, x, _ in points], [y for _, _, y in points]
    # The same scale on both axes keeps the shapes of groups; points in one place are drawn in the middle.
    scale = (_SIDE - 2 * _MARGIN) / (max(max(across) - min(across), max(up) - min(up)) or 1.0)
    middle = (max(across) + min(across)) / 2, (max(up) + min(up)) / 2
    for model, x, y in points:
        at = _SIDE / 2 + (x - middle[0]) * scale, _SIDE / 2 - (y - middle[1]) * scale
        yield _marker(at, series[model])


def _marker(at: tuple[float, float], series: int) -> str:
    outline = " ".join(f"{at[0] + _MARK * x:.2f},{at[1] + _MARK * y:.2f}" for x, y in MARKS[series])
    return f'<polygon points="{outline}" fill="{COLOURS[series]}" fill-opacity="0.65"/>'


def _legend(named: Mapping[str, int]) -> Iterator[str]:
    for row, (model, series) in enumerate(named.items()):
        y = _SIDE + _ROW * (row + 0.8)
        # Terminals can show these two characters, but XML forbids them.
        name = escape(one_line(model)[:_NAME_CHARS].translate({0xFFFE: "?", 0xFFFF: "?"}))
        yield _marker((_MARGIN, y - _MARK), series)
        yield f'<text x="{_MARGIN + 10:g}" y="{y:.2f}" fill="#000000" text-anchor="start">{name}</text>'
