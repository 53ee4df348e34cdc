"""A run with a companion, its record, and a second run from that record, as users of the command line see them."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from support.runs.command_line import TREADLE, Desk, set_up
from support.runs.processes import until
from support.servers.ports import free_port


def is_open(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def desk(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a desk whose model server is a companion."""
    monkeypatch.setenv("HOME", str(tmp_path))  # of the cache, which has the logs
    desk = set_up(tmp_path / "desk", f"http://127.0.0.1:{port}/v1")
    command = [TREADLE, "tutor", "--persona", "strong", "--port", str(port)]
    companion = f"""
[[companions]]
name = "tutor"
command = {json.dumps(command)}
ready_url = "http://127.0.0.1:{port}/health"
"""
    with (desk.folder / "run.toml").open("a") as file:
        file.write(companion)
    return desk


@pytest.mark.covers("service-23")
@pytest.mark.covers("service-25")
def test_run_with_a_companion_is_recorded_and_repeated_from_its_record(desk: Desk, port: int) -> None:
    done = desk.treadle("run", "run.toml", "--run", "first").succeeded()
    assert "companion tutor is ready" in done.err and not is_open(port)
    (path,) = (desk.folder / "outputs/runs/first/launches").iterdir()
    record = json.loads(path.read_text())
    assert record["command"][1:] == ["run", "run.toml", "--run", "first"] and record["folder"] == str(desk.folder)
    assert record["config"]["companions"][0]["name"] == "tutor"
    assert record["config_input"] == (desk.folder / "run.toml").read_text()

    (desk.folder / "run.toml").unlink()
    again = str(path.relative_to(desk.folder))
    desk.treadle("run", "--from-record", again, "--run", "second").succeeded()
    assert desk.rows("second", "1/rollouts@tutor", "rollouts") == desk.rows("first", "1/rollouts@tutor", "rollouts")
    refused = desk.treadle("run", "--from-record", again, "--run", "first", "--set", "seed=9")
    refused.failed("another configuration", "seed: 0 -> 9", code=2)
    records = desk.folder / "outputs/runs/first/records/1"
    before = {path.name: path.read_bytes() for path in records.iterdir()}
    changed = ("--set", "rollouts.sampling.temperature=0.5", "--allow-changes")
    desk.treadle("run", "--from-record", again, "--run", "first", *changed).succeeded()
    after = {path.name: path.read_bytes() for path in records.iterdir()}
    assert before.keys() == after.keys()
    changed_records = {name for name in after if after[name] != before[name]}
    assert "rollouts@tutor.json" in changed_records and "questions.json" not in changed_records
    stored = json.loads((desk.folder / "outputs/runs/first/config.json").read_text())
    assert stored["rollouts"]["sampling"]["temperature"] == 0.5


@pytest.mark.covers("service-24")
def test_run_with_a_dead_companion_begins_nothing(desk: Desk) -> None:
    table = '[[companions]]\nname = "dead"\ncommand = "sh -c \'echo why; exit 4\'"\nready_text = "never"\n'
    with (desk.folder / "run.toml").open("a") as file:
        file.write(table)
    done = desk.treadle("run", "run.toml", "--run", "r")
    done.failed("companion dead ended with code 4 before it was ready", code=1)
    assert "why" in done.err.splitlines()[-2] and not (desk.folder / "outputs").exists()


def test_killed_run_takes_its_companion_with_it(desk: Desk, port: int) -> None:
    with (desk.folder / "run.toml").open("a") as file:
        file.write('[[companions]]\nname = "slow"\ncommand = "sleep 600"\nready_text = "never"\n')
    with desk.started("run", "run.toml", "--run", "r") as run:
        until(lambda: is_open(port), "the companion answers", 60.0)
        run.kill()
        run.wait()
    until(lambda: not is_open(port), "the end of the companion", 10.0)
