"""Draw the charts of a page from plain numbers, in one common style.

Lengths are in inches; the page is ten inches wide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from treadle.core.figures import plain
from treadle.core.plots import COLOUR, LIGHT, WARM, draw_svg
from treadle.core.untrusted.sanitize import one_line
from treadle.report.page.document import Chart
from treadle.report.page.inline_svg import GRID, INK, MUTED, PAPER, SERIES
from treadle.report.radar import MAX_DRAWN, Axis, draw_radar

_WIDTH = 10.0
_MAX_NAME_CHARS = 48
_MAX_LEGEND_CHARS = 26
_FAINT = "#c8c8c8"


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """A value with its interval, shown in one row of a chart."""

    group: str
    """Consecutive rows with the same group are shown together under its name."""
    name: str
    series: int
    value: float
    low: float
    high: float


def shorten(text: str, num_chars: int = _MAX_NAME_CHARS) -> str:
    """Return a name shortened to what fits into a chart."""
    shown = plain(one_line(text))
    return shown if len(shown) <= num_chars else f"{shown[: num_chars - 1]}…"


def format_number(value: float) -> str:
    """Format a non-negative number with about three digits."""
    return f"{value:,.{0 if value >= 100 or not value else 1 if value >= 10 else 2 if value >= 1 else 3}f}"


def colour_of(series: int) -> str:
    """Return the colour of a model by its number."""
    return SERIES[series % len(SERIES)]


def interval_chart(title: str, estimates: Sequence[IntervalRow], *, around_zero: bool = False, note: str = "") -> Chart:
    """Draw shares with their intervals, one per row; values are fractions and shown in per cent.

    `around_zero`: the values are differences. `note`: what is not drawn.
    """
    groups = [(name, list(rows)) for name, rows in groupby(estimates, key=lambda one: one.group)]
    num_rows = len(estimates) + sum(1 for name, _ in groups if name)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        places: list[float] = []
        labels: list[str] = []
        place = 0.0
        for name, rows in groups:
            if name:
                axes.text(0.0, place, shorten(name), transform=axes.get_yaxis_transform(), ha="left", va="center",
                          fontweight="bold", clip_on=False)  # fmt: skip
                place += 1.0
            for row in rows:
                _draw_estimate(axes, row, place, around_zero)
                places.append(place)
                labels.append(shorten(row.name))
                place += 1.0
            place += 0.35
        _finish_rows(axes, places, labels, place)
        if around_zero:
            axes.axvline(0.0, color=INK, linewidth=0.9, zorder=1)
            axes.set_xlabel("difference in percentage points")
        else:
            low, high = min(row.low for row in estimates), max(row.high for row in estimates)
            axes.set_xlim(max(0.0, 100.0 * low - 8.0), min(104.0, 100.0 * high + 12.0))
            axes.set_xlabel("%")

    words = "; ".join(_estimate_words(row, around_zero) for row in estimates)
    return Chart(title, words, draw_svg(draw, width=_WIDTH, height=0.75 + 0.27 * num_rows), note)


def _draw_estimate(axes: Any, row: IntervalRow, place: float, signed: bool) -> None:
    colour = colour_of(row.series)
    axes.plot([100.0 * row.low, 100.0 * row.high], [place, place], color=colour, linewidth=2.2, alpha=0.55,
              solid_capstyle="butt")  # fmt: skip
    axes.plot([100.0 * row.value], [place], "o", color=colour, markersize=6.0, clip_on=False)
    _label(axes, f"{100.0 * row.value:{'+' if signed else ''}.1f}", (100.0 * row.high, place))


def _label(axes: Any, text: str, at: tuple[float, float]) -> None:
    """Write a text to the right of a point."""
    axes.annotate(text, at, xytext=(6, 0), textcoords="offset points", va="center", fontsize=8.5)


def _estimate_words(row: IntervalRow, signed: bool) -> str:
    sign = "+" if signed else ""
    low, value, high = (f"{100.0 * one:{sign}.1f}" for one in (row.low, row.value, row.high))
    return f"{row.group}{', ' if row.group else ''}{row.name}: {value} % ({low} to {high})"


def _finish_rows(axes: Any, places: Sequence[float], labels: Sequence[str], end: float) -> None:
    axes.set_yticks(places, labels)
    axes.set_ylim(end - 0.45, -0.75)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0, pad=9)
    _quiet(axes, "x")


def _quiet(axes: Any, grid: str) -> None:
    """Style the axes with a light grid and no other prominent lines."""
    axes.grid(axis=grid, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for name in ("left", "bottom"):
        axes.spines[name].set_color(GRID)
    axes.tick_params(colors=MUTED, labelcolor=INK, length=0)
    axes.xaxis.label.set_color(MUTED)
    axes.yaxis.label.set_color(MUTED)


def calls_chart(
    title: str, shares: Mapping[tuple[str, int], Sequence[float]], *, is_last_open_ended: bool = False
) -> Chart:
    """Draw the distribution of tool calls: (model, colour number) -> share of its rollouts with 0, 1, 2, … calls.

    `is_last_open_ended`: the last bin also contains all higher numbers of calls.
    """
    num_places = max(len(values) for values in shares.values())
    names = [str(number) for number in range(num_places)]
    names[-1] += "+" if is_last_open_ended else ""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        width = 0.8 / len(shares)
        for number, ((name, series), of_model) in enumerate(shares.items()):
            values = [100.0 * share for share in of_model]
            at = np.arange(len(values)) - 0.4 + width * (number + 0.5)
            bars = axes.bar(
                at, values, width=width * 0.92, color=colour_of(series), label=shorten(name, _MAX_LEGEND_CHARS)
            )
            if len(shares) * num_places <= 24:
                axes.bar_label(bars, [f"{one:.0f}" if one >= 0.5 else "" for one in values], padding=2, fontsize=8)
        axes.set_xticks(range(num_places), names)
        axes.set(xlabel="tool calls per rollout", ylabel="% of rollouts")
        _quiet(axes, "y")
        _legend(axes, len(shares))

    words = "; ".join(
        f"{name}: " + ", ".join(f"{share:.0%} with {names[count]}" for count, share in enumerate(values) if share)
        for (name, _), values in shares.items()
    )
    return Chart(title, words, draw_svg(draw, width=_WIDTH, height=2.9))


def _legend(axes: Any, num_names: int) -> None:
    if num_names > 1:
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=min(num_names, 5),
                    columnspacing=1.4, handlelength=1.0)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of one model's values."""

    name: str
    series: int
    percentiles: tuple[float, float, float, float, float]
    """5th, 25th, 50th, 75th and 95th percentile."""

    @classmethod
    def of(cls, name: str, series: int, values: Sequence[float]) -> Spread:
        """Compute the percentiles from the values."""
        found = np.percentile(np.asarray(values, dtype=np.float64), [5, 25, 50, 75, 95]).tolist()
        return cls(name, series, (found[0], found[1], found[2], found[3], found[4]))


def spread_chart(title: str, unit: str, spreads: Sequence[Spread]) -> Chart:
    """Draw a box per model: middle half, median, and the range from the 5th to the 95th percentile."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for place, spread in enumerate(spreads):
            p5, p25, p50, p75, p95 = spread.percentiles
            colour = colour_of(spread.series)
            axes.plot([p5, p95], [place, place], color=colour, linewidth=1.6, alpha=0.6)
            axes.barh(place, p75 - p25, left=p25, height=0.5, color=colour, alpha=0.45)
            axes.plot([p50, p50], [place - 0.25, place + 0.25], color=colour, linewidth=2.6, solid_capstyle="butt")
            _label(axes, f"{p50:,.0f}", (p95, place))
        _finish_rows(axes, range(len(spreads)), [shorten(spread.name) for spread in spreads], len(spreads))
        axes.set_xlim(0.0, 1.08 * max(spread.percentiles[4] for spread in spreads) or 1.0)
        axes.set_xlabel(unit)

    words = "; ".join(
        f"{one.name}: median {one.percentiles[2]:,.0f}, middle half {one.percentiles[1]:,.0f} to "
        f"{one.percentiles[3]:,.0f} {unit}"
        for one in spreads
    )
    return Chart(title, words, draw_svg(draw, width=_WIDTH, height=0.75 + 0.36 * len(spreads)))


def radar_chart(title: str, axes: Sequence[Axis]) -> Chart:
    """Draw models as polygons over axes with a range each; a missing value leaves a gap.

    Only the first `MAX_DRAWN` models are drawn, with a note if there are more.
    """
    models = list(axes[0].values)
    note = "" if len(models) <= MAX_DRAWN else f"Only the first {MAX_DRAWN} of {len(models)} models are drawn."
    words = "; ".join(
        f"{model}: "
        + ", ".join(
            f"{axis.title} {'unknown' if (value := axis.values[model]) is None else format(value, '.3g')}"
            for axis in axes
        )
        for model in models[:MAX_DRAWN]
    )
    return Chart(title, words, draw_radar(axes), note)


_FIRST_ENDING = LIGHT
_ENDINGS = (WARM, SERIES[4], SERIES[3], SERIES[5], SERIES[6], _FAINT, SERIES[7], SERIES[2])
"""Colours of all statuses but the first. They differ from the colours of the first models."""


def endings_chart(title: str, counts: Mapping[str, Mapping[str, int]], statuses: Sequence[str]) -> Chart:
    """Draw model -> status -> rollouts as stacked shares of a bar, with the statuses in their order."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        left = np.zeros(len(counts))
        totals = np.array([max(1, sum(of_model.values())) for of_model in counts.values()], dtype=np.float64)
        for number, status in enumerate(statuses):
            shares = 100.0 * np.array([of_model.get(status, 0) for of_model in counts.values()]) / totals
            colour = _ENDINGS[(number - 1) % len(_ENDINGS)] if number else _FIRST_ENDING
            bars = axes.barh(range(len(counts)), shares, left=left, height=0.62, edgecolor=PAPER, linewidth=0.8,
                             color=colour, label=shorten(status, _MAX_LEGEND_CHARS))  # fmt: skip
            texts = [f"{share:.0f}" if share >= 4.0 else "" for share in shares]
            axes.bar_label(bars, texts, label_type="center", color=INK if colour == LIGHT else PAPER, fontsize=8.5)
            left += shares
        _finish_rows(axes, range(len(counts)), [shorten(name) for name in counts], len(counts))
        axes.set(xlim=(0.0, 100.0), xlabel="% of rollouts")
        _legend(axes, len(statuses) + 1)

    words = "; ".join(
        f"{name}: " + ", ".join(f"{status} {of_model[status]:,}" for status in statuses if of_model.get(status))
        for name, of_model in counts.items()
    )
    return Chart(title, words, draw_svg(draw, width=_WIDTH, height=1.15 + 0.34 * len(counts)))


def parts_chart(title: str, unit: str, names: Sequence[str], sums: Mapping[str, tuple[float, ...]]) -> Chart:
    """Draw a stacked bar for each entry of `sums` (name -> values of up to four parts); `names` labels the parts."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        left = np.zeros(len(sums))
        for number, (name, colour) in enumerate(zip(names, (COLOUR, WARM, _FAINT, LIGHT), strict=False)):
            values = np.asarray([parts[number] for parts in sums.values()])
            axes.barh(range(len(sums)), values, left=left, height=0.62, color=colour, label=name)
            left += values
        for place, total in enumerate(left.tolist()):
            _label(axes, format_number(total), (total, place))
        _finish_rows(axes, range(len(sums)), [shorten(name) for name in sums], len(sums))
        axes.set_xlim(0.0, 1.08 * float(left.max()) or 1.0)
        axes.set_xlabel(unit)
        _legend(axes, len(names))

    words = "; ".join(
        f"{label}: "
        + ", ".join(f"{name} {format_number(value)}" for name, value in zip(names, parts, strict=True))
        + f" {unit}"
        for label, parts in sums.items()
    )
    return Chart(title, words, draw_svg(draw, width=_WIDTH, height=1.05 + 0.34 * len(sums)))


@dataclass(frozen=True, slots=True)
class Yield:
    """Number of attempts of an operator and their results."""

    name: str
    tried: int
    made: int
    right: int


def yields_chart(title: str, yields: Sequence[Yield]) -> Chart:
    """Draw how often each operator was tried, how many trajectories it made, and how many of them are right."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        places = range(len(yields))
        for colour, label, height, values in (
            (_FAINT, "tried", 0.66, [one.tried for one in yields]),
            (LIGHT, "made a trajectory", 0.66, [one.made for one in yields]),
            (COLOUR, "right", 0.34, [one.right for one in yields]),
        ):
            axes.barh(places, values, height=height, color=colour, label=label)
        for place, one in enumerate(yields):
            _label(axes, f"{one.right:,} of {one.tried:,}", (max(one.tried, one.made), place))
        _finish_rows(axes, places, [shorten(one.name) for one in yields], len(yields))
        axes.set_xlim(0.0, 1.12 * max(max(one.tried, one.made) for one in yields))
        axes.set_xlabel("times")
        _legend(axes, 3)

    words = "; ".join(f"{one.name}: tried {one.tried:,}, made {one.made:,}, right {one.right:,}" for one in yields)
    return Chart(title, words, draw_svg(draw, width=_WIDTH, height=1.1 + 0.33 * len(yields)))


def loss_chart(title: str, steps: Sequence[int], losses: Sequence[float]) -> Chart:
    """Draw the training loss over steps, as logged and as moving mean."""
    values = np.asarray(losses, dtype=np.float64)
    span = max(1, min(10, len(values) // 5))
    sums = np.cumsum(np.concatenate([[0.0], values]))
    begins = np.maximum(np.arange(1, len(values) + 1) - span, 0)
    means = (sums[1:] - sums[begins]) / (np.arange(1, len(values) + 1) - begins)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.plot(steps, values, color=LIGHT, linewidth=1.2, marker=".", markersize=4, label="as logged")
        if span > 1:
            axes.plot(steps, means, color=COLOUR, linewidth=2.0, label=f"mean over {span}")
        axes.set(xlabel="step", ylabel="loss")
        axes.set_ylim(bottom=0.0)
        _quiet(axes, "y")
        _legend(axes, 2 if span > 1 else 1)

    words = f"{len(values):,} logged steps; the loss goes from {values[0]:.3f} to {values[-1]:.3f}."
    return Chart(title, words, draw_svg(draw, width=_WIDTH, height=2.6))
