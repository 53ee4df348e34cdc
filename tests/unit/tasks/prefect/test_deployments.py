"""`prefect.yaml` and the deployments that `treadle prefect` makes are one list."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.exceptions import ParameterTypeError
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from treadle.core.errors import ConfigError
from treadle.flows import flywheel
from treadle.tasks.prefect.deployments import POOL, QUEUES, deployments
from treadle.tasks.prefect.server import database_url
from treadle.tasks.prefect.settings import FLOW_RUN_ENV, HEARTBEAT_S, HEARTBEAT_TIMEOUT_S, TAG

ROOT = Path(__file__).resolve().parents[4]
SHIPPED = ["question", "planning", "bfcl", "service", "ledger", "colbench/backend", "colbench/frontend"]


def test_deployment_file_and_code_agree() -> None:
    written = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    said = [
        {
            "name": item.name,
            "entrypoint": item.entrypoint,
            "description": item.description,
            "tags": [TAG],
            "work_pool": {"name": POOL, "work_queue_name": item.queue, "job_variables": {"env": FLOW_RUN_ENV}},
            **({"parameters": item.parameters} if item.parameters else {}),
        }
        for item in deployments()
    ]
    by_name = {item["name"]: item for item in said}
    assert {item["name"]: item for item in written} == by_name
    assert {item.queue for item in deployments()} == set(QUEUES)


def test_deployment_form_describes_each_parameter() -> None:
    for flow in {item.flow for item in deployments()}:
        for name, field in parameter_schema(getattr(flywheel, flow)).properties.items():
            assert field.get("description"), f"{flow}: {name}"


def form_problems(schema: Mapping[str, Any], environment: Mapping[str, Any]) -> list[Any]:
    """Return what Prefect's server says of these parameters of the flow `flywheel`."""
    return validate({"run_id": "r", "config": {"environment": environment}}, dict(schema))


def test_form_has_the_keys_of_every_registered_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"treadle.environments": {"guess": "support.rollouts.dialogues:Guess", "gone": "no_such_module:Gone"}}
    monkeypatch.setattr("treadle.core.registry.entry_point_places", lambda group: points.get(group, {}))
    schema = parameter_schema(flywheel.flywheel).model_dump_for_openapi()
    types = schema["definitions"]["AnyEnvironment"]["anyOf"]
    assert [one["title"] for one in types] == [*SHIPPED, "guess", "class in a file or module", "type alone"]
    guess = types[len(SHIPPED)]
    top = guess["properties"]["top"]
    assert (top["default"], top["description"], top["type"]) == (100, "Largest number.", "integer")
    assert guess["description"] == "Guess a number that the environment thinks of."
    for allowed in (
        {"python": {"enabled": False}},
        {"type": "guess", "top": 8},
        {"type": "my_envs.py:Guess", "top": 8, "max_turns": 3},
    ):
        assert form_problems(schema, allowed) == [], allowed
    for refused in ({"top": 8}, {"type": "guess", "topp": 8}, {"type": "guess", "top": "x"}, {"type": "gone"}):
        assert form_problems(schema, refused), refused


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


def test_flow_run_checks_the_configuration_without_making_its_form(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "TreadleConfig" in parameter_schema(flywheel.flywheel.fn).definitions
    bad = {"config": {"rollouts": {"samplez": 3, "max_concurrent": -1}}}
    with pytest.raises(ParameterTypeError) as of_deployment:
        flywheel.flywheel.validate_parameters(bad)
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "of a worker")
    assert not parameter_schema(flywheel.flywheel.fn).definitions
    with pytest.raises(ParameterTypeError) as of_flow_run:
        flywheel.flywheel.validate_parameters(bad)
    assert str(of_flow_run.value) == str(of_deployment.value)
    assert "config.rollouts.max_concurrent" in str(of_flow_run.value)
