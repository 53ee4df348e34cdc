"""Labels of a training that is killed at any request: none that arrived is paid for again, advantages are the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.credit.labelling_process import NUM_GROUPS
from support.credit.worked_example import DECOUPLED, label_actions
from support.model_servers.threaded_server import serving
from support.servers.scripted_server import RecordedRequest

NUM_REQUESTS = 4 * NUM_GROUPS
TESTS = Path(__file__).parents[2]


class Killer:
    """A model that kills who asks it for the n-th time, after the replies to all requests before."""

    def __init__(self) -> None:
        self.cases: list[str] = []
        self.kill_at: int | None = None
        self.pid = 0

    def __call__(self, recorded: RecordedRequest) -> str:
        assert recorded.messages is not None
        self.cases.append(recorded.messages[-1]["content"])
        if len(self.cases) == self.kill_at:
            os.kill(self.pid, signal.SIGKILL)
        return label_actions(recorded)

    def run(self, url: str, folder: Path) -> tuple[int, str]:
        """Run the labelling process to its end; return its exit code and what it printed."""
        argv = [sys.executable, "-m", "support.credit.labelling_process", url, str(folder)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))}
        with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True) as process:
            self.pid = process.pid
            said, _ = process.communicate()
        return process.returncode, said


def kill_at(number: int, folder: Path) -> None:
    killer = Killer()
    with serving(killer) as server:
        killer.kill_at = number
        assert killer.run(server.url, folder)[0] == -signal.SIGKILL
        paid, killer.cases, killer.kill_at = killer.cases, [], None
        code, said = killer.run(server.url, folder)
    assert code == 0
    assert not set(paid[:-1]) & set(killer.cases), "a label that had arrived was asked for again"
    assert len(paid) - 1 + len(killer.cases) == NUM_REQUESTS == len({*paid, *killer.cases})
    made = [[[round(value, 4) for value in own] for own in group] for group in json.loads(said)]
    assert made == [DECOUPLED] * NUM_GROUPS


@pytest.mark.parametrize("number", [6, NUM_REQUESTS])
def test_killed_labelling_pays_for_no_label_twice(number: int, tmp_path: Path) -> None:
    kill_at(number, tmp_path / "credit")


@pytest.mark.sweep
def test_labelling_killed_at_every_request(tmp_path: Path) -> None:
    for number in range(1, NUM_REQUESTS + 1):
        kill_at(number, tmp_path / str(number))
