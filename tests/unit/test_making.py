"""Making the instances of a flow: what is made again, with whose servers, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.counting_stage import DOUBLE, DOUBLING, counting

from treadle.core.execute import execute
from treadle.core.runs import Run
from treadle.core.stage import StageContext
from treadle.tasks.config import TreadleConfig
from treadle.tasks.making import making, run_instance

CONFIG = TreadleConfig.model_validate({"environment": {"search": {"enabled": False}}})
FLOW = [counting(), DOUBLING]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "r1", {}, {})


def make(run: Run, *, cut_off_after: int | None = None, **how: Any) -> list[bool]:
    """For each instance of the flow whether it was made."""
    made = []
    with making(FLOW, run, CONFIG, **how) as turns:
        for turn in turns:
            made.append(not run_instance(turn.instance, run, force=turn.force, servers=turn.servers).reused)
            if len(made) == cut_off_after:
                raise KeyboardInterrupt
    return made


def test_a_flow_is_made_once_and_again_where_that_is_forced(run: Run) -> None:
    assert make(run) == [True, True]
    assert make(run) == [False, False]
    with pytest.raises(KeyboardInterrupt):
        make(run, force=True, cut_off_after=1)
    assert make(run, force=True) == [False, True], "it goes on where it was cut off"
    assert make(run, force=True) == [True, True]


def test_all_turns_have_the_servers_of_the_flow(run: Run) -> None:
    with making(FLOW, run, CONFIG) as turns:
        servers = []
        for turn in turns:
            run_instance(turn.instance, run, servers=turn.servers)
            servers.append(turn.servers)
    assert servers[0] is servers[1]


def test_a_forced_flow_says_what_it_leaves_since_it_was_imported(run: Run) -> None:
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
