"""Names of runs whose flow runs name none. With a server: `tests/flows/test_schedules.py`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

from treadle.core.runs.run import checked_id
from treadle.tasks.prefect.run_names import dated_run_id, flow_run_name, run_id_of

NOON = datetime(2026, 11, 27, 12, 5, tzinfo=UTC)


def test_retry_of_a_flow_run_keeps_its_run_and_another_fire_gets_its_own() -> None:
    first, second = (FlowRun(id=uuid4(), flow_id=uuid4(), expected_start_time=NOON) for _ in range(2))
    names = [_name(flow_run) for flow_run in (first, first.model_copy(update={"run_count": 2}), second)]
    assert names[0] == names[1] != names[2]
    assert all(re.fullmatch(r"nightly-2026-11-27-1205-[0-9a-f]{6}", name) for name in names)


def test_given_name_is_used() -> None:
    assert run_id_of("first", Path("nightly.toml")) == "first"


def test_flow_run_is_named_after_its_run() -> None:
    flow_run = FlowRun(id=uuid4(), flow_id=uuid4(), expected_start_time=NOON)
    for parameters in ({"run_id": "first"}, {"run_id": None, "config_file": Path("configs/nightly.toml")}):
        with FlowRunContext.model_construct(flow_run=flow_run, parameters=parameters):
            assert flow_run_name() == run_id_of(parameters["run_id"], parameters.get("config_file"))


def test_time_is_in_utc() -> None:
    there = NOON.astimezone(timezone(timedelta(hours=9)))
    assert dated_run_id("a.toml", there, UUID(int=5)) == "a-2026-11-27-1205-000005"


@given(st.text(max_size=200))
def test_every_file_name_gives_a_valid_run_id(name: str) -> None:
    checked_id(dated_run_id(name, NOON, uuid4()))


def _name(flow_run: FlowRun) -> str:
    with FlowRunContext.model_construct(flow_run=flow_run):
        return run_id_of(None, "configs/nightly.toml")
