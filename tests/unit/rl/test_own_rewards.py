"""Reward and credit rules of users: one file, in an engine's scorer and job, and what is refused of them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.training.verl_plans import verl_plan

from treadle.agent.contract import Outcome, Task
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.core.config import load_config
from treadle.core.errors import ConfigError, EngineError
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.scorers.registry import SCORERS
from treadle.rl.config import RlOptions, RlSettings
from treadle.rl.credit.base import CreditGroup, token_advantages, token_credits, turn_credits
from treadle.rl.credit.outcome import OutcomeCredit, group_advantages
from treadle.rl.credit.registry import CREDITS, is_default
from treadle.rl.engine.errors import BadPlan
from treadle.rl.engine.rows import plan_of, require_unedited
from treadle.rl.engine.scorer import open_scorer
from treadle.rl.groups.group import Group
from treadle.rl.rewards.base import GroupItem
from treadle.rl.rewards.efficiency import EfficiencyReward
from treadle.rl.rewards.outcome import OutcomeReward
from treadle.rl.rewards.rewarded import RewardedItem
from treadle.rl.training.engine_job import import_folders
from treadle.rl.training.figures import step_figures
from treadle.rl.training.plan import RlPlan

ENVIRONMENTS = {"default": QuestionSettings()}
REWARD = '''
from treadle.api import Reward, RewardGroup, RewardRule

class Frugal(RewardRule):
    """The score, less a price for each call."""

    PARTS = {"price": "price of all calls", "level": "level of the task"}
    price: float = 0.25
    """Price of a call."""

    def rewards(self, group: RewardGroup) -> list[Reward]:
        level = group.task.payload.get("level")
        return [
            Reward((score.score or 0.0) - self.price * item.tool_calls,
                   {"price": self.price * item.tool_calls, "level": level}, ("called",) if item.tool_calls else ())
            for item, score in zip(group.items, group.scores, strict=True)
        ]
'''
CREDIT = '''
from treadle.api import CreditGroup, CreditRule

class LastTurn(CreditRule):
    """The reward for the last turn, and nothing for the others."""

    def advantages(self, group: CreditGroup):
        return [[0.0] * (item.num_turns - 1) + [reward.reward]
                for item, reward in zip(group.items, group.rewards, strict=True)]
'''
RIGHT = r"<think>a</think><answer>\boxed{12}</answer>"


def item(text: str = RIGHT, **counts: Any) -> GroupItem:
    return GroupItem.from_text(text, dialect=TOOL_DIALECT, **counts)


ITEMS = [item(tool_calls=2), item(RIGHT.replace("12", "7")), item(status="failed")]
TASK = Task("q1", "?", domain="math", answers=("12",), payload={"level": 3})


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(REWARD + CREDIT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan_with(reward: Any, **keys: Any) -> RlPlan:
    return verl_plan(reward=reward, **keys)


def rewarded(plan: RlPlan, items: Sequence[GroupItem] = ITEMS, task: Task = TASK, step: int = 1) -> list[RewardedItem]:
    group = cast(Group, SimpleNamespace(items=items, trajectories=[None] * len(items)))
    with open_scorer(plan, ENVIRONMENTS) as scorer:
        return scorer.rewards(group, task, step)


def test_rule_in_a_file_rewards_the_groups_of_an_engine(code: Path) -> None:
    first, second, lost = rewarded(plan_with({"type": "mine.py:Frugal", "price": 0.5}))
    assert (first.reward, first.score, first.notes) == (0.0, 1.0, ("called",))
    assert first.parts == {"level": 3.0, "price": 1.0} and second.parts == {"level": 3.0, "price": 0.0}
    assert (second.reward, second.scored) == (0.0, True)
    assert not lost.scored and lost.parts == {}
    figures = step_figures([[first, second, lost]])
    assert figures["parts"] == {"level": 3.0, "price": 0.5} and figures["num_rollouts"] == 2


def test_rule_is_read_back_from_the_job_of_an_engine(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_with({"type": "mine.py:Frugal", "price": 0.5}, engine="trl", credit="mine.py:LastTurn")
    monkeypatch.chdir("/")
    again = plan_of({"plan": json.loads(plan.to_json())})
    assert again == plan and again.options.reward.described == "mine.py:Frugal (price 0.5)"
    assert len(again.options.reward.code_sha256) == 64
    assert [one.reward for one in rewarded(again)] == [0.0, 0.0, 0.0]


def test_rule_that_was_edited_after_the_plan_was_made_is_refused(code: Path) -> None:
    (code / "scorers.py").write_text(
        "from treadle.api import Scorer\n\nclass Own(Scorer):\n"
        "    async def score(self, task, rollout):\n        return 1.0\n"
    )
    plans = [
        plan_with("mine.py:Frugal"),
        plan_with("outcome", engine="trl", credit="mine.py:LastTurn"),
        plan_with("outcome").model_copy(update={"scorers": {"own": SCORERS.parse("scorers.py:Own")}}),
    ]
    jobs = [{"plan": json.loads(plan.to_json())} for plan in plans]
    for job in jobs:
        require_unedited(job)
    for name in ("mine.py", "scorers.py"):
        (code / name).write_text((code / name).read_text() + "# edited\n")
    for job in jobs:
        with pytest.raises(BadPlan, match=r"(mine|scorers)\.py was edited after the run had started"):
            require_unedited(job)


def test_rule_in_a_module_is_imported_from_its_folder_in_an_engine(tmp_path: Path) -> None:
    package = tmp_path / "far" / "shaping"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(REWARD + CREDIT)
    program = (
        "import json; from treadle.rl.config import RlOptions, RlSettings; "
        "from treadle.rl.training.plan import RlPlan; from treadle.rl.training.engine_job import import_folders; "
        "options = RlOptions(reward='shaping:Frugal', credit='shaping:LastTurn'); "
        "folders = [str(folder) for folder in import_folders(RlSettings(options=options))]; "
        "plan = json.loads(RlPlan(options=options, num_rows=8).to_json()); "
        "print(json.dumps({'plan': plan, 'import_folders': folders}))"
    )
    path = f"{package.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    dumped = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    job = json.loads(dumped.stdout)
    assert job["import_folders"] == [str(package.parent)]
    with pytest.raises(EngineError, match="shaping"):
        plan_of({**job, "import_folders": []})
    assert type(plan_of(job).options.reward).__name__ == "Frugal"
    assert [sys.path.pop()] == job["import_folders"]
    assert import_folders(RlSettings()) == ()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('x')", "it raised KeyError: 'x'"),
        ("return []", "it returned 0 rewards for 2 rollouts"),
        ("return [Reward(1.0)]", "it returned 1 rewards for 2 rollouts"),
        ("return [1.0, 2.0]", "it returned float, not treadle.api.Reward"),
        ("return [Reward(float('nan'))] * 2", "it returned nan as a total"),
        ("return [Reward(float('inf'))] * 2", "it returned inf as a total"),
        ("return [Reward(10**400)] * 2", "as a total"),
        ("return [Reward('1')] * 2", "it returned a value of type str as a total"),
        ("return [Reward(1.0, {'a': float('nan')})] * 2", "its part a is nan"),
        ("return [Reward(1.0, {'b': 1.0})] * 2", "a part that its PARTS do not declare; they have: a"),
    ],
)
def test_unusable_reward_is_an_error_that_names_rule_and_task(body: str, said: str, code: Path) -> None:
    (code / "bad.py").write_text(
        "from treadle.api import Reward, RewardRule\n\nclass Bad(RewardRule):\n    PARTS = {'a': 'a part'}\n\n"
        f"    def rewards(self, group):\n        {body}\n"
    )
    with pytest.raises(EngineError) as caught:
        rewarded(plan_with("bad.py:Bad"))
    assert str(caught.value).startswith("the reward rule bad.py:Bad failed on task q1: ") and said in str(caught.value)


def test_errors_of_rules_do_not_quote_the_payload(code: Path) -> None:
    task = replace(TASK, payload={"key": "the hidden key"})
    for body in (
        "raise KeyError(group.task.payload['key'])",
        "return [Reward(group.task.payload['key'])] * 2",
        "return [Reward(1.0, {group.task.payload['key']: 1.0})] * 2",
        "return [Reward(1.0, {'a': group.task.payload['key']})] * 2",
    ):
        (code / "bad.py").write_text(
            "from treadle.api import CreditRule, Reward, RewardRule\n\nclass Bad(RewardRule):\n"
            f"    PARTS = {{'a': 'a part'}}\n\n    def rewards(self, group):\n        {body}\n\n"
            "class Worse(CreditRule):\n    def advantages(self, group):\n"
            f"        {body.replace('Reward(', '(')}\n"
        )
        with pytest.raises(EngineError) as caught:
            rewarded(plan_with("bad.py:Bad"), task=task)
        with pytest.raises(EngineError) as worse:
            rewards = rewarded(plan_with("outcome"))[:2]
            turn_credits(CREDITS.parse("bad.py:Worse"), CreditGroup(task=task, items=ITEMS[:2], rewards=rewards))
        for error in (caught, worse):
            assert "hidden key" not in "".join(traceback.format_exception(error.value))


def test_item_without_a_total_has_no_advantage() -> None:
    unknown = Task("q1", "?", domain="task", scorer="outcome")
    trajectories = [
        SimpleNamespace(trajectory=SimpleNamespace(outcome=outcome)) for outcome in (Outcome(3.0), None, Outcome(1.0))
    ]
    group = cast(Group, SimpleNamespace(items=[item()] * 3, trajectories=trajectories))
    for rule in ("efficiency", "outcome"):
        reward = {"type": rule, **({"sigma_tool": 0.1, "sigma_length": 0.1} if rule == "efficiency" else {})}
        with open_scorer(plan_with(reward), ENVIRONMENTS) as scorer:
            made = scorer.rewards(group, unknown, 1)
        assert [(one.reward, one.scored, one.score) for one in made] == [
            (3.0, True, 1.0),
            (2.0, False, None),
            (1.0, True, 1.0),
        ]
        assert all(one.parts == {} for one in made)


def test_outcome_is_the_score_alone() -> None:
    plan = plan_with("outcome")
    assert isinstance(plan.options.reward, OutcomeReward)
    assert [one.reward for one in rewarded(plan)] == [1.0, 0.0, 0.5]


def test_types_are_found_and_their_keys_are_checked(code: Path) -> None:
    assert load_config(RlOptions).reward == EfficiencyReward() and is_default(load_config(RlOptions).credit)
    assert load_config(RlOptions, data={"reward": {"scale": 1.0}}).reward == EfficiencyReward(scale=1.0)
    assert load_config(RlOptions, overrides=["reward.scale=1.0"]).reward == EfficiencyReward(scale=1.0)
    for given, said in (
        ({"reward": {"scal": 1.0}}, "reward.scal.*did you mean 'scale'"),
        ({"reward": {"type": "mine.py:Frugal", "cost": 1}}, "cost"),
        ({"reward": {"type": "outcome", "scale": 1.0}}, "scale"),
        (
            {"reward": "shortest"},
            "'reward': type = 'shortest' is unknown; known: efficiency, em, judge, outcome, planning",
        ),
        ({"credit": "gae"}, "'gae' is unknown; known: attribution, outcome"),
        ({"credit": "mine.py:Frugal"}, "not derived from treadle.api.CreditRule"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_config(RlOptions, data=given)


@pytest.mark.parametrize("engine", ["verl", "trl"])
def test_both_engines_take_another_credit_rule(engine: str, code: Path) -> None:
    from treadle.rl.curriculum import PhaseRollouts
    from treadle.rl.selection.settings import SelectionOptions
    from treadle.rl.training.phase_check import check_training

    keys = {"variant": "cuda", "reward": "outcome", "credit": "mine.py:LastTurn"}
    options = load_config(RlOptions, data={**keys, "engine": engine})
    assert options.credits_turns
    check_training(options, SelectionOptions(), PhaseRollouts(), "1/rl@phase-1")


def test_credit_rule_is_refused_next_to_a_critic_or_to_a_reward_with_its_parts(code: Path) -> None:
    (code / "parts.py").write_text(
        "from treadle.api import CreditRule\n\nclass Priced(CreditRule):\n    PARTS = {'price': 'paid'}\n"
        "    def advantages(self, group):\n        return [0.0] * len(group.items)\n"
    )
    for given, said in (
        ({"engine": {"type": "verl", "critic": True}, "credit": "mine.py:LastTurn"}, "but so does a critic"),
        ({"reward": "mine.py:Frugal", "credit": "parts.py:Priced"}, "both have parts called price"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_config(RlOptions, data=given)
    assert "price" in load_config(RlOptions, data={"reward": "outcome", "credit": "parts.py:Priced"}).reward_parts


def credited(rule: Any, *turns: int) -> list[list[float]]:
    items = [item(num_turns=number) for number in turns]
    rewards = rewarded(plan_with("outcome"), [item(), *[item(RIGHT.replace("12", "7"))] * (len(turns) - 1)])
    group = CreditGroup(task=TASK, items=items, rewards=rewards)
    return [advantages for advantages, _ in turn_credits(CREDITS.parse(rule), group)]


def test_credit_rule_gives_turns_their_advantages(code: Path) -> None:
    assert credited("mine.py:LastTurn", 3, 1) == [[0.0, 0.0, 1.0], [0.0]]
    assert credited("outcome", 2, 1) == [[pytest.approx(0.7071, abs=1e-4)] * 2, [pytest.approx(-0.7071, abs=1e-4)]]
    assert credited("outcome", 1, 1, 1)[0] == [group_advantages([1.0, 0.0, 0.0])[0]]

    class Similar(OutcomeCredit):
        pass

    assert not is_default(Similar()), "an engine would compute the usual advantages"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('x')", "it raised KeyError: 'x'"),
        ("return [1.0]", "it returned 1 advantages for 2 rollouts"),
        ("return [[1.0], [1.0, 2.0]]", "it returned 2 advantages for 1 turns"),
        ("return [float('nan'), 1.0]", "it returned nan, not a number"),
        ("return ['a', 1.0]", "it returned a value of type str, not a number"),
        ("return [Credit(1.0, {'odd': 1.0}), 1.0]", "it returned a part that its PARTS do not declare: share"),
        ("return [Credit(1.0, {'share': float('inf')}), 1.0]", "its part share is inf, not a number"),
    ],
)
def test_unusable_advantage_is_an_error_that_names_rule_and_task(body: str, said: str, code: Path) -> None:
    (code / "bad.py").write_text(
        "from treadle.api import Credit, CreditRule\n\nclass Bad(CreditRule):\n    PARTS = {'share': 's'}\n"
        f"    def advantages(self, group):\n        {body}\n"
    )
    with pytest.raises(EngineError) as caught:
        credited("bad.py:Bad", 1, 1)
    assert str(caught.value).startswith("the credit rule bad.py:Bad failed on task q1: ") and said in str(caught.value)


def test_ids_get_the_advantage_of_their_turn() -> None:
    assert token_advantages([1.0, 2.0], [0, 3], 5) == [1.0, 1.0, 1.0, 2.0, 2.0]
    # Cut off within the second turn, and before the third.
    assert token_advantages([1.0, 2.0, 3.0], [1, 3, 6], 4) == [0.0, 1.0, 1.0, 2.0]
    assert token_advantages([], [], 2) == [0.0, 0.0]
    assert math.fsum(token_advantages([1.0], [0], 0)) == 0.0


def test_sums_of_token_credits_are_the_advantages_of_sampled_ids() -> None:
    advantages, mask = token_advantages([3.0, -1.0, 0.5], [0, 3, 5], 7), [1, 1, 0, 1, 0, 1, 1]
    scores = token_credits(advantages, mask)
    assert scores == [0.0, 4.0, 0.0, -1.5, 0.0, 0.0, 0.5]
    sums = [math.fsum(scores[place:]) for place in range(7)]
    assert [value for value, kept in zip(sums, mask, strict=True) if kept] == [3.0, 3.0, -1.0, 0.5, 0.5]
    assert token_credits([1.0, 1.0], [0, 0]) == [0.0, 0.0]
