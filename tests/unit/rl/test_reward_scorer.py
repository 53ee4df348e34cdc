"""One scorer: what a reward calls right is what the stage `scores` calls right, in training and in validation."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables.score_tables import gold, rollout
from support.training.rewards import group_rewards

from treadle.agent.dialects.base import Segment
from treadle.agent.dialects.tags import TOOL_DIALECT, result_block, tokenise
from treadle.agent.trajectory import STATUSES
from treadle.environments.scorers.registry import scorer_named
from treadle.environments.scorers.scoring import OpenScorers
from treadle.eval.answers import Answer
from treadle.eval.scores import scored_row
from treadle.rl.rewards.base import GroupItem
from treadle.rl.training.figures import validation_figures

GOLD = [
    (("12",), (), "math"),
    ((r"\frac{1}{2}", "0.5"), (), "math"),
    (("Eiffel Tower", "La Tour Eiffel"), (), "qa"),
    (("yes",), (), "qa"),
    (("B",), ("Rome", "Oslo"), "qa"),
    (("Oslo",), ("Rome", "Oslo"), "choice"),
]
ANSWERS = ["12", "12.0", "1/2", "the Eiffel Tower in Paris", "Yes it is", "yes", "B", "(b) Oslo", "", "{", r"\frac12"]
FORMS = [
    r"<think>a</think><answer>\boxed{%s}</answer>",
    "<think>a</think><answer>%s</answer>",
    r"<answer>\boxed{%s}</answer> or \boxed{13}",
    r"so \boxed{%s}",
    r"<think>\boxed{%s}",
]


def both(segments: list[Segment], status: str, asked: Any) -> tuple[dict[str, Any], Any]:
    """Return the row of `scores`, and the reward, of one trajectory."""
    parts = [(part.kind, part.text) for part in segments]
    row = rollout("r1", "q1", parts, status=status, domain=asked[2])
    assert [part["text"] for part in orjson.loads(row["segments"])] == [part.text for part in segments]
    item = GroupItem(segments=tuple(segments), tool_calls=2, model_tokens=9, total_tokens=9, status=status)
    (reward,) = group_rewards([item], asked[0], asked[2], 0.1, 0.1, choices=asked[1], dialect=TOOL_DIALECT)
    answer = Answer.of(row | {"num_agent_ids": 0}, gold(*asked))
    return scored_row(answer, OpenScorers({}).rule_score(answer), scorer_named(asked[2], {})), reward


@pytest.mark.covers("pareto-34")
@given(
    st.sampled_from(GOLD),
    st.sampled_from(FORMS),
    st.one_of(st.sampled_from(ANSWERS), st.text(max_size=12)),
    st.sampled_from([status for status in STATUSES if status != "failed"]),
    st.booleans(),
)
def test_reward_and_scores_agree_on_every_text(
    asked: Any, form: str, answer: str, status: str, with_result: bool
) -> None:
    segments = tokenise(form % answer.replace("%", ""), model_text=True, dialect=TOOL_DIALECT)
    if with_result:
        quoted = result_block(r"<answer>\boxed{12}</answer>", TOOL_DIALECT)
        segments = [*tokenise("<search>q</search>", TOOL_DIALECT), Segment("result", quoted, 0, 0), *segments]
    row, reward = both(segments, status, asked)
    assert (row["score"], row["prediction"], row["scorer"]) == (reward.score, reward.answer, reward.scorer)


@pytest.mark.covers("pareto-34")
def test_validation_and_training_report_the_same_correctness_for_the_same_text() -> None:
    items = [
        GroupItem.from_text(FORMS[0] % answer, tool_calls=calls, model_tokens=length, dialect=TOOL_DIALECT)
        for answer, calls, length in (("Eiffel Tower", 0, 10), ("tower", 3, 40), ("Louvre", 9, 90))
    ]
    gold = ("Eiffel Tower",)
    training = group_rewards(items, gold, "qa", 0.5, 0.5, scale=1.0, flat_penalty=True, dialect=TOOL_DIALECT)
    alone = [group_rewards([item], gold, "qa", 0.0, 0.0, dialect=TOOL_DIALECT)[0] for item in items]
    assert [reward.score for reward in alone] == [reward.score for reward in training]
    assert [reward.parts["format_ok"] for reward in alone] == [reward.parts["format_ok"] for reward in training]
    figures = validation_figures(alone, ["qa"] * 3)
    assert figures["score"] == pytest.approx(sum(reward.score for reward in training) / 3)
