"""Axes of the radar: order, ranges, gaps."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.report.radar import MAX_DRAWN, draw_radar, radar_axes

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


def drawn(models: dict[str, dict[str, float | None]]) -> ElementTree.Element:
    """Return the parsed picture."""
    return ElementTree.fromstring(draw_radar(radar_axes(models)))


def shapes(picture: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    return list(picture.iter("{http://www.w3.org/2000/svg}" + tag))


def test_missing_values_leave_gaps_and_no_filled_polygon() -> None:
    picture = drawn({"direct": DIRECT, "tuned": TUNED})
    (filled,) = [one for one in shapes(picture, "polygon") if one.get("fill-opacity")]
    assert filled.get("fill") == "#d55e00" and len(filled.attrib["points"].split()) == 5
    lines = [one.get("stroke") for one in shapes(picture, "polyline")]
    # Two of five values are missing, next to each other; each model has a line in the legend.
    assert lines.count("#0072b2") == 2 + 1 and lines.count("#d55e00") == 5 + 1


def test_points_lie_on_their_axes_at_their_share_of_the_radius() -> None:
    (circle,) = [one for one in shapes(drawn({"m": TUNED}), "circle") if one.get("r") == "135"]
    x, y, radius = (float(circle.attrib[name]) for name in ("cx", "cy", "r"))
    (filled,) = [one for one in shapes(drawn({"m": TUNED}), "polygon") if one.get("fill-opacity")]
    places = [tuple(map(float, point.split(","))) for point in filled.attrib["points"].split()]
    assert places[0] == pytest.approx((x, y - 0.601 * radius), abs=0.01)
    shares = [((px - x) ** 2 + (py - y) ** 2) ** 0.5 / radius for px, py in places]
    assert shares == pytest.approx([0.601, 0.460, 0.570, 0.564, 3.07 / 5], abs=1e-3)
    assert places[1][0] > x and places[4][0] < x, "clockwise from the top"


def test_eight_models_have_colours_and_markers_of_their_own() -> None:
    picture = drawn({f"m{number}": TUNED for number in range(MAX_DRAWN + 1)})
    texts = [one.text for one in shapes(picture, "text")]
    assert f"m{MAX_DRAWN - 1}" in texts and f"m{MAX_DRAWN}" not in texts
    markers = [one for one in shapes(picture, "polygon") if not one.get("fill-opacity")]
    assert len({one.get("fill") for one in markers}) == MAX_DRAWN


@pytest.mark.parametrize("name", ["", "<b>&\x00\ufffe\udc80", "x" * 500, "名" * 99])
def test_any_name_is_drawn_as_text_within_the_picture(name: str) -> None:
    picture = drawn({name: TUNED, "other": DIRECT})
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    for text in shapes(picture, "text"):
        assert 0 < float(text.attrib["x"]) < width and 0 < float(text.attrib["y"]) < height
        assert len(text.text or "") <= 40
