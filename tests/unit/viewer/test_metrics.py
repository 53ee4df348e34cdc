"""What status and the viewer's /metrics show of the model servers that a running stage uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from support.runs.counting_stage import (
    count,
    counting,
    no_calls,  # noqa: F401 - an autouse fixture
)
from support.tables.viewer_run import client

from treadle.cli.views.tables import status_table
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.live_status import write_live_status
from treadle.core.runs.records import LiveStatus, ModelServerStatus
from treadle.core.runs.run import Run
from treadle.core.runs.stage import StageContext

BUSY = ModelServerStatus(
    model="policy", url="http://one/v1", health="healthy", in_flight=3, queued=2, answered=1_500, tokens_per_s=81.5
)
DOWN = ModelServerStatus(
    model="po\x1b[31m\nlicy",
    url='http://two/v1"',
    health="down",
    in_flight=0,
    queued=0,
    answered=0,
    tokens_per_s=0.0,
    errors={"connect": 4},
    last_error="refused",
)


def test_running_stage_shows_its_servers_and_a_finished_one_none(tmp_path: Path) -> None:
    run, shown = Run.create(tmp_path, "r1", {}, {}), {}

    def work(context: StageContext) -> Mapping[str, Any]:
        write_live_status(context.scratch, LiveStatus(doing="step 2\x1b[31m", model_servers=(BUSY, DOWN)))
        statuses = run.statuses()
        console = Console(width=160)
        with console.capture() as capture:
            console.print(status_table(run, statuses, forced=False))
        shown["status"], shown["table"] = statuses[0], capture.get()
        shown["metrics"] = client(run).get("/metrics").text
        return count(context)

    execute(counting(work), run)
    assert shown["status"].model_servers == (BUSY, DOWN)
    lines = shown["table"].splitlines()
    assert any("1/count: step 2" in line for line in lines)
    assert any("policy" in line and "1,500" in line and "82" in line for line in lines)
    assert any("down" in line and "4 connect" in line for line in lines)
    assert "\x1b" not in shown["table"] + shown["metrics"]
    labels = 'instance="1/count",model="policy",run="r1",url="http://one/v1"'
    assert f"treadle_model_server_requests_in_flight{{{labels}}} 3.0" in shown["metrics"]
    assert f"treadle_model_server_answers_total{{{labels}}} 1500.0" in shown["metrics"]
    assert 'kind="connect"' in shown["metrics"] and '\\"' in shown["metrics"]

    assert run.status(Address(1, "count")).model_servers == ()
    assert "in_flight{" not in client(run).get("/metrics").text


def test_damaged_states_are_shown_as_none(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "r1", {}, {})

    def work(context: StageContext) -> Mapping[str, Any]:
        for damaged in (b"", b"{", b"[{}]", b"\xff"):
            (context.scratch / "live-status.json").write_bytes(damaged)
            assert run.status(Address(1, "count")).model_servers == ()
        write_live_status(context.scratch / "absent", LiveStatus(model_servers=(BUSY,)))
        return count(context)

    execute(counting(work), run)
