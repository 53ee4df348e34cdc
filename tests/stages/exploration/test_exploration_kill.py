"""Killed, stopped and unanswered explorations pay for no reply of any role twice, and end with the same bytes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from support.exploration.desk import FAST, SCRIPTS, is_work
from support.model_servers.script_process import ScriptProcess, script_process
from support.runs.command_line import Desk
from support.runs.processes import stand_still, until, wait_out

from treadle.tasks.planning.toml_lines import toml_lines

NUM_KILLS = int(os.environ.get("TREADLE_KILL_POINTS", "1"))
KILLS_PER_RUN = 8
TIME_S = 30.0
"""Of a rollout and of a summary."""
OUTAGE_S = 8.0
"""After which a server that stands still is given up, if it is to be noticed."""
LIMIT_S = 600.0
"""Only a run that hangs takes longer."""
AT_ONCE = 2
RUN = ("run", "explore.toml", "--run", "explored")
RECIPE = """
from typing import ClassVar

from treadle.api import Recipe, Step


class Explored(Recipe):
    steps: ClassVar[tuple[Step, ...]] = (
        Step(("questions",), qualifier="seed"), Step(("exploration",)), Step(("questions",)),
    )
"""


class Models:
    """Models of all roles in a process of their own, whose requests are counted by content."""

    def __init__(self, process: ScriptProcess) -> None:
        self.process = process
        self._asked: Counter[str] = Counter()

    def num_asked(self) -> int:
        """Return how many requests have arrived since `taken`, without those of the preflight."""
        self._asked.update(
            json.dumps([role, body["messages"], body["seed"]]) for role, body in self.process.arrived() if is_work(body)
        )
        return self._asked.total()

    def taken(self) -> Counter[str]:
        """Return what was asked since the last call."""
        self.num_asked()
        asked, self._asked = self._asked, Counter()
        return asked


def config(urls: Mapping[str, str], outage_wait_s: float) -> str:
    patience = {**FAST, "outage_wait_s": outage_wait_s}
    models = {role: {"model": role, "api": "chat", "endpoints": [{"url": urls[role]}], **patience} for role in SCRIPTS}
    grader = models.pop("grader")
    tree = {
        "seed": 5,
        "flow": {"recipe": {"type": "recipes.py:Explored"}, "stages": ["exploration"]},
        "models": models,
        "environment": {"type": "ledger", "num_tasks": 4, "max_turns": 8, "rollout_time_s": TIME_S},
        "questions": {"sources": [{"from": "environment"}]},
        "scorers": {"judged": {"type": "llm-binary-gt", "model": grader}},
        "exploration": {
            "roles": {role: {"model": role} for role in ("explorer", "summariser", "solver")},
            "filters": [{"type": "lexical", "within": "seed"}],
            "grader": "judged",
            "min_agreement": 0.0,
            "max_concurrent": AT_ONCE,
            "pending_retries": 0,
            "summary_time_s": TIME_S,
        },
    }
    return "\n".join(toml_lines(tree))


def desk_in(folder: Path, models: Models, outage_wait_s: float = 60.0) -> Desk:
    folder.mkdir()
    (folder / "recipes.py").write_text(RECIPE)
    (folder / "explore.toml").write_text(config(models.process.urls, outage_wait_s))
    return Desk(folder)


def digests(desk: Desk) -> dict[str, str]:
    record = json.loads((desk.folder / "outputs/runs/explored/records/1/exploration.json").read_text())
    return {kind: made["digest"] for kind, made in record["outputs"].items()}


@pytest.fixture(scope="module")
def served_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    folder = tmp_path_factory.mktemp("models")
    with script_process(folder / "requests.log", "support.exploration.desk:SERVED") as process:
        yield Models(process)


@pytest.fixture
def models(served_models: Models, calm: Calm) -> Models:
    """Models that were not asked since the calm run."""
    served_models.taken()
    return served_models


class Calm(NamedTuple):
    """Digests and requests of an undisturbed run, and their number with those of the preflight."""

    digests: dict[str, str]
    asked: Counter[str]
    num_requests: int


@pytest.fixture(scope="module")
def calm(served_models: Models, tmp_path_factory: pytest.TempPathFactory) -> Calm:
    desk = desk_in(tmp_path_factory.mktemp("calm") / "desk", served_models)
    desk.treadle(*RUN).succeeded()
    asked = served_models.taken()
    assert set(asked.values()) == {1}
    return Calm(digests(desk), asked, served_models.process.num_requests)


def test_killed_explorations_pay_for_nothing_twice(tmp_path: Path, models: Models, calm: Calm) -> None:
    killed = 0
    for number in itertools.count():
        desk, before = desk_in(tmp_path / str(number), models), killed
        for life in range(min(KILLS_PER_RUN, NUM_KILLS - killed)):
            limit = models.num_asked() + AT_ONCE + 2 + (5 * number + 3 * life) % 11
            with desk.started(*RUN) as process:
                until(lambda end=limit, at=process: models.num_asked() >= end or at.poll() is not None, "work", LIMIT_S)
                process.kill()
                killed += process.wait() == -signal.SIGKILL
        desk.treadle(*RUN).succeeded()
        asked = models.taken()
        assert asked.keys() == calm.asked.keys()
        again = (asked - calm.asked).total()
        assert again <= AT_ONCE * (killed - before), "more was asked twice than was in flight at the kills"
        assert digests(desk) == calm.digests
        shutil.rmtree(desk.folder)
        if killed >= NUM_KILLS:
            break


@pytest.mark.sweep
@pytest.mark.parametrize("thing", ["run", "models"])
def test_run_or_models_that_stand_still_change_nothing(tmp_path: Path, models: Models, calm: Calm, thing: str) -> None:
    desk = desk_in(tmp_path / "desk", models)
    if thing == "models":
        models.process.freeze_after(calm.num_requests // 2)
    with desk.started(*RUN) as process:
        if thing == "run":
            until(lambda: models.num_asked() >= calm.asked.total() // 2, "half of the requests", LIMIT_S)
            stand_still(process.pid, TIME_S + 1.0)
        else:
            until(models.process.is_frozen, "the models stand still", LIMIT_S)
            wait_out(TIME_S + 1.0)
            models.process.thaw()
        desk.ended(process, LIMIT_S).succeeded()
    asked = models.taken()
    # Replies that had not come may be asked for again; those that had are not.
    assert asked.keys() == calm.asked.keys() and (asked - calm.asked).total() <= AT_ONCE
    assert digests(desk) == calm.digests


def test_models_that_stay_frozen_are_named_and_nothing_is_paid_for_twice(
    tmp_path: Path, models: Models, calm: Calm
) -> None:
    desk = desk_in(tmp_path / "desk", models, outage_wait_s=OUTAGE_S)
    models.process.freeze_after(calm.num_requests - 4)
    with desk.started(*RUN) as process:
        until(models.process.is_frozen, "the models stand still", LIMIT_S)
        ended = desk.ended(process, LIMIT_S)
    models.process.thaw()
    said = ended.failed(
        "1/exploration: ", "jobs could not be finished; first cause: models.", "run again to retry them"
    )
    assert any(f"{url} (did not respond for {OUTAGE_S:g} s)" in said for url in models.process.urls.values()), said
    desk.treadle(*RUN).succeeded()
    asked = models.taken()
    assert asked.keys() == calm.asked.keys() and (asked - calm.asked).total() <= AT_ONCE
    assert digests(desk) == calm.digests
