"""Draw pictures for reports with matplotlib; equal data gives equal bytes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

from treadle.core.errors import ConfigError

COLOUR, LIGHT, WARM = "#2a5d9f", "#b5cbe6", "#b03030"
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "treadle",  # Without it, ids in the file are random.
    "svg.fonttype": "none",
    "text.parse_math": False,  # Show a `$` in a name unchanged.
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw_svg(draw: Callable[[Any], None], *, width: float, height: float) -> bytes:
    """Return an SVG of the given size in inches; `draw` is called with the empty figure.

    The file does not depend on the date, random ids or the user's matplotlib style. Raises ConfigError without
    matplotlib.
    """
    try:
        import matplotlib.style
    except ModuleNotFoundError:
        raise ConfigError("pictures need matplotlib: pip install matplotlib") from None
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        # Text is stored as text, so the viewer's fonts count, not those of this machine.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()
