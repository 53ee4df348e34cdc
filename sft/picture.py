"""Draw the rows that are trained on: their lengths and their shares of target tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.core.plots import COLOUR, LIGHT, WARM, draw_svg
from treadle.core.untrusted.sanitize import one_line
from treadle.sft.statistics import RowStatistics

_BINS = 40
_OPERATORS_SHOWN = 8


def draw_rows(statistics: RowStatistics, cutoff_tokens: int | None = None) -> bytes:
    """Return an SVG with two histograms, and the shares of prompt and results, and of targets, by operator.

    Equal rows give equal bytes. Raises ConfigError without matplotlib.
    """

    def draw(figure: Any) -> None:
        lengths, shares, operators = figure.subplots(1, 3)
        _draw_lengths(lengths, statistics.numbers("num_tokens"), cutoff_tokens)
        _draw_shares(shares, statistics.target_shares())
        _draw_operators(operators, statistics)

    return draw_svg(draw, width=10.0, height=3.2)


def _draw_lengths(axes: Any, lengths: np.ndarray, cutoff_tokens: int | None) -> None:
    axes.hist(lengths, bins=_BINS, color=COLOUR)
    if lengths.size:
        middle = float(np.median(lengths))
        axes.axvline(middle, color="black", linewidth=1, label=f"median {middle:,.0f}")
    if cutoff_tokens is not None and lengths.size and cutoff_tokens <= 1.5 * float(lengths.max()):
        axes.axvline(cutoff_tokens, color=WARM, linewidth=1, linestyle="--", label=f"cut-off {cutoff_tokens:,}")
    axes.set(title="Length of rows", xlabel="tokens", ylabel="rows")
    if lengths.size:
        axes.legend(frameon=False)


def _draw_shares(axes: Any, shares: np.ndarray) -> None:
    axes.hist(100.0 * shares, bins=_BINS, range=(0.0, 100.0), color=COLOUR)
    axes.set(title="Share of targets", xlabel="% of a row's tokens", ylabel="rows")


def _draw_operators(axes: Any, statistics: RowStatistics) -> None:
    groups = [group for group in statistics.groups() if group.kind == "operator"]
    largest = sorted(groups, key=lambda group: (-group.num_rows, group.name))[:_OPERATORS_SHOWN][::-1]
    names = [f"{one_line(group.name)[:24]} ({group.num_rows:,})" for group in largest]
    targets = [100.0 * group.target_share for group in largest]
    places = range(len(largest))
    axes.barh(places, [100.0] * len(largest), color=LIGHT, label="prompt and results")
    axes.barh(places, targets, color=COLOUR, label="targets")
    axes.set_yticks(places, names)
    axes.set(title="Tokens by operator", xlabel="%", xlim=(0.0, 100.0))
    if largest:
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2)
