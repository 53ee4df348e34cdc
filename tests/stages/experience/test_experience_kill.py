"""The stage `experience` killed, or stopped while its models are asked: no reply is paid twice, and the same bytes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.experience.desk import halving, patient_instance
from support.experience.scripted_author import ScriptedAuthor, valid
from support.preferences.desk import Desk
from support.runs.processes import stand_still, wait_out
from support.servers.scripted_server import RecordedRequest, ScriptedServer
from support.sweep import sampled

from treadle.core.runs.execute import execute

LIFE = """
import sys
from support.experience.desk import patient_instance
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
execute(patient_instance(sys.argv[2], request_time_s=float(sys.argv[3])), Run.open(sys.argv[1], "test"))
"""
TESTS = Path(__file__).parents[2]
NUM_TASKS = 10
POINTS = 4 * NUM_TASKS
"""A summary and three verdicts for each task."""
REQUEST_TIME_S = 5.0


async def live(folder: Path, url: str) -> asyncio.subprocess.Process:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", LIFE, str(folder / "root"), url, str(REQUEST_TIME_S)]
    return await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)


def desk_in(folder: Path) -> Desk:
    folder.mkdir()
    made = Desk(folder)
    made.put({f"t{number}": (1.0, 0.0) for number in range(NUM_TASKS)})
    return made


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
    whole = Counter(author.asked)
    assert whole.total() == POINTS
    # Verdicts on one batch are asked for at once, so up to three requests were in flight.
    assert asked.keys() == whole.keys() and (asked - whole).total() <= 3
    assert disturbed.rows("1/experience", "experience") == calm.rows("1/experience", "experience")


@pytest.mark.parametrize("thing", sampled(["stage", "model"], ["stage"]))
async def test_stopped_stage_and_silent_model_change_nothing(tmp_path: Path, thing: str) -> None:
    author = ScriptedAuthor(halving, valid)
    lives: list[asyncio.subprocess.Process] = []

    async def reply(request: RecordedRequest) -> str:
        said = author(request)
        if len(author.asked) == POINTS // 2 and len(lives) == 1:
            if thing == "stage":
                await asyncio.to_thread(stand_still, lives[0].pid, REQUEST_TIME_S + 1.0)
            else:
                silent.set()
                await asyncio.to_thread(wait_out, REQUEST_TIME_S + 1.0)
                silent.clear()
        while silent.is_set():
            await asyncio.sleep(0.02)
        return said

    silent = asyncio.Event()
    async with ScriptedServer(reply, silent=silent) as server:
        disturbed, calm = [await asyncio.to_thread(desk_in, tmp_path / name) for name in ("disturbed", "calm")]
        lives.append(await live(tmp_path / "disturbed", server.url))
        _, said = await lives[0].communicate()
        assert lives[0].returncode == 0, said.decode()
        asked = Counter(author.asked)
        author.asked.clear()
        await asyncio.to_thread(execute, patient_instance(server.url, request_time_s=REQUEST_TIME_S), calm.run)
    whole = Counter(author.asked)
    assert asked.keys() == whole.keys() and (asked - whole).total() <= 3
    assert disturbed.rows("1/experience", "experience") == calm.rows("1/experience", "experience")
