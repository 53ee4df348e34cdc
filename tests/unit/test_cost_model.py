"""What is expected before anything was measured is of the size that the method's own count has."""

from __future__ import annotations

from treadle.agent.config import EnvironmentSettings
from treadle.datagen.pools_settings import PoolOptions
from treadle.rl.config import RlOptions
from treadle.tasks.cost_model import PhaseSize, phase_size, pool_cost, rollout_cost

ENVIRONMENT = EnvironmentSettings()


def calls(options: PoolOptions, share_math: float = 0.0) -> dict[str, float]:
    return {role: used["calls"] for role, used in pool_cost(options, ENVIRONMENT, share_math).roles.items()}


def test_three_rounds_take_about_thirty_completions_and_up_to_ten_verdicts() -> None:
    expected = calls(PoolOptions(), share_math=1.0)
    assert 25 < sum(expected.values()) - expected["judge"] < 35
    assert 5 < expected["judge"] <= 10


def test_each_operator_costs_what_it_asks_for() -> None:
    base = calls(PoolOptions(rounds=0))
    assert base == {"policy": 3.0}
    for name, role, more in (
        ("rerollout", "policy", 1.5),
        ("redundant_mod", "critic", 0.5),
        ("global_refine", "critic", 1.0),
        ("self_correct", "refiner", 1.0),
        ("hint_step", "critic", 0.5),
        ("hint_tail", "policy", 1.0),
        ("reflect", "refiner", 0.5),
    ):
        expected = calls(PoolOptions(rounds=1, operators=(name,)))
        assert expected[role] - base.get(role, 0.0) == more, name


def test_where_all_are_taken_up_a_round_costs_more_than_the_one_before() -> None:
    totals = [sum(calls(PoolOptions(rounds=rounds, selection="all")).values()) for rounds in (1, 2, 3)]
    assert totals[2] - totals[1] > totals[1] - totals[0] > 0


def test_every_further_turn_sends_what_stands_before_it() -> None:
    one = rollout_cost(ENVIRONMENT).roles["policy"]
    no_tools = EnvironmentSettings.model_validate({"python": {"enabled": False}, "search": {"enabled": False}})
    alone = rollout_cost(no_tools).roles["policy"]
    assert (one["calls"], alone["calls"]) == (3.0, 1.0)
    assert one["prompt_tokens"] > 3 * alone["prompt_tokens"]


def test_a_phase_of_the_paper_rolls_out_a_thousand_trajectories_a_step() -> None:
    paper = RlOptions.model_validate({"preset": "et-agent-7b"})
    assert phase_size(paper, 8000) == PhaseSize(375, 375 * 64 * 16, 38 * 160)
    assert phase_size(paper, 63) == PhaseSize(0, 0, 0)
    few = RlOptions(max_steps=3, validation_questions=5, validation_steps=3)
    assert phase_size(few, 8000) == PhaseSize(3, 3 * 4 * 16, 5)
