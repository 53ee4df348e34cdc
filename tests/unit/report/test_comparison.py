"""Two models on the same questions."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables.scored_rollouts import scored

from treadle.core.errors import DataError
from treadle.eval.scored_rollout import ScoredRollout
from treadle.eval.statistics import (
    average_interval,
    holm,
    mcnemar_test,
    paired_share_interval,
    permutation_test,
    share_interval,
    wilson_interval,
)
from treadle.report.comparison import Comparison, compare_average, compare_pairs, pair


def compare(first: list[ScoredRollout], second: list[ScoredRollout], figure: str = "score", **how: int) -> Comparison:
    """As the report does on one data set."""
    return compare_pairs(pair(first, second, figure), **how)


VERDICTS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=25)
SMALL_STEPS = st.lists(st.integers(-4, 4).map(lambda step: step / 4), max_size=9)


def answers(*verdicts: list[float | None] | list[bool], **given_fields: object) -> list[ScoredRollout]:
    """One inner list per question: P of its rollouts."""
    return [
        scored(None if value is None else float(value), question_key=f"q{index:03}", **given_fields)
        for index, values in enumerate(verdicts)
        for value in values
    ]


def test_one_rollout_each_is_mcnemars_test() -> None:
    """9 of 30 questions were gained and 2 lost."""
    first = answers(*([[1]] * 12 + [[0]] * 18))
    second = answers(*([[1]] * 10 + [[0]] * 2 + [[1]] * 9 + [[0]] * 9))
    found = compare(first, second)
    assert (found.test, found.num_questions) == ("mcnemar", 30)
    assert found.p_value == pytest.approx(2 * (1 + 11 + 55) / 2**11)
    assert (found.first, found.second, found.difference.mean) == (0.4, pytest.approx(19 / 30), pytest.approx(7 / 30))
    assert found.gained == tuple(f"q{index:03}" for index in range(12, 21))
    assert found.lost == ("q010", "q011")
    assert found.p_value > 0.05
    assert 0 == found.difference.low < 7 / 30 < found.difference.high
    assert compare(answers(*([[0]] * 10)), answers(*([[1]] * 7 + [[0]] * 3))).difference.low > 0


def test_paired_test_detects_differences_that_separate_intervals_miss() -> None:
    """Both models fail the same hard questions; the second also answers 8 more of 60."""
    first, second = answers(*([[1]] * 26 + [[0]] * 34)), answers(*([[1]] * 34 + [[0]] * 26))
    found = compare(first, second)
    assert found.difference.low > 0 and found.p_value < 0.01
    assert (
        share_interval([(1.0, 1)] * 26 + [(0.0, 1)] * 34).high > share_interval([(1.0, 1)] * 34 + [(0.0, 1)] * 26).low
    )


def test_equal_models_are_not_distinguished() -> None:
    same = answers(*([[1]] * 15 + [[0]] * 15))
    found = compare(same, same)
    assert (found.p_value, found.gained, found.lost) == (1.0, (), ())
    assert (found.difference.mean, found.difference.method) == (0.0, "tango")
    assert -0.12 < found.difference.low < 0 < found.difference.high < 0.12


def test_f1_of_one_rollout_each_is_a_permutation_test() -> None:
    found = compare(answers([0.25], [0.5], [1.0], [0.0]), answers([0.5], [0.75], [1.0], [0.5]), "f1")
    assert (found.test, found.p_value) == ("permutation_exact", 0.25)
    assert (found.gained, found.lost) == ((), ())


def test_many_small_gains_do_not_outweigh_few_large_losses() -> None:
    """By signs alone 20 gains against 5 losses would speak for the second model, and clearly."""
    few = compare(answers(*([[0.5]] * 25)), answers(*([[0.51]] * 20 + [[0.0]] * 5)))
    assert few.test == "permutation" and few.difference.mean == pytest.approx(-0.092)
    assert few.difference.low < -0.1 and few.difference.high == 0 and few.p_value == pytest.approx(0.0625, abs=0.01)
    many = compare(answers(*([[0.5]] * 50)), answers(*([[0.51]] * 40 + [[0.0]] * 10)))
    assert many.difference.high < 0 and many.p_value < 0.01
    moved = compare(answers(*([[0.5]] * 25)), answers(*([[0.52]] * 20 + [[0.42]] * 5)))
    assert moved.difference.mean == pytest.approx(0) and moved.p_value > 0.9


def test_several_rollouts_of_a_question_count_as_one_question() -> None:
    first = answers(*([[1, 0, 0, 0]] * 6 + [[1, 1, 1, 0]] * 4))
    second = answers(*([[1, 1, 1, 0]] * 6 + [[1, 1, 0, 0]] * 4))
    found = compare(first, second)
    assert (found.test, found.num_questions) == ("permutation_exact", 10)
    assert found.gained == tuple(f"q{index:03}" for index in range(6))
    assert found.lost == ()
    assert found.difference.mean == pytest.approx((6 * 0.5 - 4 * 0.25) / 10)
    once = compare(answers(*[row for row in ([[0.25]] * 6 + [[0.75]] * 4)]), answers(*([[0.75]] * 6 + [[0.5]] * 4)))
    assert found.difference == once.difference


def test_many_questions_are_permuted_at_random_with_a_fixed_seed() -> None:
    first, second = answers(*([[0, 1]] * 40)), answers(*([[1, 1]] * 12 + [[0, 1]] * 20 + [[0, 0]] * 8))
    found = compare(first, second)
    exact = sum(math.comb(20, ups) for ups in range(21) if abs(2 * ups - 20) >= 4) / 2**20
    assert found.test == "permutation"
    assert found.p_value == pytest.approx(exact, abs=0.02)
    assert found == compare(first, second)
    assert found.p_value != compare(first, second, seed=1).p_value
    far = compare(answers(*([[0, 0]] * 40)), answers(*([[1, 1]] * 40)), num_permutations=99)
    assert far.p_value == 0.01


def test_questions_without_verdict_are_excluded_and_counted() -> None:
    found = compare(answers([1], [None], [0, None]), answers([1], [1], [1, 1]))
    assert (found.num_questions, found.num_dropped, found.num_dropped_rollouts) == (2, 1, 3)
    assert (found.first, found.second, found.gained) == (0.5, 1.0, ("q002",))


def test_questions_of_one_model_only_are_excluded_and_counted() -> None:
    found = compare(answers([1]), answers([1], [0]))
    assert (found.num_questions, found.num_dropped, found.num_dropped_rollouts) == (1, 1, 1)
    assert not pair(answers([None]), answers([1]), "score").first


def test_unbounded_metrics_are_compared_in_their_own_unit() -> None:
    found = compare(answers([1], [0], tokens=400), answers([1], [0], tokens=150), "reasoning_tokens")
    assert (found.difference.mean, found.difference.method) == (-250, "constant")
    only = compare(answers([1], tokens=400), answers([1], tokens=150), "reasoning_tokens").difference
    assert (only.mean, only.low, only.high, only.method) == (-250, -math.inf, math.inf, "unknown")


@given(
    st.lists(
        st.tuples(*[st.lists(st.none() | st.sampled_from([0.0, 0.1, 0.7, 1.0]), min_size=1, max_size=4)] * 2),
        min_size=1,
    ),
    st.randoms(use_true_random=False),
)
def test_comparison_ignores_order_and_is_antisymmetric(
    rows: list[tuple[list[float | None], list[float | None]]], draw: random.Random
) -> None:
    rows = [*rows, ([1.0], [0.1])]
    first, second = answers(*[left for left, _ in rows]), answers(*[right for _, right in rows])
    found = compare(first, second, num_samples=50, num_permutations=64)
    shuffled = compare(
        draw.sample(first, len(first)), draw.sample(second, len(second)), num_samples=50, num_permutations=64
    )
    assert shuffled == found
    turned = compare(second, first, num_samples=50, num_permutations=64)
    assert (turned.gained, turned.lost, turned.p_value) == (found.lost, found.gained, found.p_value)
    assert turned.difference.mean == pytest.approx(-found.difference.mean)
    assert (turned.difference.low, turned.difference.high) == pytest.approx(
        (-found.difference.high, -found.difference.low), abs=1e-9
    )
    assert 0 < found.p_value <= 1
    assert -1 <= found.difference.low <= found.difference.mean <= found.difference.high <= 1


@given(VERDICTS)
def test_flips_and_p_value_match_direct_counting(verdicts: list[tuple[bool, bool]]) -> None:
    found = compare(
        answers(*[[left] for left, _ in verdicts]), answers(*[[right] for _, right in verdicts]), num_samples=20
    )
    gained, lost = verdicts.count((False, True)), verdicts.count((True, False))
    assert (len(found.gained), len(found.lost)) == (gained, lost)
    outcomes = range(gained + lost + 1)
    unevenness = abs(gained - lost)
    chance = sum(math.comb(gained + lost, ups) for ups in outcomes if abs(2 * ups - gained - lost) >= unevenness)
    assert found.p_value == pytest.approx(chance / 2 ** (gained + lost))


@given(SMALL_STEPS)
def test_exact_permutation_test_enumerates_every_choice_of_signs(differences: list[float]) -> None:
    seen = abs(sum(differences))
    flips = list(itertools.product([1, -1], repeat=len(differences)))
    as_far = sum(
        abs(sum(sign * value for sign, value in zip(signs, differences, strict=True))) >= seen for signs in flips
    )
    name, p_value = permutation_test(differences, num_permutations=1_000, seed=0)
    assert (name, p_value) == ("permutation_exact", pytest.approx(as_far / len(flips)))


def test_questions_without_a_difference_keep_the_test_exact() -> None:
    assert permutation_test([0.5, 0.0, 0.25, 0.5] + [0.0] * 30, num_permutations=8, seed=0) == (
        "permutation_exact",
        0.25,
    )
    assert permutation_test([], num_permutations=8, seed=0) == ("permutation_exact", 1.0)


def test_no_change_is_no_evidence() -> None:
    assert mcnemar_test(0, 0) == 1.0
    assert mcnemar_test(2_000, 0) == pytest.approx(0.0, abs=1e-300)


def test_metrics_without_a_verdict_compare_all_rollouts() -> None:
    first = [scored(None, 4, question_key="a"), scored(1, 2, question_key="b")]
    second = [scored(1, 1, question_key="a"), scored(None, 0, question_key="b")]
    found = compare(first, second, "calls_requested")
    assert (found.num_questions, found.num_dropped, found.difference.mean) == (2, 0, -2.5)
    assert not pair(first, second, "score").first


def test_rollouts_of_two_datasets_are_not_paired() -> None:
    with pytest.raises(DataError, match="questions of amc23, math500 cannot be paired"):
        compare(answers([1], dataset="amc23"), answers([1], dataset="math500"))


def test_accuracy_intervals_are_score_intervals() -> None:
    """At each end McNemar's statistic for the supposed difference is 1.96 standard deviations off."""
    interval = paired_share_interval(12, 2, 50)
    assert (interval.mean, interval.method) == (0.2, "tango")
    for end in (interval.low, interval.high):
        losses = [share / 100_000 for share in range(1, 60_000)]
        likeliest = max(
            (share for share in losses if 0 < share + end < 1 and 2 * share + end < 1),
            key=lambda share: 12 * math.log(share + end) + 2 * math.log(share) + 36 * math.log(1 - 2 * share - end),
        )
        variance = 50 * (2 * likeliest + end * (1 - end))
        assert abs(12 - 2 - 50 * end) / variance**0.5 == pytest.approx(1.96, abs=2e-3)
    nothing = paired_share_interval(0, 0, 30)
    assert (nothing.low, nothing.high) == (pytest.approx(-wilson_interval(0, 30)[1]), pytest.approx(-nothing.low))


@given(st.tuples(*[st.integers(0, 12)] * 3).filter(any))
def test_accuracy_interval_and_test_agree(counts: tuple[int, int, int]) -> None:
    same, gained, lost = counts
    kinds = [([1], [1])] * same + [([0], [1])] * gained + [([1], [0])] * lost
    found = compare(answers(*[left for left, _ in kinds]), answers(*[right for _, right in kinds]))
    assert found.test == "mcnemar"
    assert (found.difference.low > 0 or found.difference.high < 0) == (found.p_value < 0.05)
    raw = paired_share_interval(gained, lost, sum(counts))
    assert -1 <= raw.low <= raw.mean <= raw.high <= 1
    assert not (raw.low > 0 or raw.high < 0) or found.p_value <= 0.125


@pytest.mark.parametrize("gained", range(8))
def test_one_more_gain_moves_the_interval_slightly(gained: int) -> None:
    """With a bootstrap of so few jumps the lower end moved from -0.11 to 0 with the first gain."""
    before, after = (paired_share_interval(count, 0, 30) for count in (gained, gained + 1))
    assert 0 < after.low - before.low < 0.05 and 0 < after.high - before.high < 0.06


def test_dataset_average_weighs_datasets_equally() -> None:
    small = pair(answers([0], [0], dataset="a"), answers([1], [1], dataset="a"), "score")
    large = pair(answers(*([[1]] * 40), dataset="b"), answers(*([[1]] * 30 + [[0]] * 10), dataset="b"), "score")
    found = compare_average([small, large])
    assert (found.num_questions, found.difference.mean) == (42, pytest.approx((1 - 0.25) / 2))
    assert (found.first, found.second) == (0.5, 0.875)
    assert found.p_value == pytest.approx(0.5, abs=0.02)
    assert found.difference.low <= 0 < found.difference.high and found.gained == ()
    alike = [pair(answers(*([[0]] * 5), dataset=name), answers(*([[1]] * 5), dataset=name), "score") for name in "ab"]
    sure = compare_average(alike)
    assert (sure.test, sure.p_value) == ("permutation_exact", 2 / 1_024)
    parts = [paired_share_interval(5, 0, 5)] * 2
    assert sure.difference == average_interval(parts)


def test_p_values_are_adjusted_for_multiple_comparisons() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
