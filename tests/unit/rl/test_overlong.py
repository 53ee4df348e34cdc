"""The penalty for long responses, alone and in the rewards of a group."""

from __future__ import annotations

import pytest

from treadle.agent.contract import Task
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.core.answers.score import Score
from treadle.core.config import load_config
from treadle.rl.config import RlOptions
from treadle.rl.rewards.base import FAILED, GroupItem, RewardGroup
from treadle.rl.rewards.outcome import OutcomeReward
from treadle.rl.rewards.overlong import overlong_penalty
from treadle.rl.rewards.rewarded import RewardedItem, reward_items


def rewarded(
    *lengths: int, statuses: tuple[str, ...] = (), scores: tuple[float | None, ...] = ()
) -> list[RewardedItem]:
    """Return the rewards of rollouts with a limit of 800 tokens, of which each wrote 10; all are right."""
    count = len(lengths)
    items = [
        GroupItem.from_text("", status=status, model_tokens=10, total_tokens=length, dialect=TOOL_DIALECT)
        for length, status in zip(lengths, statuses or ("answered",) * count, strict=True)
    ]
    group = RewardGroup(
        task=Task("q", "?", ()),
        items=items,
        predictions=[""] * count,
        scores=[Score(score, score is not None, "own") for score in scores or (1.0,) * count],
        has_answers=False,
        dialect=TOOL_DIALECT,
    )
    return reward_items(OutcomeReward(), group, overlong_limit=800)


@pytest.mark.covers("planning-20")
def test_penalty_is_that_of_the_published_buffer() -> None:
    lengths = (0, 7168, 7680, 8192, 9000)
    assert [overlong_penalty(length, 8192) for length in lengths] == [0.0, 0.0, -0.5, -1.0, -1.0]


@pytest.mark.covers("planning-20")
def test_penalty_counts_the_response_with_its_results_and_is_a_part_of_the_reward() -> None:
    made = rewarded(100, 750, 800)
    assert [item.reward for item in made] == [1.0, 0.5, 0.0]
    assert [item.parts for item in made] == [{"overlong": 0.0}, {"overlong": -0.5}, {"overlong": -1.0}]


def test_unscored_rollouts_get_the_mean_of_penalised_rewards() -> None:
    made = rewarded(100, 800, 800, 800, statuses=("answered", "answered", FAILED, "answered"), scores=(1, 1, 1, None))
    assert [item.reward for item in made] == [1.0, 0.0, 0.5, 0.5]
    assert [item.scored for item in made] == [True, True, False, False]


def test_options_name_the_part_if_there_is_a_penalty() -> None:
    assert "overlong" not in load_config(RlOptions, data={}).reward_parts
    with_penalty = load_config(RlOptions, data={"overlong": "buffer", "reward": "outcome"})
    assert list(with_penalty.reward_parts) == ["overlong"]
