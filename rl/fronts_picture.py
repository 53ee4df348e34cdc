"""The picture of a selection: questions in the plane of both objectives, the fronts, how right the questions are."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.core.pictures import COLOUR, LIGHT, draw_svg
from treadle.rl.choice import OVER_LIMIT, SELECTED, Choice
from treadle.rl.selection_report import TENTHS, fronts_of, tenths

_POINTS_SHOWN = 2_000
"""More distinct points would make a file that browsers open slowly; they are then thinned out evenly."""
_FRONTS_SHOWN = 12
_LINES_SHOWN = 5
_GREY = "#c8c8c8"


def draw_fronts(choice: Choice) -> bytes:
    """An SVG; equal choices, equal bytes. Raises ConfigError without matplotlib."""

    def draw(figure: Any) -> None:
        plane, fronts, correctness = figure.subplots(1, 3)
        _draw_plane(plane, choice)
        _draw_fronts(fronts, choice)
        _draw_correctness(correctness, choice)

    return draw_svg(draw, width=10.5, height=3.4)


def _draw_plane(axes: Any, choice: Choice) -> None:
    groups = (
        ("filtered out", ~np.isin(choice.fate, (SELECTED, OVER_LIMIT)), _GREY),
        ("over the limit", choice.fate == OVER_LIMIT, LIGHT),
        ("selected", choice.fate == SELECTED, COLOUR),
    )
    for label, mask, colour in groups:
        points, counts = _distinct(choice, mask & ~np.isnan(choice.score_tool))
        if len(points):
            areas = 8.0 + 60.0 * counts / counts.max()
            axes.scatter(points[:, 0], points[:, 1], s=areas, color=colour, linewidths=0, label=label, alpha=0.8)
    for rank in range(_LINES_SHOWN):
        points, _ = _distinct(choice, choice.rank == rank)
        if len(points):
            axes.plot(points[:, 0], points[:, 1], color="black", linewidth=0.6, alpha=1.0 - rank / (_LINES_SHOWN + 1))
    axes.set(title="Questions and first fronts", xlabel="deviation of calls", ylabel="deviation of correctness")
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)


def _distinct(choice: Choice, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct points (n x 2, by S_tool) and how many questions lie on each."""
    points = np.stack([choice.score_tool[mask], choice.score_corr[mask]], axis=1)
    distinct, counts = np.unique(points, axis=0, return_counts=True)
    step = -(-len(distinct) // _POINTS_SHOWN) or 1
    return distinct[::step], counts[::step]


def _draw_fronts(axes: Any, choice: Choice) -> None:
    fronts = fronts_of(choice, by_domain=False)[:_FRONTS_SHOWN]
    places = [front.rank for front in fronts]
    axes.bar(places, [front.size for front in fronts], color=LIGHT, label="questions")
    axes.bar(places, [front.num_selected for front in fronts], color=COLOUR, label="selected")
    axes.set(title="Sizes of the first fronts", xlabel="front", ylabel="questions")
    axes.legend(frameon=False)


def _draw_correctness(axes: Any, choice: Choice) -> None:
    means = choice.dispersion.mean
    middles = (np.arange(TENTHS) + 0.5) / TENTHS
    for values, colour, label in ((means, LIGHT, "questions"), (means[choice.fate == SELECTED], COLOUR, "selected")):
        axes.bar(middles, tenths(values), width=0.9 / TENTHS, color=colour, label=label)
    axes.set(title="How right the rollouts are", xlabel="mean correctness", ylabel="questions", xlim=(0.0, 1.0))
    axes.legend(frameon=False)
