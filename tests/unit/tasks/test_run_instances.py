"""Running the instances of a flow: which are rerun, with which servers, and what is reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.runs.counting_stage import DOUBLE, DOUBLING, counting

from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import StageContext
from treadle.tasks.config import TreadleConfig
from treadle.tasks.run_instances import run_instance, run_instances

CONFIG = TreadleConfig.model_validate({"environment": {"search": {"enabled": False}}})
FLOW = [counting(), DOUBLING]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "r1", {}, {})


def make(run: Run, *, cut_off_after: int | None = None, **how: Any) -> list[bool]:
    """For each instance of the flow whether it was made."""
    made = []
    with run_instances(FLOW, run, CONFIG, **how) as turns:
        for turn in turns:
            made.append(not run_instance(turn.instance, run, force=turn.force, servers=turn.servers).reused)
            if len(made) == cut_off_after:
                raise KeyboardInterrupt
    return made


def test_flow_runs_once_and_again_if_forced(run: Run) -> None:
    assert make(run) == [True, True]
    assert make(run) == [False, False]
    with pytest.raises(KeyboardInterrupt):
        make(run, force=True, cut_off_after=1)
    assert make(run, force=True) == [False, True], "it goes on where it was cut off"
    assert make(run, force=True) == [True, True]


def test_all_instances_share_the_servers_of_the_flow(run: Run) -> None:
    with run_instances(FLOW, run, CONFIG) as turns:
        servers = []
        for turn in turns:
            run_instance(turn.instance, run, servers=turn.servers)
            servers.append(turn.servers)
    assert servers[0] is servers[1]


def test_forced_flow_reports_the_imports_it_keeps(run: Run) -> None:
    def imported(context: StageContext) -> Mapping[str, Any]:
        context.write("doubles", [{"number": 7}])
        return {"imported_from": "foreign.json"}

    execute(counting(), run)
    execute(replace(DOUBLING, stage=replace(DOUBLE, run=imported)), run)
    told: list[str] = []
    assert make(run, notify=told.append) == [False, False] and not told
    assert make(run, force=True, notify=told.append) == [True, False]
    assert told == [
        "1/double was imported from foreign.json and is kept; replace it with: treadle stage 1/double --run r1 --force"
    ]
