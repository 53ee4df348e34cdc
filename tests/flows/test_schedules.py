"""Scheduled flow runs on a real Prefect server with a real process worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.servers.prefect_api import ask

from treadle.core.runs.run import Run, list_runs

from .conftest import wait_until

ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def _fire(prefect_home, parameters: dict[str, Any], times: int) -> list[dict[str, Any]]:
    """Let a schedule of `flywheel/full` fire; return its flow runs, all of them ended, in the order of their times."""

    def api(method: str, path: str, body: Any = None) -> Any:
        return ask(method, f"{prefect_home.url}/{path}", body)

    deployment = api("GET", "deployments/name/flywheel/full")["id"]
    begins = datetime.now(UTC)
    rule = f"DTSTART:{begins:%Y%m%dT%H%M%S}Z\nRRULE:FREQ=SECONDLY;INTERVAL=1;COUNT={times}"
    schedule = {"schedule": {"rrule": rule, "timezone": "UTC"}, "active": True, "parameters": parameters}
    (made,) = api("POST", f"deployments/{deployment}/schedules", [schedule])
    # The server's own loop plans only what is still to come, which a busy machine may be late for.
    span = {"start_time": (begins - timedelta(seconds=1)).isoformat(), "min_runs": times, "max_runs": times}
    api("POST", f"deployments/{deployment}/schedule", span)
    wanted = {
        "flow_runs": {"deployment_id": {"any_": [deployment]}, "tags": {"all_": ["auto-scheduled"]}},
        "sort": "EXPECTED_START_TIME_ASC",
    }

    def fired() -> list[dict[str, Any]]:
        found = api("POST", "flow_runs/filter", wanted)
        return [flow_run for flow_run in found if flow_run["created_by"]["id"] == made["id"]]

    def ended() -> bool:
        seen = fired()
        return len(seen) == times and all(flow_run["state"]["type"] in ENDED for flow_run in seen)

    wait_until(ended, f"{times} scheduled flow runs", prefect_home.logs / "prefect-worker.log")
    return fired()


def test_each_fire_of_a_schedule_makes_a_run_of_its_own(prefect_home, sample_run_config, tmp_path) -> None:
    left_out = ["1/rollouts@tutor", "1/scores@tutor", "1/report"]
    given = {"config_file": str(sample_run_config), "root": str(tmp_path), "without": left_out}
    flow_runs = _fire(prefect_home, given, times=2)
    assert [flow_run["state"]["type"] for flow_run in flow_runs] == ["COMPLETED"] * 2, flow_runs
    names = [flow_run["name"] for flow_run in flow_runs]
    assert sorted(names) == sorted(list_runs(tmp_path)) and len(set(names)) == 2
    for name, flow_run in zip(names, flow_runs, strict=True):
        planned = datetime.fromisoformat(flow_run["expected_start_time"])
        assert name.startswith(f"run-{planned:%Y-%m-%d-%H%M}-")
        assert Run.open(tmp_path, name).info.run_id == name
        assert f"run:{name}" in flow_run["tags"]


@pytest.mark.sweep
def test_missing_file_is_one_line_in_the_state_and_the_log(prefect_home, tmp_path) -> None:
    given = {"config_file": str(tmp_path / "missing.toml"), "root": str(tmp_path)}
    (flow_run,) = _fire(prefect_home, given, times=1)
    assert flow_run["state"]["type"] == "FAILED"
    assert "missing.toml does not exist" in flow_run["state"]["message"]
    assert "\n" not in flow_run["state"]["message"]
    ours = {"logs": {"flow_run_id": {"any_": [flow_run["id"]]}}, "limit": 200}
    errors = [log["message"] for log in ask("POST", f"{prefect_home.url}/logs/filter", ours) if log["level"] >= 40]
    assert any("missing.toml does not exist" in message for message in errors)
    assert not any("Traceback" in message for message in errors), errors
