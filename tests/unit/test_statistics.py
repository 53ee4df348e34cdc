"""Intervals of the report."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.eval.statistics import Interval, average_interval, mean_interval, share_interval, wilson_interval

QUESTIONS = st.lists(
    st.integers(1, 8).flatmap(lambda count: st.tuples(st.integers(0, count).map(float), st.just(count))),
    min_size=1,
    max_size=30,
)


def test_wilson_interval_of_a_small_benchmark() -> None:
    low, high = wilson_interval(14 / 30, 30)
    assert (round(14 / 30, 3), round(low, 3), round(high, 3)) == (0.467, 0.302, 0.639)
    assert share_interval([(1.0, 1)] * 14 + [(0.0, 1)] * 16) == Interval(14 / 30, low, high, "wilson")


def test_nothing_known_without_trials() -> None:
    assert wilson_interval(0.5, 0) == (0.0, 1.0)


def test_repeated_samples_of_a_question_are_not_independent() -> None:
    """Four identical samples per question tell no more than one; independent ones tell nearly four times as much."""
    once = share_interval([(1.0, 1)] * 14 + [(0.0, 1)] * 16)
    same = share_interval([(4.0, 4)] * 14 + [(0.0, 4)] * 16)
    assert same.method == "clustered"
    assert same.high - same.low == pytest.approx(once.high - once.low, rel=0.05)
    mixed = share_interval([(2.0, 4)] * 26 + [(1.0, 4)] * 4)
    assert mixed.high - mixed.low < 0.6 * (once.high - once.low)


@pytest.mark.parametrize("right", [0.0, 4.0])
def test_all_alike_falls_back_to_the_number_of_questions(right: float) -> None:
    interval = share_interval([(right, 4)] * 10)
    assert (interval.low, interval.high) == wilson_interval(right / 4, 10)


def test_one_question_asked_often_is_one_question() -> None:
    interval = share_interval([(50.0, 100)])
    assert (interval.low, interval.high) == wilson_interval(0.5, 1)


@given(QUESTIONS)
def test_share_interval_is_ordered_and_bounded(questions: list[tuple[float, int]]) -> None:
    interval = share_interval(questions)
    assert 0.0 <= interval.low <= interval.mean <= interval.high <= 1.0
    assert share_interval(list(reversed(questions))) == pytest.approx(interval) or interval.method == "clustered"


@given(QUESTIONS)
def test_mean_interval_is_ordered_bounded_and_repeatable(questions: list[tuple[float, int]]) -> None:
    interval = mean_interval(questions, num_samples=100, seed=1)
    assert 0.0 <= interval.low <= interval.mean <= interval.high <= 1.0 + 1e-9
    assert interval == mean_interval(questions, num_samples=100, seed=1)


def test_bootstrap_agrees_with_theory() -> None:
    draw = random.Random(0)
    values = [(draw.random(), 1) for _ in range(400)]
    interval = mean_interval(values, num_samples=2_000, seed=0)
    assert interval.method == "bootstrap"
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * (1 / 12) ** 0.5 / 20, rel=0.1)
    many = mean_interval(values * 13, num_samples=100, seed=0)
    assert many.method == "normal"
    assert many.high - many.low == pytest.approx((interval.high - interval.low) / 13**0.5, rel=0.1)


def test_mean_without_spread_keeps_a_width() -> None:
    assert mean_interval([(1.0, 1)], num_samples=100, seed=0).low < 0.5
    assert mean_interval([(0.5, 1)] * 20, num_samples=100, seed=0).method == "wilson"


def test_average_of_intervals_is_unweighted_and_narrower() -> None:
    wide, narrow = Interval(0.2, 0.0, 0.4, "wilson"), Interval(0.6, 0.5, 0.7, "wilson")
    both = average_interval([wide, narrow])
    assert both.mean == pytest.approx(0.4)
    assert both.high - both.mean == pytest.approx((0.2**2 + 0.1**2) ** 0.5 / 2)
