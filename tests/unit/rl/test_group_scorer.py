"""The scorer of an engine: with computer algebra if the plan requires it, or without."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from support.training.verl_plans import verl_plan

from treadle.agent.contract import Outcome, Task
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.core import engines
from treadle.core.errors import ConfigError
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.scorers.registry import SCORERS
from treadle.rl.config import AlgebraLimits
from treadle.rl.engine.scorer import open_scorer, require_algebra
from treadle.rl.groups.group import Group
from treadle.rl.rewards.base import GroupItem
from treadle.rl.training.plan import RlPlan

ENVIRONMENTS = {"default": QuestionSettings()}
LOCKS = Path(engines.__file__).with_name("locks")
SUM = GroupItem.from_text(r"<think>a</think><answer>\boxed{x+1}</answer>", dialect=TOOL_DIALECT)

NONE = GroupItem.from_text("<think>a</think><answer>none</answer>", dialect=TOOL_DIALECT)


def test_environment_without_algebra_is_refused_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)  # As if it were not installed.
    plan = verl_plan(algebra=AlgebraLimits())
    with pytest.raises(ConfigError, match=r"environment of verl has no math-verify; run `treadle env install verl`"):
        require_algebra(plan)
    with pytest.raises(ConfigError, match="math-verify"), open_scorer(plan, ENVIRONMENTS):
        pass
    require_algebra(verl_plan())


def test_answers_that_need_algebra_are_unequal_without_it() -> None:
    group = cast(Group, SimpleNamespace(items=[SUM], trajectories=[None]))
    with open_scorer(verl_plan(), ENVIRONMENTS) as scorer:
        (reward,) = scorer.rewards(group, Task("q", "?", domain="math", answers=("1+x",)), 0)
    assert (reward.score, reward.scorer) == (0.0, "math_rules")


@pytest.mark.parametrize("rule", ["workspace_tests", "outcome"])
@pytest.mark.parametrize(("outcome", "reward"), [(Outcome(1.0, True), 1.0), (Outcome(0.0, False), 0.0), (None, None)])
def test_outcome_gives_the_reward(outcome: Outcome | None, reward: float | None, rule: str) -> None:
    made = SimpleNamespace(trajectory=SimpleNamespace(outcome=outcome))
    group = cast(Group, SimpleNamespace(items=[SUM], trajectories=[made]))
    with open_scorer(verl_plan(), ENVIRONMENTS) as scorer:
        (found,) = scorer.rewards(group, Task("q", "?", domain="task", scorer=rule), 0)
    assert found.scored == (reward is not None) and found.scorer == rule
    assert found.reward == (reward or 0.0)


STEPS = """
from treadle.api import Score, Scorer

class Steps(Scorer):
    PARTS = {"words": "words of the answer"}
    SCALE = "reward"

    async def score(self, task, rollout):
        if rollout.answer == "none":
            raise ValueError(task.payload["secret"])
        return Score(task.payload["weight"] * len(rollout.answer), parts={"words": 1})
"""


def test_scorer_of_a_user_gives_the_reward_in_an_engine(tmp_path: Path) -> None:
    """The plan brings the file of the class into the engine's process."""
    file = tmp_path / "steps.py"
    file.write_text(STEPS)
    entry = SCORERS.parse({"type": "steps.py:Steps", "code_file": str(file)})
    plan = RlPlan.from_json(verl_plan().model_copy(update={"scorers": {"steps": entry}}).to_json())
    made = [
        SimpleNamespace(trajectory=SimpleNamespace(
            status="answered", truncated=False, segments=item.segments, calls=(), turn_rewards=(), reward=None,
            outcome=None,
        )) for item in (SUM, NONE)
    ]  # fmt: skip
    group = cast(Group, SimpleNamespace(items=[SUM, NONE], trajectories=made))
    task = Task("q", "?", domain="task", scorer="steps", payload={"weight": -2.5, "secret": "hidden words"})
    with open_scorer(plan, ENVIRONMENTS) as scorer:
        scored, unscored = scorer.rewards(group, task, (0.0, 0.0))
    assert (scored.reward, scored.scored, scored.scorer) == (-7.5, True, "steps")
    assert (unscored.reward, unscored.scored) == (-7.5, False), "left out, with the mean of its group"


def test_algebra_limits_are_part_of_the_plan() -> None:
    plan = verl_plan(algebra=AlgebraLimits(limit_s=3.0))
    assert RlPlan.from_json(plan.to_json()).algebra == AlgebraLimits(limit_s=3.0)
    assert RlPlan.from_json(verl_plan().to_json()).algebra is None


@pytest.mark.parametrize("lock", ["trl-cpu", "trl-cuda", "verl-cpu", "verl-cuda"])
def test_reward_engines_have_the_same_algebra(lock: str) -> None:
    pins = dict(
        line.split(" ")[0].split("==") for line in (LOCKS / f"{lock}.txt").read_text().splitlines() if "==" in line
    )
    assert (pins["math-verify"], pins["latex2sympy2-extended"], pins["sympy"]) == ("0.9.0", "1.11.0", "1.14.0")
    # The versions that latex2sympy2-extended has a parser for.
    assert pins["antlr4-python3-runtime"] in ("4.9.3", "4.11.0", "4.13.2")
