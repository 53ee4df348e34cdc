"""Rewards that ask the confined computer algebra."""

from __future__ import annotations

import pytest

from treadle.rl.rewards import GroupItem, group_rewards, open_checker

TURN = r"<think>a</think><answer>\boxed{%s}</answer>"


@pytest.mark.covers("pareto-17")
def test_algebra_decides_what_the_rules_leave_open() -> None:
    items = [GroupItem.from_text(TURN % answer) for answer in ("x+1", "x+2", "9^{9^{9^{9}}}")]
    plain = group_rewards(items, ["1+x"], "math", 0, 0)
    assert [(reward.correctness, reward.scorer) for reward in plain] == [(0.0, "math_rules")] * 3
    with open_checker(True) as checker:
        assert checker is not None
        rewards = group_rewards(items, ["1+x"], "math", 0, 0, checker=checker)
    assert [reward.correctness for reward in rewards] == [1.0, 0.0, 0.0]
    assert rewards[0].scorer == rewards[1].scorer == "math_symbolic"
