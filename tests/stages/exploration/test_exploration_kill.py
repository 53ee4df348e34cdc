"""After `kill -9` no reply of an explorer, summariser, solver or grader is paid for again; the tasks are the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.exploration.desk import FAST, SCRIPTS, is_work
from support.runs.command_line import Desk
from support.servers.scripted_server import Item, RecordedRequest, served
from support.tables.given_questions import TOKENIZER

from treadle.tasks.planning.toml_lines import toml_lines

NUM_KILLS = int(os.environ.get("TREADLE_KILL_POINTS", "1"))
AT_ONCE = 2
RECIPE = """
from typing import ClassVar

from treadle.api import Recipe, Step


class Explored(Recipe):
    steps: ClassVar[tuple[Step, ...]] = (
        Step(("questions",), qualifier="seed"), Step(("exploration",)), Step(("questions",)),
    )
"""


class Counted:
    """Count requests by their content, over all servers."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.limit = 0
        self.reached = threading.Event()
        self._lock = threading.Lock()

    def script(self, role: str) -> Any:
        def answer(request: RecordedRequest) -> Item:
            if not is_work(request):
                return "yes"
            with self._lock:
                self.seen.append(json.dumps([role, request.messages, request.body["seed"]]))
                if len(self.seen) >= self.limit:
                    self.reached.set()
            return SCRIPTS[role](request)

        return answer

    def wait_for(self, more: int) -> None:
        with self._lock:
            self.limit = len(self.seen) + more
            self.reached.clear()


def config(urls: dict[str, str]) -> str:
    models = {role: {"model": role, "api": "chat", "endpoints": [{"url": url}], **FAST} for role, url in urls.items()}
    grader = models.pop("grader")
    tree = {
        "seed": 5,
        "flow": {"recipe": {"type": "recipes.py:Explored"}, "stages": ["exploration"]},
        "models": models,
        "environment": {"type": "ledger", "num_tasks": 4, "max_turns": 8},
        "questions": {"sources": [{"from": "environment"}]},
        "scorers": {"judged": {"type": "llm-binary-gt", "model": grader}},
        "exploration": {
            "roles": {role: {"model": role} for role in ("explorer", "summariser", "solver")},
            "filters": [{"type": "lexical", "within": "seed"}],
            "grader": "judged",
            "max_concurrent": AT_ONCE,
        },
    }
    return "\n".join(toml_lines(tree))


def test_killed_explorations_pay_for_nothing_twice(tmp_path: Path) -> None:
    counted = Counted()
    with ExitStack() as stack:
        servers = {
            role: stack.enter_context(
                served(counted.script(role), codec=TOKENIZER, model=role, max_model_len=32768, chat_only=True)
            )
            for role in SCRIPTS
        }
        folder = tmp_path / "desk"
        folder.mkdir()
        (folder / "recipes.py").write_text(RECIPE)
        (folder / "explore.toml").write_text(config({role: server.url for role, server in servers.items()}))
        desk = Desk(folder)
        for kill in range(NUM_KILLS):
            counted.wait_for(4 + 3 * (kill % 5))
            with desk.started("run", "explore.toml", "--run", "explored") as process:
                while not counted.reached.wait(0.05) and process.poll() is None:
                    pass
                if process.poll() is None:
                    os.kill(process.pid, signal.SIGKILL)
                process.wait()
        desk.treadle("run", "explore.toml", "--run", "explored").succeeded()
        again = sum(count - 1 for count in Counter(counted.seen).values())
        other = tmp_path / "other"
        shutil.copytree(folder, other, ignore=shutil.ignore_patterns("outputs"))
        Desk(other).treadle("run", "explore.toml", "--run", "explored").succeeded()
    assert again <= AT_ONCE * NUM_KILLS, "more requests were served twice than were in flight at the kills"
    for kind in ("synthetic_tasks", "objectives"):
        assert desk.rows("explored", "1/exploration", kind) == Desk(other).rows("explored", "1/exploration", kind)
