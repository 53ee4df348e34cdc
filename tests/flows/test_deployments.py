"""The flow as deployments on a real Prefect server with a real process worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from treadle.tasks.catalog import STAGES

ROOT = Path(__file__).resolve().parents[2]


def test_every_stage_has_a_deployment() -> None:
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    assert {item["name"] for item in deployments} == {"full", *STAGES}


@pytest.fixture(scope="module")
def deployed_run(prefect_home, sample_run_config, tmp_path_factory):
    """A run made by `prefect deployment run`, finished."""
    root = tmp_path_factory.mktemp("outputs")
    done = prefect_home.run(
        "prefect", "deployment", "run", "flywheel/full", "--watch",
        "--param", "run_id=deployed", "--param", f"config_file={sample_run_config}", "--param", f"root={root}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return root


def test_the_command_line_recognises_a_deployed_run_as_finished(prefect_home, deployed_run) -> None:
    done = prefect_home.run("treadle", "status", "--run", "deployed", "--root", str(deployed_run), "--json")
    states = {item["address"]: item["state"] for item in json.loads(done.stdout)}
    assert set(states.values()) == {"completed"}
    assert {"1/questions", "1/rollouts@tutor", "1/scores@tutor", "1/report"} == set(states)


def test_a_stage_deployment_runs_one_stage_again(prefect_home, deployed_run) -> None:
    done = prefect_home.run(
        "prefect", "deployment", "run", "stage/scores", "--watch", "--param", "run_id=deployed",
        "--param", "instance=1/scores@tutor", "--param", f"root={deployed_run}", "--param", "force=true",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    status = prefect_home.run("treadle", "status", "--run", "deployed", "--root", str(deployed_run), "--json")
    attempts = {item["address"]: item["num_attempts"] for item in json.loads(status.stdout)}
    assert attempts["1/scores@tutor"] == 2
    assert attempts["1/rollouts@tutor"] == 1


def test_an_unknown_config_key_is_refused_at_submission(prefect_home, tmp_path) -> None:
    done = prefect_home.run(
        "prefect", "deployment", "run", "flywheel/full", "--param", "run_id=wrong",
        "--param", 'config={"rollouts": {"samplez": 3}}', "--param", f"root={tmp_path}",
    )  # fmt: skip
    assert done.returncode != 0
    assert "samplez" in done.stdout + done.stderr


def test_the_ui_shows_progress_and_a_table_for_the_run(prefect_home, deployed_run) -> None:
    import httpx

    found = httpx.post(f"{prefect_home.url}/artifacts/filter", json={"limit": 200}).json()
    kinds = {(item["type"], item["key"]) for item in found}
    assert ("progress", "progress-deployed-1-rollouts-tutor") in kinds
    assert ("table", "table-deployed-1-report") in kinds
    assert ("markdown", "stage-deployed-1-rollouts-tutor") in kinds


def test_a_forced_run_on_the_server_makes_every_stage_again(prefect_home, deployed_run) -> None:
    """The last one: it changes what the others look at."""
    options = ("--run", "deployed", "--root", str(deployed_run))
    before = json.loads(prefect_home.run("treadle", "status", *options, "--json").stdout)
    done = prefect_home.run("treadle", "run", *options, "--force")
    assert done.returncode == 0, done.stdout + done.stderr
    after = json.loads(prefect_home.run("treadle", "status", *options, "--json").stdout)
    assert [item["num_attempts"] for item in after] == [item["num_attempts"] + 1 for item in before]
    assert (deployed_run / "runs/deployed/config.input.toml").read_text().startswith("\n[models.tutor]")
