"""Fine-tuning rows are made from pools, or from scored rollouts of the policy: order, inputs and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.stage import Instance
from treadle.tasks.catalog import flow_instances, instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.flow_plan import FlowPlan
from treadle.tasks.planning.order import flow_addresses

ENDPOINTS = [{"url": "http://127.0.0.1:1/v1"}]
MODELS: dict[str, Any] = {
    "base": {"model": "m", "server": {"type": "vllm", "model": "org/base", "max_model_len": 64}},
    "tuned": {"model": "m", "server": {"type": "vllm", "model": "1/sft"}},
    "large": {"model": "large", "endpoints": ENDPOINTS},
}
FLOW = {"stages": ["sft_rows", "sft", "rollouts", "scores"], "models": ["base", "tuned"], "iterations": 2}
GUESS = {"type": "support.rollouts.dialogues:Guess"}
QUESTION = {"search": {"enabled": False}}


def config(**more: Any) -> TreadleConfig:
    data = {"models": MODELS, "environment": GUESS, "flow": FLOW, "sft": {"model": "org/base"}, **more}
    return load_config(TreadleConfig, data=data)


def at(address: str, **more: Any) -> Instance:
    return instance(config(**more), Address.parse(address))


def inputs(address: str, **more: Any) -> dict[str, list[str]]:
    return {name: list(map(str, bound)) for name, bound in at(address, **more).inputs.items()}


@pytest.fixture
def questions(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "tasks.jsonl").write_text('{"question": "Guess.", "secret": 1}\n')
    return {"sources": [{"path": str(tmp_path / "tasks.jsonl"), "payload": ["secret"]}]}


def test_rows_of_tasks_without_gold_answers_are_made_from_the_policys_rollouts(questions: dict[str, Any]) -> None:
    assert list(map(str, flow_addresses(config())))[:7] == [
        "1/questions", "1/rollouts@base", "1/scores@base", "1/sft_rows", "1/sft", "1/rollouts@tuned", "1/scores@tuned",
    ]  # fmt: skip
    expected = {"rollouts": ["1/rollouts@base"], "scores": ["1/scores@base"], "questions": ["1/questions"]}
    assert inputs("1/sft_rows") == expected
    assert at("1/sft_rows").settings.options.trajectories == "rollouts"
    assert len(flow_instances(config(questions=questions))) == 2 * 7


def test_key_decides_for_tasks_with_gold_answers() -> None:
    pools = {"pools": ["1/pools"], "questions": ["1/questions"]}
    assert inputs("1/sft_rows", environment=QUESTION) == pools
    own = inputs("1/sft_rows", environment=QUESTION, sft_rows={"trajectories": "rollouts"})
    assert own["rollouts"] == ["1/rollouts@base"] and "pools" not in own
    default, named = (at("1/sft_rows", environment=QUESTION, sft_rows=rows) for rows in ({}, {"trajectories": "pools"}))
    assert default.settings == named.settings


def test_pools_of_tasks_without_gold_answers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"1/sft_rows: sft_rows.trajectories = pools.*no gold answers; leave the key"):
        at("1/sft_rows", sft_rows={"trajectories": "pools"})
    with pytest.raises(ConfigError, match="leave pools out of flow.stages: sft_rows is made from rollouts and scores"):
        at("1/pools")


def test_policy_of_pools_is_rolled_out_even_if_it_is_not_measured() -> None:
    roles = {"roles": {"policy": {"model": "large"}}}
    addresses = list(map(str, flow_addresses(config(pools=roles))))
    assert addresses[1:4] == ["1/rollouts@large", "1/scores@large", "1/sft_rows"]
    assert "1/rollouts@base" in addresses
    assert inputs("1/sft_rows", pools=roles)["scores"] == ["1/scores@large"]


def test_next_iteration_rolls_out_its_own_starting_policy() -> None:
    first, second = at("1/rollouts@base"), at("2/rollouts@base")
    assert (first.settings.model.server.model, second.settings.model.server.model) == ("org/base", "1/sft")
    assert inputs("1/rollouts@base")["checkpoint"] == [] and inputs("2/rollouts@base")["checkpoint"] == ["1/sft"]
    assert at("2/rollouts@tuned").settings.model.server.model == "2/sft"
    assert inputs("2/sft")["checkpoint"] == ["1/sft"]
    measured = at("2/rollouts@base", environment=QUESTION)
    assert measured.settings.model.server.model == "org/base", "no rows are made from it"


def test_users_own_server_is_asked_for_the_starting_policy() -> None:
    flow = {**FLOW, "models": ["large"]}
    assert at("2/rollouts@large", flow=flow).settings.model.model == "1/sft"
    assert inputs("2/rollouts@large", flow=flow)["checkpoint"] == ["1/sft"]


def test_rows_of_a_checkpoint_that_they_train_are_a_cycle(questions: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="depends on its own output"):
        flow_instances(config(flow={**FLOW, "models": ["tuned"], "iterations": 1}, questions=questions))


def test_models_that_episodes_ask_are_not_rolled_out() -> None:
    environment = {"type": "support.rollouts.dialogues:Asking"}
    models = {"human": MODELS["large"], **MODELS}
    assert FlowPlan(config(models=models, environment=environment, flow={})).compared_models() == (
        "base",
        "tuned",
        "large",
    )
    others = {"environments": {"other": environment}}
    assert "human" not in FlowPlan(config(models=models, flow={}, **others)).compared_models(), "not even if unused"


@pytest.mark.parametrize(
    ("scorer", "tools", "missing"),
    [
        ("workspace_tests", {}, 'a tool with type = "workspace"'),
        ("workspace_tests", {"w": {"type": "workspace", "max_calls": 0}}, 'a tool with type = "workspace"'),
        ("workspace_tests", {"w": {"type": "workspace"}}, None),
        ("outcome", {"f": {"type": "mcp", "command": ["server"]}}, "a class with a method `outcome`"),
        ("outcome", {"w": {"type": "workspace"}}, None),
    ],
)
def test_scorer_of_outcomes_needs_a_tool_that_gives_them(
    tmp_path: Path, scorer: str, tools: dict[str, Any], missing: str | None
) -> None:
    (tmp_path / "bugs.jsonl").write_text('{"question": "Fix it.", "files": {}, "tests": {}}\n')
    source = {"path": str(tmp_path / "bugs.jsonl"), "payload": ["files", "tests"], "scorer": scorer}
    settings = {"questions": {"sources": [source]}, "environment": {**QUESTION, "tools": tools}}
    if missing is None:
        at("1/questions", **settings)
        return
    with pytest.raises(ConfigError, match=f"scorer = '{scorer}' of bugs.jsonl needs {missing} in environment.tools"):
        at("1/questions", **settings)


@pytest.mark.parametrize(
    ("api", "tools", "refusal"),
    [
        ("completions", {}, r"1/pools: redundant_mod.* edit native calls as messages, but models.large is asked with"),
        ("chat", {"w": {"type": "workspace"}}, r"1/pools: a rollout with tools that keep state \(environment.tools\)"),
        ("chat", {"w": {"type": "workspace", "max_calls": 0}}, None),
        ("chat", {"m": {"type": "mcp", "url": "http://127.0.0.1:1/mcp"}}, None),
        ("chat", {"m": {"type": "mcp", "url": "http://127.0.0.1:1/mcp", "per_episode": True}}, "that keep state"),
    ],
)
def test_operators_edit_native_calls_over_chat_and_are_refused_otherwise(
    api: str, tools: dict[str, Any], refusal: str | None
) -> None:
    settings: dict[str, Any] = {
        "models": {**MODELS, "large": {**MODELS["large"], "api": api}},
        "environment": {**QUESTION, "dialect": "functions", "tools": tools},
        "pools": {"roles": {"policy": {"model": "large"}}},
    }
    if refusal is None:
        at("1/pools", **settings)
        return
    with pytest.raises(ConfigError, match=refusal):
        at("1/pools", **settings)
