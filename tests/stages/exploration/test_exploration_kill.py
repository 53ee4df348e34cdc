"""Killed, stopped and unanswered explorations pay for no reply of any role twice, and end with the same bytes."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.exploration.desk import FAST, SCRIPTS, is_work
from support.runs.command_line import Desk
from support.runs.processes import stand_still, until, wait_out
from support.servers.scripted_server import RecordedRequest, served
from support.sweep import sampled
from support.tables.given_questions import TOKENIZER

from treadle.tasks.planning.toml_lines import toml_lines

NUM_KILLS = int(os.environ.get("TREADLE_KILL_POINTS", "1"))
KILLS_PER_RUN = 8
TIME_S = 6.0
"""Of a rollout and of a summary."""
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
    """Models of all roles, which count requests by content; while they are silent they answer nothing."""

    def __init__(self, stack: ExitStack) -> None:
        self.reached = threading.Event()
        self._silent = asyncio.Event()
        self._limit = 0
        self._lock = threading.Lock()
        self.asked: Counter[str] = Counter()
        self.urls = {role: stack.enter_context(self._served(role)).url for role in SCRIPTS}

    def _served(self, role: str) -> Any:
        async def answer(request: RecordedRequest) -> Any:
            if not is_work(request):
                return "yes"
            with self._lock:
                self.asked[json.dumps([role, request.messages, request.body["seed"]])] += 1
                if self.asked.total() >= self._limit:
                    self.reached.set()
            while self._silent.is_set():
                await asyncio.sleep(0.02)
            return SCRIPTS[role](request)

        options = {"codec": TOKENIZER, "model": role, "max_model_len": 32768, "chat_only": True}
        return served(answer, silent=self._silent, **options)

    def expect(self, more: int) -> None:
        """Set `reached` once so many further requests have arrived."""
        with self._lock:
            self._limit = self.asked.total() + more
            self.reached.clear()

    def taken(self) -> Counter[str]:
        """Return what was asked since the last call."""
        with self._lock:
            asked, self.asked, self._limit = self.asked, Counter(), 0
        return asked

    def fall_silent(self) -> None:
        """Answer nothing for longer than any work may take."""
        self._silent.set()
        wait_out(TIME_S + 1.0)
        self._silent.clear()


def config(urls: dict[str, str]) -> str:
    models = {role: {"model": role, "api": "chat", "endpoints": [{"url": url}], **FAST} for role, url in urls.items()}
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
            "max_concurrent": AT_ONCE,
            "summary_time_s": TIME_S,
        },
    }
    return "\n".join(toml_lines(tree))


def desk_in(folder: Path, models: Models) -> Desk:
    folder.mkdir()
    (folder / "recipes.py").write_text(RECIPE)
    (folder / "explore.toml").write_text(config(models.urls))
    return Desk(folder)


def digests(desk: Desk) -> dict[str, str]:
    record = json.loads((desk.folder / "outputs/runs/explored/records/1/exploration.json").read_text())
    return {kind: made["digest"] for kind, made in record["outputs"].items()}


@pytest.fixture(scope="module")
def served_models() -> Iterator[Models]:
    with ExitStack() as stack:
        yield Models(stack)


@pytest.fixture
def models(served_models: Models, calm: tuple[dict[str, str], Counter[str]]) -> Models:
    """Models that nobody has asked since the calm run."""
    served_models.taken()
    return served_models


@pytest.fixture(scope="module")
def calm(served_models: Models, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], Counter[str]]:
    """Digests and requests of an undisturbed run."""
    desk = desk_in(tmp_path_factory.mktemp("calm") / "desk", served_models)
    desk.treadle(*RUN).succeeded()
    asked = served_models.taken()
    assert set(asked.values()) == {1}
    return digests(desk), asked


def test_killed_explorations_pay_for_nothing_twice(
    tmp_path: Path, models: Models, calm: tuple[dict[str, str], Counter[str]]
) -> None:
    made, whole = calm
    killed = 0
    for number in itertools.count():
        desk, before = desk_in(tmp_path / str(number), models), killed
        for life in range(min(KILLS_PER_RUN, NUM_KILLS - killed)):
            models.expect(AT_ONCE + 2 + (5 * number + 3 * life) % 11)
            with desk.started(*RUN) as process:
                until(lambda at=process: models.reached.is_set() or at.poll() is not None, "requests", 120.0)
                process.kill()
                killed += process.wait() == -signal.SIGKILL
        desk.treadle(*RUN).succeeded()
        asked = models.taken()
        assert asked.keys() == whole.keys()
        again = (asked - whole).total()
        assert again <= AT_ONCE * (killed - before), "more was asked twice than was in flight at the kills"
        assert digests(desk) == made
        shutil.rmtree(desk.folder)
        if killed >= NUM_KILLS:
            break


@pytest.mark.parametrize("thing", sampled(["run", "models"], ["models"]))
def test_stopped_run_and_silent_models_change_nothing(
    tmp_path: Path, models: Models, calm: tuple[dict[str, str], Counter[str]], thing: str
) -> None:
    made, whole = calm
    desk = desk_in(tmp_path / "desk", models)
    models.expect(whole.total() // 2)
    with desk.started(*RUN) as process:
        until(models.reached.is_set, "half of the requests", 120.0)
        if thing == "run":
            stand_still(process.pid, TIME_S + 1.0)
        else:
            models.fall_silent()
        desk.ended(process).succeeded()
    asked = models.taken()
    # Replies that had not come may be asked for again; those that had are not.
    assert asked.keys() == whole.keys() and (asked - whole).total() <= AT_ONCE
    assert digests(desk) == made
