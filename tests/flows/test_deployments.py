"""The flow as deployments on a real Prefect server with a real process worker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest
import yaml
from support.flow_chaos import lock_database
from support.servers.prefect_api import ask

from treadle.core.runs.run import Run
from treadle.stages.registry import stage_names
from treadle.tasks.planning.run_setup import known_addresses

from .conftest import ENDED, checked, wait_until

ROOT = Path(__file__).resolve().parents[2]
JUDGED = """
[scores.judges]
models = ["tutor"]
domains = ["math"]

[flow]
models = ["tutor"]
"""
"""What makes two stages of a run ask the same model."""


def test_every_stage_has_a_deployment() -> None:
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    assert {item["name"] for item in deployments} == {"full", "full-on-gpu", "shards", *stage_names()}


@pytest.mark.sweep
def test_prefect_deploys_the_whole_file(prefect_home) -> None:
    checked(prefect_home.run("prefect", "--no-prompt", "deploy", "--all"))
    made = ask("POST", f"{prefect_home.url}/deployments/filter", {"limit": 50})
    assert {item["name"] for item in made} >= {"full", "full-on-gpu", "shards", *stage_names()}


@pytest.fixture(scope="module")
def deployed_run(prefect_home, sample_run_config, tmp_path_factory):
    """Return the root of a run made by a deployment, finished."""
    root = tmp_path_factory.mktemp("outputs")
    config = tmp_path_factory.mktemp("deployed") / "run.toml"
    config.write_text(sample_run_config.read_text() + JUDGED)
    prefect_home.run_deployment("flywheel/full", run_id="deployed", config_file=str(config), root=str(root))
    return root


def attempts(root: Path) -> dict[str, int]:
    """Return address -> number of attempts of the run."""
    run = Run.open(root, "deployed")
    return {str(address): len(run.attempts(address)) for address in known_addresses(run)}


def test_command_line_recognises_a_finished_deployed_run(prefect_home, deployed_run) -> None:
    done = prefect_home.run("treadle", "status", "--run", "deployed", "--root", str(deployed_run), "--json")
    states = {item["address"]: item["state"] for item in json.loads(done.stdout)}
    assert set(states.values()) == {"completed"}
    assert {"1/questions", "1/rollouts@tutor", "1/scores@tutor", "1/report"} == set(states)


def test_stage_deployment_reruns_one_stage_while_the_database_is_locked(prefect_home, deployed_run) -> None:
    given = {"run_id": "deployed", "instance": "1/scores@tutor", "root": str(deployed_run), "force": True}
    flow_run = prefect_home.submit("stage/scores", **given)
    prefect_home.wait_for(flow_run, "RUNNING")
    lock_database(prefect_home.logs / "prefect.db")
    assert prefect_home.wait_for(flow_run, *ENDED)["type"] == "COMPLETED"
    assert attempts(deployed_run)["1/scores@tutor"] == 2
    assert attempts(deployed_run)["1/rollouts@tutor"] == 1


def test_stages_of_a_flow_share_a_model_server(prefect_home, deployed_run) -> None:
    wanted = {"flow_runs": {"name": {"any_": ["deployed"]}}, "sort": "START_TIME_ASC", "limit": 1}
    (flow_run,) = ask("POST", f"{prefect_home.url}/flow_runs/filter", wanted)
    ours = {"logs": {"flow_run_id": {"any_": [flow_run["id"]]}}, "limit": 200}
    logs = ask("POST", f"{prefect_home.url}/logs/filter", ours)
    assert [log["message"].startswith("starting tutor server") for log in logs].count(True) == 1, logs


def test_rejects_unknown_config_key_at_submission(prefect_home, tmp_path) -> None:
    deployment = ask("GET", f"{prefect_home.url}/deployments/name/flywheel/full")["id"]
    given = {"run_id": "wrong", "config": {"rollouts": {"samplez": 3}}, "root": str(tmp_path)}
    address = f"{prefect_home.url}/deployments/{deployment}/create_flow_run"
    refused = httpx.post(address, json={"parameters": given}, timeout=60)
    assert refused.is_client_error and "samplez" in refused.text, refused.text


def test_ui_shows_progress_and_a_table_for_the_run(prefect_home, deployed_run) -> None:
    found = ask("POST", f"{prefect_home.url}/artifacts/filter", {"limit": 200})
    kinds = {(item["type"], item["key"]) for item in found}
    assert ("progress", "progress-deployed-1-rollouts-tutor") in kinds
    assert ("table", "table-deployed-1-report") in kinds
    assert ("markdown", "stage-deployed-1-rollouts-tutor") in kinds
    links = next(item["data"] for item in found if item["key"] == "link-deployed-1-report")
    files = [unquote(address) for address in re.findall(r"\]\(file://(.+)\)$", links, re.M)]
    assert [Path(file).name for file in files if Path(file).is_file()] == ["report.md", "summary.csv"]


def test_task_run_produces_three_short_events_and_few_artifacts(prefect_home, deployed_run) -> None:
    """Nine tenths of what the server's database grows by; `benchmarks/runs/orchestration.py` has the bytes."""
    wanted = {"flow_runs": {"name": {"any_": ["deployed"]}}, "sort": "START_TIME_ASC", "limit": 1}
    (flow_run,) = ask("POST", f"{prefect_home.url}/flow_runs/filter", wanted)
    ours = {"flow_runs": {"id": {"any_": [flow_run["id"]]}}}
    num_task_runs = ask("POST", f"{prefect_home.url}/task_runs/count", ours)
    of_task_runs = {
        "event": {"prefix": ["prefect.task-run."]}, "any_resource": {"id": [f"prefect.flow-run.{flow_run['id']}"]},
    }  # fmt: skip

    def events():
        return ask("POST", f"{prefect_home.url}/events/filter", {"filter": of_task_runs, "limit": 50})["events"]

    wait_until(lambda: len(events()) >= 3 * num_task_runs, "events", prefect_home.logs / "prefect-server.log")
    assert len(events()) == 3 * num_task_runs == 12
    for event in events():
        related = {
            (resource["prefect.resource.role"], resource["prefect.resource.id"]) for resource in event["related"]
        }
        assert {role for role, _ in related} == {"flow-run", "flow", "tag"}
        assert ("tag", "prefect.tag.treadle") in related
        assert len(related) == 3
    artifacts = ask("POST", f"{prefect_home.url}/artifacts/filter", {**ours, "limit": 200})
    keys = [item["key"] for item in artifacts]
    assert len(keys) == len(set(keys)) <= 3 * num_task_runs, keys


@pytest.mark.sweep
def test_deployment_starts_from_any_instance(prefect_home, deployed_run) -> None:
    before = attempts(deployed_run)
    part = {"start_from": "1/scores@tutor", "without": ["1/report"]}
    prefect_home.run_deployment("flywheel/full", run_id="deployed", root=str(deployed_run), force=True, **part)
    assert attempts(deployed_run) == {**before, "1/scores@tutor": before["1/scores@tutor"] + 1}


def test_later_flow_run_reports_task_runs_that_ended_with_their_process(prefect_home, deployed_run) -> None:
    def api(method: str, path: str, body: dict[str, object] | None = None):
        return ask(method, f"{prefect_home.url}/{path}", body)

    flow = api("GET", "flows/name/flywheel")["id"]
    states = {}
    for tag, state in (("run:deployed", "CRASHED"), ("run:deployed", "RUNNING"), ("run:other", "CRASHED")):
        body = {"flow_id": flow, "tags": [tag], "state": {"type": state}}
        flow_run = api("POST", "flow_runs/", body)["id"]
        body = {"flow_run_id": flow_run, "task_key": "run_stage", "dynamic_key": "0", "state": {"type": "RUNNING"}}
        states[tag, state] = api("POST", "task_runs/", body)["id"]
    done = prefect_home.run("treadle", "stage", "1/report", "--run", "deployed", "--root", str(deployed_run))
    assert done.returncode == 0, done.stdout + done.stderr
    told = {key: api("GET", f"task_runs/{task_run}")["state"]["type"] for key, task_run in states.items()}
    assert told == {
        ("run:deployed", "CRASHED"): "CRASHED", ("run:deployed", "RUNNING"): "RUNNING",
        ("run:other", "CRASHED"): "RUNNING",
    }  # fmt: skip


@pytest.mark.sweep
def test_forced_run_on_the_server_reruns_every_stage(prefect_home, deployed_run) -> None:
    """The last one: it changes what the others look at."""
    before = attempts(deployed_run)
    done = prefect_home.run("treadle", "run", "--run", "deployed", "--root", str(deployed_run), "--force")
    assert done.returncode == 0, done.stdout + done.stderr
    assert attempts(deployed_run) == {address: number + 1 for address, number in before.items()}
    assert (deployed_run / "runs/deployed/config.input.toml").read_text().startswith("\n[models.tutor]")
