"""The stage `experience` is killed or stopped, or its model is: no reply is paid for twice, and the same bytes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.experience.desk import halving, patient_instance
from support.experience.scripted_author import ScriptedAuthor, valid
from support.model_servers.script_process import ScriptProcess, script_process
from support.preferences.desk import Desk
from support.runs.processes import stand_still, until, wait_out
from support.servers.scripted_server import RecordedRequest, ScriptedServer
from support.sweep import sampled

from treadle.core.runs.execute import execute

LIFE = """
import sys
from support.experience.desk import patient_instance
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
instance = patient_instance(sys.argv[2], float(sys.argv[3]), request_time_s=float(sys.argv[4]))
execute(instance, Run.open(sys.argv[1], "test"))
"""
ENVIRON = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
NUM_TASKS = 10
POINTS = 4 * NUM_TASKS
"""A summary and three verdicts for each task."""
REQUEST_TIME_S = 20.0
OUTAGE_S = 6.0
"""After which a model that stands still is given up, if it is to be noticed."""


def command(folder: Path, url: str, outage_wait_s: float = 60.0) -> list[str]:
    return [sys.executable, "-c", LIFE, str(folder / "root"), url, str(outage_wait_s), str(REQUEST_TIME_S)]


async def live(folder: Path, url: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(*command(folder, url), env=ENVIRON, stderr=asyncio.subprocess.PIPE)


def desk_in(folder: Path) -> Desk:
    folder.mkdir()
    made = Desk(folder)
    made.put({f"t{number}": (1.0, 0.0) for number in range(NUM_TASKS)})
    return made


def check_same(disturbed: Desk, calm: Desk, asked: Counter[str], whole: Counter[str]) -> None:
    """Check that both stages made the same rows, and that no more was asked twice than was in flight."""
    # Verdicts on one batch are asked for at once, so up to three requests were in flight.
    assert whole.total() == POINTS and asked.keys() == whole.keys() and (asked - whole).total() <= 3
    assert disturbed.rows("1/experience", "experience") == calm.rows("1/experience", "experience")


@pytest.mark.parametrize("point", sampled(range(1, POINTS + 1), {6, 21}))
async def test_killed_stage_pays_for_nothing_twice_and_ends_with_the_same_bytes(tmp_path: Path, point: int) -> None:
    author = ScriptedAuthor(halving, valid)
    lives: list[asyncio.subprocess.Process] = []

    def reply(request: RecordedRequest) -> str:
        said = author(request)
        if len(author.asked) == point and len(lives) == 1:
            lives[0].send_signal(signal.SIGKILL)
        return said

    async with ScriptedServer(reply) as server:
        disturbed, calm = [await asyncio.to_thread(desk_in, tmp_path / name) for name in ("disturbed", "calm")]
        for code in (-signal.SIGKILL, 0):
            lives.append(await live(tmp_path / "disturbed", server.url))
            _, said = await lives[-1].communicate()
            assert lives[-1].returncode == code, said.decode()
        asked = Counter(author.asked)
        author.asked.clear()
        await asyncio.to_thread(execute, patient_instance(server.url, request_time_s=REQUEST_TIME_S), calm.run)
    check_same(disturbed, calm, asked, Counter(author.asked))


@pytest.mark.sweep
async def test_stopped_stage_changes_nothing(tmp_path: Path) -> None:
    author = ScriptedAuthor(halving, valid)
    lives: list[asyncio.subprocess.Process] = []

    async def reply(request: RecordedRequest) -> str:
        said = author(request)
        if len(author.asked) == POINTS // 2 and lives:
            await asyncio.to_thread(stand_still, lives[0].pid, REQUEST_TIME_S + 1.0)
        return said

    async with ScriptedServer(reply) as server:
        disturbed, calm = [await asyncio.to_thread(desk_in, tmp_path / name) for name in ("disturbed", "calm")]
        lives.append(await live(tmp_path / "disturbed", server.url))
        _, said = await lives[0].communicate()
        assert lives[0].returncode == 0, said.decode()
        lives.clear()
        asked = Counter(author.asked)
        author.asked.clear()
        await asyncio.to_thread(execute, patient_instance(server.url, request_time_s=REQUEST_TIME_S), calm.run)
    check_same(disturbed, calm, asked, Counter(author.asked))


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ScriptProcess]:
    """Yield a model in a process of its own, which stops itself near the end, with requests on the wire."""
    with script_process(tmp_path / "requests.log", "support.experience.desk:SERVED") as process:
        process.freeze_after(POINTS - 6)
        yield process


def asked_of(model: ScriptProcess) -> Counter[str]:
    """Return the requests since the last call, without those of the preflight."""
    shown = (json.dumps([body["messages"], body["seed"]]) for _, body in model.arrived())
    return Counter(text for text in shown if "It is data" in text)


def calm_in(folder: Path, url: str) -> Desk:
    """Return the desk of an undisturbed stage."""
    calm = desk_in(folder)
    execute(patient_instance(url, request_time_s=REQUEST_TIME_S), calm.run)
    return calm


@pytest.mark.sweep
def test_stage_continues_after_its_model_stood_still_for_longer_than_its_work_may_take(
    tmp_path: Path, model: ScriptProcess
) -> None:
    disturbed, url = desk_in(tmp_path / "disturbed"), model.urls["scripted"]
    with subprocess.Popen(command(tmp_path / "disturbed", url), env=ENVIRON) as process:
        until(model.is_frozen, "the model stands still", 600.0)
        wait_out(REQUEST_TIME_S + 1.0)
        assert process.poll() is None
        model.thaw()
    assert process.returncode == 0
    asked = asked_of(model)
    check_same(disturbed, calm_in(tmp_path / "calm", url), asked, asked_of(model))


def test_model_that_stays_frozen_is_named_and_nothing_is_paid_for_twice(tmp_path: Path, model: ScriptProcess) -> None:
    disturbed, url = desk_in(tmp_path / "disturbed"), model.urls["scripted"]
    ended = subprocess.run(
        command(tmp_path / "disturbed", url, OUTAGE_S), env=ENVIRON, stderr=subprocess.PIPE, check=False
    )
    assert ended.returncode == 1 and model.is_frozen(), ended.stderr.decode()
    line = ended.stderr.decode().splitlines()[-1]
    assert "JobsPending: 1/experience: " in line and "batches could not be finished" in line
    assert f"models.author: no endpoint answers: {url} (did not respond for {OUTAGE_S:g} s)" in line
    model.thaw()
    subprocess.run(command(tmp_path / "disturbed", url), env=ENVIRON, check=True)
    asked = asked_of(model)
    check_same(disturbed, calm_in(tmp_path / "calm", url), asked, asked_of(model))
