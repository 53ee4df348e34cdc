"""The demo as a flow run: on a server that is named, and on one of its own."""

from __future__ import annotations

import re
import sqlite3
import subprocess
from pathlib import Path

import pytest
from support.runs.command_line import TREADLE, environment
from support.runs.processes import end_family, family, remaining, until
from support.servers.prefect_api import ask

from treadle.tasks.prefect.prefect_home import PrefectHome

from .conftest import answers

SMALL = ("--set", "pools.max_questions=6", "--set", "rollouts.max_questions=5")
STAGES = ["1/questions", "1/pools", "1/sft_rows", "1/rollouts@tutor", "1/scores@tutor", "1/report"]
DEMO = (TREADLE, "demo", "--tutor-only", *SMALL)


def watched_at(said: str) -> str:
    """Return the id of the flow run whose page was announced before the first step."""
    found = re.search(r"^watch it in Prefect: http://127\.0\.0\.1:\d+/runs/flow-run/([0-9a-f-]{36})$", said, re.M)
    assert found is not None and found.start() < said.index("step 1 of 4: the tutor answers training questions"), said
    return found[1]


@pytest.mark.sweep
def test_demo_on_a_given_server_prints_steps_and_results(prefect_home, tmp_path: Path) -> None:
    root = ("--root", str(tmp_path / "outputs"))
    done = prefect_home.run("treadle", *DEMO[1:], "--prefect", *root)
    assert done.returncode == 0, done.stderr
    assert " | " not in done.stderr, "lines of Prefect's own"
    assert "starting a Prefect server" not in done.stderr
    flow_run = watched_at(done.stderr)
    ours = {"flow_runs": {"id": {"any_": [flow_run]}}}
    (found,) = ask("POST", f"{prefect_home.url}/flow_runs/filter", ours)
    assert found["state_name"] == "Completed" and {"treadle", "run:demo-tutor"} == set(found["tags"])
    assert ask("POST", f"{prefect_home.url}/task_runs/count", ours) == 6

    steps = re.findall(r"^step (\d) of 4: ", done.stderr, re.M)
    made = re.findall(r"^(1/\S+): [a-z_]+ \d", done.stderr, re.M)
    assert steps == ["1", "2", "3", "4"] and made == STAGES
    assert "tutor server for treadle-tutor answers" in done.stderr

    again = subprocess.run([*DEMO, *root], env=environment(), capture_output=True, text=True, timeout=180)
    assert re.findall(r"^(1/\S+): .*\(unchanged, reused\)$", again.stderr, re.M) == STAGES
    assert "watch it" not in again.stderr
    assert row(again.stdout) == row(done.stdout)


def row(printed: str) -> str:
    """Return the tutor's row in the final table."""
    (found,) = [line for line in printed.splitlines() if line.startswith("tutor (rules")]
    return found


def test_demo_without_a_server_starts_and_stops_its_own(tmp_path: Path) -> None:
    env = environment(PREFECT_HOME=str(tmp_path / "home"))
    with (tmp_path / "err").open("wb") as err, (tmp_path / "out").open("wb") as out:
        child = subprocess.Popen([*DEMO, "--prefect"], cwd=tmp_path, env=env, stdout=out, stderr=err)
        try:
            said = lambda: (tmp_path / "err").read_text()  # noqa: E731
            until(lambda: "watch it" in said() or child.poll() is not None, "the server is up", 200.0, 0.1)
            members = family(child.pid)
            assert child.wait(timeout=180) == 0, said()
        finally:
            end_family(child)
    flow_run = watched_at(said())
    url = re.search(r"^watch it in Prefect: (http://127\.0\.0\.1:\d+)", said(), re.M)
    assert url is not None and not answers(f"{url[1]}/api/health")
    assert members and not remaining(members), "nothing is left running"
    assert "Traceback" not in said() and "rror" not in said().replace("result error", ""), said()
    last = (tmp_path / "out").read_text().splitlines()[-1]
    assert re.fullmatch(rf"the flow run in Prefect: treadle prefect up.*, then {url[1]}/runs/flow-run/{flow_run}", last)
    with sqlite3.connect(tmp_path / "home/prefect.db") as database:
        states = database.execute("select name, state_name from flow_run").fetchall()
        assert states == [("demo-tutor", "Completed")]
        (logged,) = database.execute("select count(*) from log").fetchone()
    assert logged, "what it logged was there before the server ended"


def test_killed_demo_leaves_no_server(tmp_path: Path) -> None:
    env = environment(PREFECT_HOME=str(tmp_path / "home"))
    null = subprocess.DEVNULL
    child = subprocess.Popen([*DEMO, "--prefect"], cwd=tmp_path, env=env, stdout=null, stderr=null)
    try:
        until(lambda: len(family(child.pid)) >= 2 or child.poll() is not None, "the server starts", 120.0, 0.02)
        members = family(child.pid)
    finally:
        child.kill()
        child.communicate()
    assert members, "it was over before it was killed"
    until(lambda: not remaining(members), f"the end of {[seen.name for seen in members]}", 20.0)
    assert PrefectHome(tmp_path / "home").running() is None
