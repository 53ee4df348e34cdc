"""Intervals of the report."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.eval.statistics import (
    Interval,
    average_interval,
    pass_at_k,
    ratio_interval,
    share_interval,
    wilson_interval,
)

QUESTIONS = st.lists(
    st.integers(1, 8).flatmap(lambda count: st.tuples(st.integers(0, count).map(float), st.just(count))),
    min_size=1,
    max_size=30,
)


def mean_interval(questions: Sequence[tuple[float, float]], *, num_samples: int, seed: int) -> Interval:
    """Return the interval of values within [0, 1]."""
    return ratio_interval(questions, num_samples=num_samples, seed=seed, bounds=(0.0, 1.0))


def test_wilson_interval_of_a_small_benchmark() -> None:
    low, high = wilson_interval(14 / 30, 30)
    assert (round(14 / 30, 3), round(low, 3), round(high, 3)) == (0.467, 0.302, 0.639)
    assert share_interval([(1.0, 1)] * 14 + [(0.0, 1)] * 16) == Interval(14 / 30, low, high, "wilson")


def test_interval_without_trials_is_unbounded() -> None:
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
def test_uniform_outcomes_fall_back_to_the_number_of_questions(right: float) -> None:
    interval = share_interval([(right, 4)] * 10)
    assert (interval.low, interval.high) == wilson_interval(right / 4, 10)


def test_repeated_samples_of_one_question_count_as_one_question() -> None:
    interval = share_interval([(50.0, 100)])
    assert (interval.low, interval.high) == wilson_interval(0.5, 1)


@given(QUESTIONS)
def test_share_interval_is_ordered_and_bounded(questions: list[tuple[float, int]]) -> None:
    interval = share_interval(questions)
    assert 0.0 <= interval.low <= interval.mean <= interval.high <= 1.0
    other = share_interval(list(reversed(questions)))
    assert (other.mean, other.low, other.high) == pytest.approx((interval.mean, interval.low, interval.high))


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


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_draws_with_a_correct_rollout(counts: tuple[int, int, int]) -> None:
    num_rollouts, num_right, k = counts
    choices = list(itertools.combinations([True] * num_right + [False] * (num_rollouts - num_right), k))
    assert pass_at_k(num_rollouts, num_right, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_pass_at_k_of_many_rollouts() -> None:
    assert pass_at_k(16, 4, 1) == 0.25
    assert pass_at_k(100_000, 1, 50_000) == 0.5
    assert pass_at_k(16, 15, 2) == 1.0


@pytest.mark.parametrize(("num_rollouts", "num_right", "k"), [(4, 1, 8), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_needs_k_rollouts(num_rollouts: int, num_right: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} cannot be estimated"):
        pass_at_k(num_rollouts, num_right, k)


@given(QUESTIONS, st.floats(-1_000, 1_000), st.floats(0.01, 1_000))
def test_ratio_interval_moves_with_the_unit(questions: list[tuple[float, int]], shift: float, scale: float) -> None:
    """A mean in other units has the interval in those units; nothing is cut to [0, 1]."""
    plain = ratio_interval(questions, num_samples=100, seed=1)
    moved = ratio_interval(
        [(scale * total + shift * count, count) for total, count in questions], num_samples=100, seed=1
    )
    assert moved.method == plain.method
    assert (moved.low, moved.mean, moved.high) == pytest.approx(
        (scale * plain.low + shift, scale * plain.mean + shift, scale * plain.high + shift), rel=1e-6, abs=1e-6
    )


def test_ratio_interval_agrees_with_theory_for_unequal_denominators() -> None:
    """Tokens per call, where a question has 1 to 8 calls: the spread of residuals decides."""
    draw = random.Random(0)
    questions = [(sum(draw.gauss(200, 50) for _ in range(calls)), float(calls)) for calls in [1, 2, 4, 8] * 100]
    interval = ratio_interval(questions, num_samples=2_000, seed=0)
    num_calls = sum(count for _, count in questions)
    assert interval.low < 200 < interval.high
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * 50 / num_calls**0.5, rel=0.15)
    many = ratio_interval(questions * 13, num_samples=10, seed=0)
    assert many.method == "normal"
    assert many.high - many.low == pytest.approx((interval.high - interval.low) / 13**0.5, rel=0.1)


def test_repeated_rollouts_of_a_question_do_not_narrow_a_ratio() -> None:
    draw = random.Random(1)
    once = [(draw.gauss(300, 80), 1.0) for _ in range(50)]
    often = [(8 * total, 8.0) for total, _ in once]
    one, eight = (ratio_interval(rows, num_samples=500, seed=0) for rows in (once, often))
    assert (eight.low, eight.high) == pytest.approx((one.low, one.high))


def test_ratio_without_spread() -> None:
    assert ratio_interval([(300.0, 1.0)], num_samples=10, seed=0) == Interval(300, -math.inf, math.inf, "unknown")
    assert ratio_interval([(300.0, 1.0)] * 9, num_samples=10, seed=0) == Interval(300, 300, 300, "constant")
    bounded = ratio_interval([(1.0, 1.0)] * 10, num_samples=10, seed=0, bounds=(0, 1))
    assert (bounded.low, bounded.high) == pytest.approx(wilson_interval(1.0, 10))
    middle = ratio_interval([(0.0, 1.0)] * 30, num_samples=10, seed=0, bounds=(-1, 1))
    assert (middle.low, middle.high) == pytest.approx((-wilson_interval(0, 30)[1], wilson_interval(0, 30)[1]))


def test_some_questions_may_lack_a_denominator() -> None:
    interval = ratio_interval([(0.0, 0.0), (2.0, 4.0), (3.0, 4.0)], num_samples=200, seed=0)
    assert (interval.low, interval.mean, interval.high) == (0.5, 0.625, 0.75)
    for bad in ([(1.0, 0.0)], [(1.0, 3.0), (1.0, -1.0)]):
        with pytest.raises(ValueError, match="denominators"):
            ratio_interval(bad, num_samples=10, seed=0)
