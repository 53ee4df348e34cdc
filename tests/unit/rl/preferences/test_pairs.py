"""Pairs by score: the rules of SWEET-RL with their golden values, seeds, ties and missing rewards."""

from __future__ import annotations

import itertools

import pytest

from treadle.rl.preferences.pairs import draw_turn_pairs, ends_by_score, pairs_by_gap, pairs_with_best

SCORES = [0.10, -0.20, 0.35, 0.05, -0.40, 0.20, 0.0, -0.10]


@pytest.mark.covers("sweet-10")
def test_first_best_sample_is_paired_with_each_worse_one() -> None:
    samples = ([1.0, 0.9, 0.0, 1.0], [0.4, 1.0, 0.3, 1.0], [1.0, 0.9, 0.7, 0.0])
    num_tasks = len(samples[0])
    found = []
    for task, rewards in enumerate(zip(*samples, strict=True)):
        found += [tuple(place * num_tasks + task for place in pair) for pair in pairs_with_best(rewards)]
    assert found == [(0, 4), (5, 1), (5, 9), (3, 11)]


def test_unscored_and_equal_samples_give_no_pair() -> None:
    assert pairs_with_best([None, 1.0, 1.0]) == [] == pairs_with_best([None, None])
    assert pairs_with_best([0.5, None, 0.2]) == [] and pairs_with_best([0.5, None, 0.2], 0.5) == [(0, 2)]


def test_best_sample_is_chosen_even_if_an_earlier_one_is_good_enough() -> None:
    assert pairs_with_best([0.5, 0.9, 0.2], 0.5) == [(1, 0), (1, 2)]
    assert pairs_with_best([0.3, 0.0], 0.1 + 0.2) == [(0, 1)], "rounding does not decide"


@pytest.mark.covers("sweet-23")
def test_gap_of_exactly_the_smallest_one_is_wide_enough_despite_rounding() -> None:
    assert pairs_by_gap([0.9, 0.8], 0.1) == [(0, 1)] and pairs_by_gap([0.8, 0.7], 0.1) == [(0, 1)]
    rewards = [0.70, 0.85, 0.79, 0.60]
    assert set(pairs_by_gap(rewards, 0.1)) == {(1, 0), (1, 3), (2, 3), (0, 3)}
    assert pairs_by_gap(rewards, 0.1 + 1e-6) == [(1, 0), (1, 3), (2, 3)], "as the published program, which rounds"
    assert pairs_by_gap([0.3, 0.3, None], 0.0) == []


@pytest.mark.covers("sweet-18")
def test_pairs_of_a_turn_come_from_the_halves_and_follow_the_seed() -> None:
    worst, best = ends_by_score(SCORES)
    assert (set(worst), set(best)) == ({1, 4, 6, 7}, {0, 2, 3, 5})
    drawn = draw_turn_pairs(SCORES, 200, 42)
    assert len(drawn) == 200 and set(drawn) == set(itertools.product(best, worst))
    assert drawn == draw_turn_pairs(SCORES, 200, 42) != draw_turn_pairs(SCORES, 200, 43)
    sixteen = [float(place) for place in range(16)]
    assert len(set(draw_turn_pairs(sixteen, 5000, 1))) == 64


def test_ends_may_be_narrower_than_halves() -> None:
    assert set(draw_turn_pairs(SCORES, 20, 1, size=1)) == {(2, 4)}
    assert ends_by_score([3.0, 1.0, 2.0]) == ([1], [0]) and ends_by_score([1.0]) == ([], [])
    assert ends_by_score([3.0, 1.0, 2.0], size=5) == ([1], [0]), "no candidate is on both sides"
    assert ends_by_score([1.0, 0.0, 0.0, 0.0]) == ([1, 2], [3, 0]), "equal scores are in their order"


def test_equal_scores_and_a_single_candidate_give_no_pair() -> None:
    assert draw_turn_pairs([0.5, 0.5, 0.5, 0.5], 4, 1) == [] == draw_turn_pairs([0.5], 4, 1)
