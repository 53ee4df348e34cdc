"""The critic's choice among rollouts of held-out tasks: means over tasks, and ties."""

from __future__ import annotations

import pytest

from treadle.rl.advantages.best_of import BestOf


def test_choice_is_compared_with_the_mean_and_the_best_of_each_task() -> None:
    found = BestOf()
    found.add([0.0, 1.0, 0.5], [0.1, -0.2, 0.3])
    found.add([0.25, 0.75], [0.0, 0.0])
    assert found.metrics() == {
        "best_of.tasks": 2,
        "best_of.rollouts": 5,
        "best_of.mean_reward": pytest.approx(0.5),
        "best_of.critic_reward": pytest.approx((0.5 + 0.25) / 2),
        "best_of.best_reward": pytest.approx((1.0 + 0.75) / 2),
    }
    assert BestOf().metrics() == {}
