"""Terms for plans and calls: what they are, and that they never put a wrong answer above a right one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agent.contract import Task
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.core.answers.score import Score
from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.rl.config import RlOptions
from treadle.rl.rewards.base import GroupItem, Reward, RewardGroup
from treadle.rl.rewards.planning import PlanningReward, PlanningTerms

GOOD = {"plans": 1.0, "bad_plans": 0.0, "early_calls": 0.0, "duplicate_calls": 0.0}


def item(parts: Mapping[str, float], *, calls: int = 2, turns: int = 2) -> GroupItem:
    return GroupItem(
        segments=(),
        tool_calls=calls,
        model_tokens=9,
        total_tokens=9,
        status="answered",
        num_turns=turns,
        parts=parts,
    )


def rewarded(rule: PlanningReward, items: list[GroupItem], scores: list[Score]) -> list[Reward]:
    return rule.rewards(
        RewardGroup(
            task=Task("q", "?", ()),
            items=items,
            predictions=[""] * len(items),
            scores=scores,
            has_answers=True,
            dialect=TOOL_DIALECT,
        )
    )


@pytest.mark.parametrize(
    ("parts", "calls", "turns", "terms"),
    [
        (GOOD, 2, 1, (1, 1, 0, 0)),
        (GOOD, 0, 4, (1, 1, 0.75, 0)),
        (GOOD | {"early_calls": 1}, 2, 2, (1, 0.5, 0.5, 0)),
        (GOOD | {"early_calls": 9}, 2, 2, (1, 0, 0.5, 0)),
        (GOOD | {"duplicate_calls": 2}, 2, 2, (1, 1, 0.5, 0.5)),
        (GOOD | {"bad_plans": 1, "plans": 2}, 2, 2, (0, 0, 0.5, 0)),
        ({"plans": 0, "duplicate_calls": 0}, 2, 2, (0, 0, 0.5, 0)),
    ],
)
def test_terms_come_from_the_figures_of_the_environment(
    parts: Mapping[str, float], calls: int, turns: int, terms: tuple[float, ...]
) -> None:
    found = PlanningTerms.of(item(parts, calls=calls, turns=turns))
    assert found == PlanningTerms(*map(float, terms))


def test_rollouts_of_other_environments_get_their_score_alone() -> None:
    rule = PlanningReward(plan_weight=0.5)
    made = rewarded(rule, [item({}), item(GOOD)], [Score(1.0, True, "qa"), Score(None, None, "qa")])
    assert made == [Reward(1.0), Reward(None)]


def test_weights_are_off_by_default_and_turns_cost_right_answers_only() -> None:
    items = [item(GOOD, turns=4), item(GOOD, turns=4)]
    scores = [Score(1.0, True, "qa"), Score(0.0, False, "qa")]
    assert [one.total for one in rewarded(PlanningReward(), items, scores)] == [1.0, 0.0]
    assert [one.total for one in rewarded(PlanningReward(turn_penalty=0.4), items, scores)] == [0.7, 0.0]


def test_weights_that_could_turn_the_order_around_are_refused() -> None:
    with pytest.raises(ConfigError, match="have the sum 1; below 1"):
        load_config(RlOptions, data={"reward": {"type": "planning", "plan_weight": 0.5, "turn_penalty": 0.5}})


figures = st.fixed_dictionaries(
    {name: st.integers(0, 5).map(float) for name in ("plans", "bad_plans", "early_calls", "duplicate_calls")}
)
items_of = st.builds(
    lambda parts, calls, turns: item(parts, calls=calls, turns=turns), figures, st.integers(0, 6), st.integers(1, 9)
)
rules = (
    st.lists(st.floats(0, 1), min_size=4, max_size=4)
    .map(lambda weights: [weight / (sum(weights) + 1e-3) if sum(weights) else 0.0 for weight in weights])
    .map(
        lambda one: PlanningReward(plan_weight=one[0], order_weight=one[1], turn_penalty=one[2], repeat_penalty=one[3])
    )
)


@given(rules, st.lists(st.tuples(items_of, st.booleans(), st.floats(0, 1)), min_size=2, max_size=8), st.booleans())
def test_no_wrong_answer_scores_above_a_right_one(
    rule: PlanningReward, group: list[tuple[GroupItem, bool, float]], is_binary: bool
) -> None:
    # A partial score counts as right from 0.5 on.
    scores = [
        Score(float(right), right, "qa") if is_binary else Score(share, share >= 0.5, "qa") for _, right, share in group
    ]
    made = rewarded(rule, [one for one, _, _ in group], scores)
    totals = [(one.total, score.correct) for one, score in zip(made, scores, strict=True) if one.total is not None]
    right = [total for total, is_right in totals if is_right]
    wrong = [total for total, is_right in totals if not is_right]
    assert not right or not wrong or max(wrong) <= min(right)
