"""`prefect.yaml` and the deployments that `treadle prefect` makes are one list."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from prefect.utilities.callables import parameter_schema

from treadle.core.errors import ConfigError
from treadle.flows import flywheel
from treadle.tasks.prefect.deployments import DEPLOYMENTS, POOL, QUEUES
from treadle.tasks.prefect.server import database_url
from treadle.tasks.prefect.settings import FLOW_RUN_ENV, HEARTBEAT_S, HEARTBEAT_TIMEOUT_S, TAG

ROOT = Path(__file__).resolve().parents[4]


def test_deployment_file_and_code_agree() -> None:
    written = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    said = [
        {
            "name": item.name,
            "entrypoint": f"flows/flywheel.py:{item.flow}",
            "description": item.description,
            "tags": [TAG],
            "work_pool": {"name": POOL, "work_queue_name": item.queue, "job_variables": {"env": FLOW_RUN_ENV}},
            **({"parameters": item.parameters} if item.parameters else {}),
        }
        for item in DEPLOYMENTS
    ]
    by_name = {item["name"]: item for item in said}
    assert {item["name"]: item for item in written} == by_name
    assert {item.queue for item in DEPLOYMENTS} == set(QUEUES)


def test_deployment_form_describes_each_parameter() -> None:
    for flow in {item.flow for item in DEPLOYMENTS}:
        for name, field in parameter_schema(getattr(flywheel, flow)).properties.items():
            assert field.get("description"), f"{flow}: {name}"


def test_flow_run_misses_three_heartbeats_before_it_counts_as_dead() -> None:
    assert HEARTBEAT_TIMEOUT_S >= 3 * HEARTBEAT_S and FLOW_RUN_ENV["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == str(
        HEARTBEAT_S
    )


def test_postgresql_address_gets_the_driver_prefect_requires() -> None:
    assert database_url("postgresql://u:p@host/name") == "postgresql+asyncpg://u:p@host/name"
    assert database_url("postgresql+asyncpg://host/name") == "postgresql+asyncpg://host/name"
    assert database_url(None) is None
    with pytest.raises(ConfigError, match="postgresql://"):
        database_url("mysql://host/name")
