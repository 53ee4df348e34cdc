"""Labels of a training that is killed, or stopped, at any request: none is paid for twice, advantages are the same."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.credit.labelling_process import NUM_GROUPS, REQUEST_TIME_S
from support.credit.worked_example import DECOUPLED, label_actions
from support.model_servers.threaded_server import serving
from support.runs.processes import stand_still, wait_out
from support.servers.scripted_server import RecordedRequest
from support.sweep import sampled

NUM_REQUESTS = 4 * NUM_GROUPS
TESTS = Path(__file__).parents[2]


class Disturber:
    """A model that does something to who asks it for the n-th time, after the replies to all requests before."""

    def __init__(self, thing: str) -> None:
        self.cases: list[str] = []
        self.at: int | None = None
        self.pid = 0
        self._thing = thing
        self.silent = asyncio.Event()

    async def __call__(self, recorded: RecordedRequest) -> str:
        assert recorded.messages is not None
        self.cases.append(recorded.messages[-1]["content"])
        if len(self.cases) == self.at:
            await self._disturb()
        while self.silent.is_set():
            await asyncio.sleep(0.02)
        return label_actions(recorded)

    async def _disturb(self) -> None:
        if self._thing == "kill":
            os.kill(self.pid, signal.SIGKILL)
        elif self._thing == "stop":
            await asyncio.to_thread(stand_still, self.pid, REQUEST_TIME_S + 1.0)
        else:
            self._is_silent = True
            await asyncio.to_thread(wait_out, REQUEST_TIME_S / 2)
            self.silent = asyncio.Event()

    def run(self, url: str, folder: Path) -> tuple[int, str]:
        """Run the labelling process to its end; return its exit code and what it printed."""
        argv = [sys.executable, "-m", "support.credit.labelling_process", url, str(folder)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))}
        with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True) as process:
            self.pid = process.pid
            said, _ = process.communicate()
        return process.returncode, said


def kill_at(number: int, folder: Path) -> None:
    killer = Disturber("kill")
    with serving(killer) as server:
        killer.at = number
        assert killer.run(server.url, folder)[0] == -signal.SIGKILL
        paid, killer.cases, killer.at = killer.cases, [], None
        code, said = killer.run(server.url, folder)
    assert code == 0
    assert not set(paid[:-1]) & set(killer.cases), "a label that had arrived was asked for again"
    assert len(paid) - 1 + len(killer.cases) == NUM_REQUESTS == len({*paid, *killer.cases})
    check_advantages(said)


def check_advantages(said: str) -> None:
    made = [[[round(value, 4) for value in own] for own in group] for group in json.loads(said)]
    assert made == [DECOUPLED] * NUM_GROUPS


@pytest.mark.parametrize("number", [6, NUM_REQUESTS])
def test_killed_labelling_pays_for_no_label_twice(number: int, tmp_path: Path) -> None:
    kill_at(number, tmp_path / "credit")


@pytest.mark.sweep
def test_labelling_killed_at_every_request(tmp_path: Path) -> None:
    for number in range(1, NUM_REQUESTS + 1):
        kill_at(number, tmp_path / str(number))


@pytest.mark.parametrize("thing", sampled(["stop", "silence"], ["stop"]))
def test_stopped_labelling_and_silent_model_change_nothing(thing: str, tmp_path: Path) -> None:
    disturber = Disturber(thing)
    with serving(disturber, disturber.silent) as server:
        disturber.at = NUM_REQUESTS // 2
        code, said = disturber.run(server.url, tmp_path / "credit")
    assert code == 0
    # The reply that had not come may be asked for once more.
    assert len(set(disturber.cases)) == NUM_REQUESTS and len(disturber.cases) <= NUM_REQUESTS + 1
    check_advantages(said)
