"""Dynamic sampling: which rows a step draws, which groups it keeps, and the advantages within them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.rl.credit.outcome import group_advantages
from treadle.rl.engine.dynamic_sampling import Draws, NoSpread, draw_groups, has_spread, rows_of_draw
from treadle.rl.rewards.rewarded import RewardedItem


def item(reward: float, *, scored: bool = True) -> RewardedItem:
    return RewardedItem(
        reward=reward,
        scored=scored,
        parts={},
        notes=(),
        score=reward,
        answer="",
        scorer="qa",
        status="answered",
        tool_calls=0,
        tool_failures=0,
        length=1,
    )


MIXED, EQUAL = (0.0, 1.0), (1.0, 1.0)


def drawn(
    spread: Sequence[bool], *, count: int, per_draw: int, max_extra: int = 10
) -> tuple[Draws[int], list[list[int]]]:
    """Draw rows in order; `spread` tells of each row whether the rewards of its group differ."""
    asked: list[list[int]] = []

    def roll_out(rows: Sequence[int], num_before: int) -> Sequence[int]:
        assert num_before == sum(map(len, asked))
        asked.append(list(rows))
        return rows

    draws = draw_groups(
        count,
        max_extra,
        lambda draw: range(len(spread))[draw * per_draw : (draw + 1) * per_draw],
        roll_out,
        lambda row: [item(value) for value in (MIXED if spread[row] else EQUAL)],
    )
    return draws, asked


@pytest.mark.covers("planning-19")
def test_advantages_are_those_of_the_sample_deviation() -> None:
    first, *others = group_advantages([1, 0, 0, 0, 0, 0, 0, 0])
    assert first == pytest.approx(2.475, abs=5e-4)
    assert others == pytest.approx([-0.354] * 7, abs=5e-4)
    assert group_advantages([1.0] * 8) == [0.0] * 8


@pytest.mark.covers("planning-19")
def test_equal_group_is_dropped_and_another_batch_is_drawn() -> None:
    draws, asked = drawn([True, False, False, True, True], count=2, per_draw=2)
    assert asked == [[0, 1], [2, 3]]
    assert draws.chosen(2) == [0, 3]
    assert draws.figures(2) == {"num_draws": 2, "num_dropped_groups": 2, "num_surplus_groups": 0}


def test_surplus_groups_are_dropped_and_counted() -> None:
    draws, asked = drawn([True] * 8, count=3, per_draw=8)
    assert (len(asked), draws.chosen(3)) == (1, [0, 1, 2])
    assert draws.figures(3) == {"num_draws": 1, "num_dropped_groups": 0, "num_surplus_groups": 5}


def test_equal_groups_fill_a_step_after_the_last_draw() -> None:
    draws, asked = drawn([False, True, False, False, True, True], count=3, per_draw=2, max_extra=1)
    assert (len(asked), draws.chosen(3)) == (2, [1, 0, 2])
    assert draws.figures(3) == {"num_draws": 2, "num_dropped_groups": 1, "num_surplus_groups": 0}


@pytest.mark.parametrize(("max_extra", "num_draws"), [(10, 4), (2, 3), (0, 1)])
def test_step_without_any_spread_is_an_error_with_its_draws(max_extra: int, num_draws: int) -> None:
    with pytest.raises(NoSpread, match=rf"in all {num_draws} draws .* \({min(2 * num_draws, 8)} questions\)"):
        drawn([False] * 8, count=2, per_draw=2, max_extra=max_extra)


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ([item(1.0)], True),
        ([item(0.0, scored=False)], False),
        ([item(1.0), item(1.0)], False),
        ([item(1.0), item(0.0)], True),
        ([item(1.0), item(1.0, scored=False)], False),
        ([item(0.1 + 0.2), item(0.1 + 0.2)], False),
    ],
)
def test_group_of_one_counts_as_kept_and_unscored_rollouts_do_not_count(
    rewards: list[RewardedItem], kept: bool
) -> None:
    assert has_spread(rewards) is kept


@given(
    num_rows=st.integers(1, 40),
    per_draw=st.integers(1, 40),
    step=st.integers(1, 60),
    seed=st.integers(0, 2**31),
)
def test_draws_of_a_step_cover_each_row_once(num_rows: int, per_draw: int, step: int, seed: int) -> None:
    per_draw = min(per_draw, num_rows)
    draws = [rows_of_draw(num_rows, per_draw, step, draw, seed) for draw in range(num_rows + 1)]
    assert sorted(row for rows in draws for row in rows) == list(range(num_rows))
    assert len(draws[0]) == per_draw
    assert draws == [rows_of_draw(num_rows, per_draw, step, draw, seed) for draw in range(num_rows + 1)]


def test_first_draws_of_a_pass_take_different_rows() -> None:
    passes = [[rows_of_draw(12, 4, step, 0, 7) for step in steps] for steps in ((1, 2, 3), (4, 5, 6))]
    assert all(sorted(row for rows in one for row in rows) == list(range(12)) for one in passes)
    assert passes[0] != passes[1]
    assert rows_of_draw(12, 4, 1, 0, 7) != rows_of_draw(12, 4, 1, 0, 8)
