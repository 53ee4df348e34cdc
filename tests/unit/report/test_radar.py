"""Axes of the radar: order, ranges, gaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.report.radar import radar_axes

TUNED = {
    "score": 0.601,
    "efficiency": 0.460,
    "conciseness": 0.570,
    "successful_execution": 0.564,
    "reasoning_length": 3.07,
}
DIRECT = {**TUNED, "reasoning_length": 1.2, "conciseness": None, "efficiency": None}


def test_axes_are_in_order_and_show_their_range() -> None:
    axes = radar_axes({"tuned": TUNED, "direct": DIRECT})
    assert [(axis.title, axis.low, axis.high) for axis in axes] == [
        ("correctness", 0, 1),
        ("efficiency", 0, 1),
        ("conciseness", 0, 1),
        ("successful execution", 0, 1),
        ("reasoning length (x1000)", 0, 5),
    ]
    assert [axis.values["tuned"] for axis in axes] == [0.601, 0.460, 0.570, 0.564, 3.07]
    assert axes[-1].position("tuned") == pytest.approx(3.07 / 5)


def test_unknown_value_is_a_gap() -> None:
    axes = radar_axes({"direct": DIRECT})
    assert [axis.position("direct") is None for axis in axes] == [False, True, True, False, False]
    assert all(axis.position("direct") is None for axis in radar_axes({"direct": {}}))


@pytest.mark.parametrize(("value", "end"), [(0.0, 1.0), (1.0, 1.0), (1.1, 2.0), (5.0, 5.0), (6.0, 10.0), (0.03, 0.05)])
def test_open_axis_ends_at_a_round_number(value: float, end: float) -> None:
    assert radar_axes({"m": {**TUNED, "reasoning_length": value}})[-1].high == end


@given(st.lists(st.floats(1e-6, 1_000), min_size=1, max_size=5))
def test_every_value_lies_on_its_axis(lengths: list[float]) -> None:
    models = {f"m{index}": {**TUNED, "reasoning_length": value} for index, value in enumerate(lengths)}
    for axis in radar_axes(models):
        places = [axis.position(model) for model in models]
        assert all(place is not None and 0 <= place <= 1 for place in places)
    assert max(place or 0 for place in places) >= 0.4 - 1e-9
