"""The configuration of SWEET-RL: sources of its values, and a flow whose data comes from the agent alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from treadle.cli.main import cli
from treadle.core.config import load_config
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.rl.dpo.presets import DPO_PRESETS
from treadle.tasks.catalog import flow_instances
from treadle.tasks.config import TreadleConfig

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "configs" / "sweet-llama-8b.toml"


def test_every_value_cites_its_source() -> None:
    table, uncited = "", []
    for line in CONFIG.read_text().splitlines():
        if line.startswith("["):
            table = line
        elif re.match(r"\s*(?:[\w.\"]+ *=|\{ path)", line) and not re.search(r"# (paper|command|here)\b", line):
            uncited.append((table, line))
    assert [line for _, line in uncited] == [
        "sources = [",
        'preset = "sweet-llama-8b"',
        'preset = "sweet-llama-8b-critic"',
    ]
    assert {"sweet-llama-8b", "sweet-llama-8b-critic"} < DPO_PRESETS.keys()


def inputs_of(config: TreadleConfig) -> dict[str, dict[str, list[str]]]:
    """Return address -> input -> the addresses that it is bound to."""
    return {
        str(one.address): {name: [str(at) for at in bound] for name, bound in one.inputs.items()}
        for one in flow_instances(config)
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with a model and tasks of programs and pages."""
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "models" / "Llama-3.1-8B-Instruct"
    write_byte_tokenizer(model)
    (model / "config.json").write_text("{}")
    (tmp_path / "tasks").mkdir()
    for split in ("train", "heldout"):
        rows = [
            {
                "question": f"{split} {n}?",
                "payload": {"reference": "def f(): 1", "tests": {"a": "f()"}, "page": "<html/>"},
            }
            for n in range(9)
        ]
        (tmp_path / "tasks" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_flow_can_be_planned_and_reads_what_it_should(folder: Path) -> None:
    config = load_config(TreadleConfig, (CONFIG,))
    inputs = inputs_of(config)
    assert inputs["1/preferences@trajectory"]["rollouts"] == ["1/rollouts@agent"]
    assert inputs["1/advantages"]["checkpoint"] == ["1/dpo@critic"]
    assert inputs["1/dpo@policy"]["preferences"] == ["1/preferences@turn"]
    assert inputs["1/report"]["scores"] == ["1/scores@start", "1/scores@sweet"]
    stages = (*config.flow.stages, "guided_rollouts")
    longer = inputs_of(config.model_copy(update={"flow": config.flow.model_copy(update={"stages": stages})}))
    assert [address for address in longer if address not in inputs] == ["1/guided_rollouts"]
    assert longer["1/guided_rollouts"] == {
        "questions": ["1/questions"],
        "checkpoint": ["1/dpo@critic"],
        "scores": ["1/scores@agent"],
    }
    words = ["run", str(CONFIG), "--run", "r", "--root", str(folder / "runs"), "--dry-run"]
    planned = CliRunner().invoke(cli, words)
    assert planned.exit_code == 0, planned.output
    assert all(address in planned.output for address in inputs)


def test_recipe_takes_dialogues_about_pages(folder: Path) -> None:
    human = {"model": "human", "reply_chars": 1000}
    changes = {
        "environment": {"type": "colbench/frontend", "max_turns": 10, "human": human},
        "models": {"human": {"api": "chat"}},
        "flow": {"stages": ["rollouts", "scores", "preferences", "dpo", "candidates", "advantages", "guided_rollouts"]},
        "preferences": {"rule": "gap", "hidden_chars": 5_000},
    }
    config = load_config(TreadleConfig, (CONFIG,), data=changes)
    planned = {str(one.address): one for one in flow_instances(config)}
    assert planned["1/preferences@trajectory"].settings.options.hidden_chars == 5_000
    for address in ("1/advantages", "1/guided_rollouts"):
        assert planned[address].settings.hidden_chars == 5_000, "as in the training of the critic"
    assert [str(one) for one in planned["1/dpo@policy"].inputs["preferences"]] == ["1/preferences@turn"]
