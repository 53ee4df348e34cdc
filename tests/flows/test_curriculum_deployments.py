"""The curriculum on a real Prefect server: few task runs, curves in the UI, any phase started again from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.servers.prefect_api import ask
from support.tables.rl_tables import write_policy

from treadle.core.runs.run import Run

PHASED = [f"1/{stage}@phase-{phase}" for phase in (1, 2) for stage in ("rollouts", "scores", "selection", "rl")]
MORE = """
[flow]
stages = ["rl"]

[selection]
max_questions = 4

[rl]
start = "{start}"
variant = "cpu"
group_size = 4
prompts_per_step = 1
mini_batch_prompts = 1
max_steps = 2
max_prompt_tokens = 10_000

[curriculum]
phases = 2
rollouts = {{ samples_per_question = 6, datasets = ["world-lookup"] }}
"""


def attempts(root: Path) -> dict[str, tuple[str, int]]:
    """Return address -> state and number of attempts of the run."""
    return {str(one.address): (one.state, one.num_attempts) for one in Run.open(root, "phased").statuses()}


@pytest.fixture(scope="module")
def phased(prefect_home: Any, sample_run_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run two phases as a deployment; return their root."""
    folder = tmp_path_factory.mktemp("phased")
    config = folder / "run.toml"
    config.write_text(sample_run_config.read_text() + MORE.format(start=write_policy(folder / "start")))
    given = {"run_id": "phased", "config_file": str(config), "root": str(folder / "root")}
    prefect_home.run_deployment("flywheel/full", **given)
    return folder / "root"


def test_deployed_curriculum_uses_one_task_run_per_instance(prefect_home: Any, phased: Path) -> None:
    assert attempts(phased) == {address: ("completed", 1) for address in ("1/questions", *PHASED)}
    made = {"flow_runs": {"name": {"any_": ["phased"]}}}
    assert ask("POST", f"{prefect_home.url}/task_runs/count", made) == 1 + len(PHASED)


def test_ui_shows_steps_and_curves_of_a_phase(prefect_home: Any, phased: Path) -> None:
    found = ask("POST", f"{prefect_home.url}/artifacts/filter", {"limit": 200})
    by_key = {item["key"]: item for item in found}
    assert by_key["progress-phased-1-rl-phase-2"]["type"] == "progress"
    assert "reward 0.20" in by_key["progress-phased-1-rl-phase-2"]["description"]
    steps = json.loads(by_key["table-phased-1-rl-phase-2"]["data"])
    assert [(row["step"], row["reward"]) for row in steps] == [(1, 0.1), (2, 0.2)]
    assert "▁█" in by_key["stage-phased-1-rl-phase-2"]["data"]
    assert "questions are selected" in by_key["stage-phased-1-selection-phase-1"]["data"]


@pytest.mark.sweep
def test_stage_deployment_restarts_a_phase(prefect_home: Any, phased: Path) -> None:
    """The last one: it changes what the others look at."""
    given = {"run_id": "phased", "instance": "1/rl@phase-2", "root": str(phased), "force": True}
    prefect_home.run_deployment("stage/rl", **given)
    assert attempts(phased)["1/rl@phase-2"] == ("completed", 2)
    assert attempts(phased)["1/rl@phase-1"] == ("completed", 1)
