"""Draw a selection: the questions in the plane of both objectives, the fronts, and the questions' correctness."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.core.plots import COLOUR, LIGHT, draw_svg
from treadle.rl.selection.choice import SELECTED, Choice
from treadle.rl.selection.report import TENTHS, fronts_of, tenths

_POINTS_SHOWN = 2_000
"""Maximum number of distinct points per series; more make a file that browsers open slowly, so they are thinned out
evenly."""
_SIZES = ((1, 2.5), (2, 4.0), (8, 6.0))
"""Pairs of a minimum number of questions on a point and the size of its marker."""
_LINES_SHOWN = 5
_GREY = "#c8c8c8"


def draw_fronts(choice: Choice) -> bytes:
    """Return an SVG, with a row for each domain under quotas; equal choices give equal bytes.

    Raises ConfigError without matplotlib.
    """
    pools = choice.pools()

    def draw(figure: Any) -> None:
        rows = figure.subplots(len(pools), 3, squeeze=False)
        for (plane, fronts, correctness), (domain, pool) in zip(rows, pools, strict=True):
            of_domain = f" ({domain})" if domain else ""
            _draw_plane(plane, pool, of_domain)
            _draw_fronts(fronts, pool, of_domain)
            _draw_correctness(correctness, pool, of_domain)

    return draw_svg(draw, width=10.5, height=3.4 * len(pools))


def _draw_plane(axes: Any, choice: Choice, of_domain: str) -> None:
    groups = (
        ("filtered out", choice.rank < 0, _GREY),
        (
            "over the quota" if of_domain else "over the limit",
            (choice.rank >= 0) & (choice.decisions != SELECTED),
            LIGHT,
        ),
        ("selected", choice.decisions == SELECTED, COLOUR),
    )
    for label, mask, colour in groups:
        points, counts = _distinct(choice, mask & ~np.isnan(choice.score_tool))
        bounds = [least for least, _ in _SIZES[1:]]
        classes = np.digitize(counts, bounds)
        for number, (_, size) in enumerate(_SIZES):
            some = points[classes == number]
            axes.plot(some[:, 0], some[:, 1], "o", color=colour, markersize=size, markeredgewidth=0, alpha=0.8)
        axes.plot([], [], "o", color=colour, markersize=_SIZES[-1][1], markeredgewidth=0, label=label)
    for rank in range(_LINES_SHOWN):
        points, _ = _distinct(choice, choice.rank == rank)
        if len(points):
            axes.plot(points[:, 0], points[:, 1], color="black", linewidth=0.6, alpha=1.0 - rank / (_LINES_SHOWN + 1))
    title = f"Questions and first fronts{of_domain}"
    axes.set(title=title, xlabel="deviation of calls", ylabel="deviation of correctness")
    _add_legend(axes, 3)


def _distinct(choice: Choice, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct points (n x 2, by S_tool) and the number of questions on each."""
    points = np.stack([choice.score_tool[mask], choice.score_corr[mask]], axis=1)
    distinct, counts = np.unique(points, axis=0, return_counts=True)
    step = -(-len(distinct) // _POINTS_SHOWN) or 1
    return distinct[::step], counts[::step]


def _draw_fronts(axes: Any, choice: Choice, of_domain: str) -> None:
    fronts = fronts_of(choice)
    edges = np.arange(len(fronts) + 1) - 0.5
    axes.stairs([front.size for front in fronts], edges, fill=True, color=LIGHT, label="questions")
    axes.stairs([front.num_selected for front in fronts], edges, fill=True, color=COLOUR, label="selected")
    axes.set(title=f"Sizes of the fronts{of_domain}", xlabel="front", ylabel="questions")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    _add_legend(axes, 2)


def _draw_correctness(axes: Any, choice: Choice, of_domain: str) -> None:
    means = choice.dispersion.mean
    middles = (np.arange(TENTHS) + 0.5) / TENTHS
    for values, colour, label in (
        (means, LIGHT, "questions"),
        (means[choice.decisions == SELECTED], COLOUR, "selected"),
    ):
        axes.bar(middles, tenths(values), width=0.9 / TENTHS, color=colour, label=label)
    title = f"How right the rollouts are{of_domain}"
    axes.set(title=title, xlabel="mean correctness", ylabel="questions", xlim=(0.0, 1.0))
    _add_legend(axes, 2)


def _add_legend(axes: Any, columns: int) -> None:
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns, columnspacing=1.0)
