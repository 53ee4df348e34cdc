"""Labels of a training that is killed or stopped, or whose model is: none is paid for twice, same advantages."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.credit.labelling_process import NUM_GROUPS, REQUEST_TIME_S
from support.credit.worked_example import DECOUPLED, label_actions
from support.model_servers.script_process import ScriptProcess, script_process
from support.model_servers.threaded_server import serving
from support.runs.processes import stand_still, until, wait_out
from support.servers.scripted_server import RecordedRequest

NUM_REQUESTS = 4 * NUM_GROUPS
HALF = NUM_REQUESTS // 2
TESTS = Path(__file__).parents[2]


@contextmanager
def labelling(url: str, folder: Path, outage_wait_s: float = 120.0) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that labels; it ends with the block."""
    argv = [sys.executable, "-m", "support.credit.labelling_process", url, str(folder), str(outage_wait_s)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))}
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def check_ended(process: subprocess.Popen[str]) -> None:
    """Check that it ended with the advantages of the worked example."""
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    made = [[[round(value, 4) for value in own] for own in group] for group in json.loads(said)]
    assert made == [DECOUPLED] * NUM_GROUPS


class Labeller:
    """A model that kills or stops the process that asks it for the n-th time, after the replies to all before."""

    def __init__(self) -> None:
        self.cases: list[str] = []
        self.at: int | None = None
        self.pid = 0
        self.is_killing = True

    async def __call__(self, recorded: RecordedRequest) -> str:
        assert recorded.messages is not None
        self.cases.append(recorded.messages[-1]["content"])
        if len(self.cases) == self.at and self.is_killing:
            os.kill(self.pid, signal.SIGKILL)
        elif len(self.cases) == self.at:
            await asyncio.to_thread(stand_still, self.pid, REQUEST_TIME_S + 1.0)
        return label_actions(recorded)


class Forgetful(Labeller):
    """One that never answers the first request about one case, though it answers others meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_again = asyncio.Event()

    async def __call__(self, recorded: RecordedRequest) -> str:
        reply = await super().__call__(recorded)
        if len(self.cases) == HALF:
            # The process has given up this request once it asks again, by its own time limit.
            await self.asked_again.wait()
        elif self.cases[-1] in self.cases[:-1]:
            self.asked_again.set()
        return reply


def kill_at(number: int, folder: Path, killer: Labeller) -> list[str]:
    """Kill the labelling at a request, and let it be resumed; return all cases, those of the first life at first."""
    with serving(killer) as server:
        killer.at = number
        with labelling(server.url, folder) as process:
            killer.pid = process.pid
            assert process.wait() == -signal.SIGKILL
        paid, killer.cases, killer.at = killer.cases, [], None
        with labelling(server.url, folder) as process:
            check_ended(process)
    assert len(paid) == number
    assert not set(paid[:-1]) & set(killer.cases), "a label that had arrived was asked for again"
    assert len({*paid, *killer.cases}) == NUM_REQUESTS
    return [*paid, *killer.cases]


@pytest.mark.parametrize("number", [6, NUM_REQUESTS])
def test_killed_labelling_pays_for_no_label_twice(number: int, tmp_path: Path) -> None:
    assert len(kill_at(number, tmp_path / "credit", Labeller())) == NUM_REQUESTS + 1


@pytest.mark.sweep
def test_labelling_killed_at_every_request(tmp_path: Path) -> None:
    for number in range(1, NUM_REQUESTS + 1):
        assert len(kill_at(number, tmp_path / str(number), Labeller())) == NUM_REQUESTS + 1


@pytest.mark.sweep
def test_label_of_a_second_request_is_kept_if_the_training_is_killed_later(tmp_path: Path) -> None:
    cases = Counter(kill_at(HALF + 3, tmp_path / "credit", Forgetful()))
    assert cases.total() == NUM_REQUESTS + 2 and max(cases.values()) == 2


@pytest.mark.sweep
def test_stopped_labelling_changes_nothing(tmp_path: Path) -> None:
    model = Labeller()
    model.is_killing, model.at = False, HALF
    with serving(model) as server, labelling(server.url, tmp_path / "credit") as process:
        model.pid = process.pid
        check_ended(process)
    # The reply that had not come may be asked for once more.
    assert len(set(model.cases)) == NUM_REQUESTS and len(model.cases) <= NUM_REQUESTS + 1


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ScriptProcess]:
    """Yield a model in a process of its own, which stops itself at half of the requests, with one on the wire."""
    with script_process(tmp_path / "requests.log", "support.credit.labelling_process:MODELS") as process:
        process.freeze_after(HALF)
        yield process


def cases_of(model: ScriptProcess) -> list[str]:
    return [body["messages"][-1]["content"] for _, body in model.arrived()]


@pytest.mark.sweep
def test_labelling_continues_after_its_model_stood_still_for_longer_than_a_request_may_take(
    model: ScriptProcess, tmp_path: Path
) -> None:
    with labelling(model.urls["scripted"], tmp_path / "credit") as process:
        until(model.is_frozen, "the model stands still", 600.0)
        wait_out(REQUEST_TIME_S + 1.0)
        assert process.poll() is None
        model.thaw()
        check_ended(process)
    cases = cases_of(model)
    assert len(set(cases)) == NUM_REQUESTS and len(cases) <= NUM_REQUESTS + 1
    assert len(set(cases[: HALF - 1]) & set(cases[HALF - 1 :])) == 0, "a label that had arrived was asked for again"


def test_model_that_stays_frozen_is_named_and_labels_that_arrived_are_kept(
    model: ScriptProcess, tmp_path: Path
) -> None:
    url = model.urls["scripted"]
    with labelling(url, tmp_path / "credit", outage_wait_s=6.0) as process:
        _, errors = process.communicate()
    assert process.returncode == 1 and model.is_frozen()
    assert errors.splitlines()[-1] == f"models.rl.credit: no endpoint answers: {url} (did not respond for 6 s)"
    paid = cases_of(model)
    assert len(paid) == HALF
    model.thaw()
    with labelling(url, tmp_path / "credit") as process:
        check_ended(process)
    again = cases_of(model)
    assert not set(paid[:-1]) & set(again), "a label that had arrived was asked for again"
    assert len({*paid, *again}) == NUM_REQUESTS
