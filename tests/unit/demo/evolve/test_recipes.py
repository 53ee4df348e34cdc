"""Recipes of AgentEvolver: what runs, in which order, and what each instance reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from treadle.core.config import load_config, parse_toml
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.evolve.world import LedgerWorld
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.order import flow_addresses

ROOT = Path(__file__).resolve().parents[4]
CONFIG = ROOT / "configs" / "evolve-small.toml"
GUIDE = ROOT / "docs" / "guides" / "evolve.md"
WITHOUT = ('rl.experience.rollout_mode="woexp"', 'rl.credit="outcome"')


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Any]:
    """Return the tables that the benchmark fills in."""
    _, tables = LedgerWorld(num_train=80).write(tmp_path / "world")
    write_byte_tokenizer(tmp_path / "tokenizer")
    for name in ("tutor", "task_writer"):
        tables["models"][name] = {"server": {"tokenizer": str(tmp_path / "tokenizer")}}
    return tables


def inputs(config: TreadleConfig) -> dict[str, dict[str, list[str]]]:
    """Return the inputs of all instances of a flow, in their order."""
    made = {str(one): instance(config, one).inputs for one in flow_addresses(config)}
    return {address: {name: list(map(str, read)) for name, read in bound.items()} for address, bound in made.items()}


def test_policy_is_trained_on_tasks_that_were_made_and_its_start_on_others(places: dict[str, Any]) -> None:
    found = inputs(load_config(TreadleConfig, (CONFIG,), data=places))
    assert list(found) == [
        "1/questions@seed", "1/exploration", "1/questions",
        "1/rollouts@tutor", "1/scores@tutor", "1/sft_rows", "1/sft",
        "1/rollouts@start", "1/scores@start", "1/experience",
        "1/rollouts@phase-1", "1/scores@phase-1", "1/selection@phase-1", "1/rl@phase-1",
        "1/rollouts@policy", "1/scores@policy", "1/report",
    ]  # fmt: skip
    assert found["1/exploration"]["questions"] == ["1/questions@seed"]
    assert found["1/questions"]["exploration"] == ["1/exploration"]
    for address in ("1/rollouts@tutor", "1/scores@tutor", "1/sft_rows"):
        assert found[address]["questions"] == ["1/questions@seed"]
    for address in ("1/rollouts@start", "1/rollouts@phase-1", "1/rollouts@policy"):
        assert found[address]["questions"] == ["1/questions"]
    assert found["1/experience"]["rollouts"] == ["1/rollouts@start"]
    assert found["1/rl@phase-1"]["experience"] == ["1/experience"]
    assert found["1/rl@phase-1"]["checkpoint"] == ["1/sft"]


def test_training_without_hints_and_attribution_reads_no_experience(places: dict[str, Any]) -> None:
    config = load_config(TreadleConfig, (CONFIG,), WITHOUT, data=places)
    assert not inputs(config)["1/rl@phase-1"].get("experience")
    assert config.rl.credit.type == "outcome" and config.rl.max_steps == 24


def test_guide_has_a_flow_that_can_be_planned() -> None:
    block = re.search(r"```toml\n(.*?)```", GUIDE.read_text(), re.S)
    assert block is not None
    config = load_config(TreadleConfig, data=parse_toml(block[1]))
    assert list(map(str, flow_addresses(config))) == [
        "1/questions@seed", "1/exploration", "1/questions", "1/rollouts@start", "1/scores@start", "1/experience",
        "1/rollouts@phase-1", "1/scores@phase-1", "1/selection@phase-1", "1/rl@phase-1",
        "1/rollouts@policy", "1/scores@policy", "1/report",
    ]  # fmt: skip
