"""Scores of sequences and turns against the numbers of the paper's formulas."""

from __future__ import annotations

import itertools
import math

import pytest

from treadle.rl.preferences.aggregates import Aggregate, advantage, token_weights

BETTER = [[0.5, 0.0, 0.5, 0.0], [0.2, 0.4]]
WORSE = [[-0.1] * 4, [0.3] * 4, [-0.2] * 2]


def score(ratios: list[list[float]], aggregate: Aggregate) -> float:
    """Return the score of a trajectory whose turns are separated by a masked token."""
    flat = list(itertools.chain(*[[*turn, 9.9] for turn in ratios]))
    mask = list(itertools.chain(*[[*[1] * len(turn), 0] for turn in ratios]))
    weights = token_weights(mask, [len(turn) for turn in ratios], aggregate)
    return sum(weight * ratio for weight, ratio in zip(weights, flat, strict=True))


@pytest.mark.covers("sweet-15")
@pytest.mark.parametrize(
    ("aggregate", "better", "worse", "loss"),
    [
        ("token_mean", 0.266667, 0.04, 0.681878),
        ("turn_sum", 0.55, 0.0, 0.666025),
        ("sum", 1.6, 0.4, 0.634946),
    ],
)
def test_weights_give_the_scores_of_each_aggregate(
    aggregate: Aggregate, better: float, worse: float, loss: float
) -> None:
    found = score(BETTER, aggregate), score(WORSE, aggregate)
    assert found == pytest.approx((better, worse), abs=5e-7)
    assert math.log1p(math.exp(-0.1 * (found[0] - found[1]))) == pytest.approx(loss, abs=5e-7)


def test_turns_that_do_not_fit_their_mask_are_refused() -> None:
    for turns in ([1, 2], [1]):
        with pytest.raises(ValueError, match=f"turns of {sum(turns)} tokens do not fit a mask of 2"):
            token_weights([1, 1, 0], turns, "turn_sum")


def test_turns_without_a_token_have_no_weight() -> None:
    assert token_weights([0, 1, 1], [0, 2, 0], "turn_sum") == [0.0, 0.5, 0.5]
    assert token_weights([0, 0], [0], "token_mean") == [0.0, 0.0]


@pytest.mark.covers("sweet-14")
def test_mean_and_sum_rank_short_and_long_turns_differently() -> None:
    short = (-2.0, -3.0, 4)
    long = (-10.0, -12.0, 20)
    assert advantage(*short, is_mean=True) == 0.25 and advantage(*short, is_mean=False) == 1.0
    assert advantage(*long, is_mean=True) == pytest.approx(0.1) and advantage(*long, is_mean=False) == 2.0


@pytest.mark.covers("sweet-16")
def test_equal_models_over_equal_spans_have_no_advantage() -> None:
    """Means over different spans would favour short answers, as they do in the released code of SWEET-RL."""
    for response in ([-1.0, -0.5, -0.5], [-0.5] * 100):
        own = [*response, -0.01]
        assert advantage(sum(own), sum(own), len(own), is_mean=True) == 0.0
        released = sum([0.0] * 4 + response) / (4 + len(response)) - sum(own) / len(own)
        assert released == pytest.approx(0.216786 if len(response) == 3 else 0.014379, abs=5e-7)
