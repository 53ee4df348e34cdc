"""The command line with a root in an object store: what it prints, and how it resumes after a kill."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.runs.command_line import Desk, num_requests, set_up, tutor
from support.runs.processes import end_family, until


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return set_up(tmp_path / "desk", "http://127.0.0.1:9/v1")


def states(desk: Desk, root: str) -> dict[str, str]:
    shown = desk.treadle("status", "--run", "r", "--root", root, "--json").succeeded().json()
    return {item["address"]: item["state"] for item in shown}


def test_object_store_run_resumes_after_a_kill_and_is_shown_by_url(desk: Desk, object_root: str) -> None:
    options, more = ("--run", "r", "--root", object_root), ("--set", "rollouts.samples_per_question=4")
    with tutor("--latency-s", "0.2") as url:
        here = ("--set", f'models.tutor.endpoints=[{{url="{url}"}}]', "--set", "rollouts.max_concurrent=1")
        with desk.started("run", "run.toml", *options, *more, *here) as process:
            until(lambda: num_requests(url) >= 10, "three turns are done")
            end_family(process)
        assert states(desk, object_root) == {
            "1/questions": "completed", "1/rollouts@tutor": "crashed", "1/scores@tutor": "absent", "1/report": "absent",
        }  # fmt: skip
        told = desk.treadle("status", *options).succeeded().out
        assert f"treadle run --run r --root {object_root}" in told and "1/rollouts@tutor crashed: " in told
        done = desk.treadle("run", "run.toml", *options, *more, *here).succeeded()
    assert "already finished" in done.err
    assert re.search(rf"(?m)^rollouts +{re.escape(object_root)}/artifacts/rollouts/", done.out)
    commands = [line.split()[1:] for line in done.out.splitlines() if line.startswith("treadle ")]
    assert [command[0] for command in commands] == ["status", "show", "report", "view"]
    assert all(command[-2:] == ["--root", object_root] for command in commands)
    for command in commands[:-1]:  # the viewer serves until it is stopped
        desk.treadle(*command).succeeded()
    key = commands[1][1]
    assert "questions.jsonl" in desk.treadle("lineage", key, *options).succeeded().out
    verified = desk.treadle("verify", *options).succeeded().out.splitlines()
    assert len(verified) == 8 and all(line.startswith("ok ") for line in verified)
    (overview,) = desk.treadle("runs", "--root", object_root, "--json").succeeded().json()
    assert (overview["run_id"], overview["state"]) == ("r", "completed")
    records = desk.treadle("run", "run.toml", *options, *more, "--json", TREADLE_ROOT=object_root).succeeded().json()
    assert all(record["reused"] for record in records)
    assert not (desk.folder / "outputs").exists() and not (desk.folder / "s3:").exists()


def test_invalid_object_store_root_fails_in_one_line(desk: Desk, object_root: str, tmp_path: Path) -> None:
    bucket = object_root.split("/")[2]
    run = ("run", "run.toml", "--run", "r", "--root")
    desk.treadle(*run, "s3://no-such-bucket/x").failed("no-such-bucket", code=1)
    desk.treadle(*run, "s3://").failed("s3://", code=2)
    desk.treadle(*run, f"s3://{bucket}/../x").failed("..", code=2)
    # Without engines: an installed one is imported, which takes long.
    cache = str(tmp_path / "cache")
    checks = desk.treadle("doctor", "--root", object_root, "--json", TREADLE_CACHE=cache).json()
    assert {check["status"] for check in checks if check["name"] == "root"} == {"ok"}
    checks = desk.treadle("doctor", "--root", "s3://no-such-bucket/x", "--json", TREADLE_CACHE=cache).json()
    assert [bool(check["fix"]) for check in checks if check["name"] == "root"] == [True]
    desk.treadle("demo", "--tutor-only", "--root", object_root).failed("--root", code=2)
