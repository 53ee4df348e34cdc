"""A run whose environment is at a service, killed and resumed: the same artifact, and no answer asked for twice."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
import urllib.request
from collections import Counter
from pathlib import Path

import orjson
import pytest
from support.environments.served_environment import ServedProcess
from support.qwen_tokenizer import qwen_tokenizer
from support.runs.command_line import Desk
from support.servers.scripted_server import RecordedRequest, Reply, served
from support.sweep import sampled

from treadle.core.chat import ChatTokenizer
from treadle.environments.ledger.assignment import Assignment
from treadle.environments.ledger.environment import solution_text
from treadle.environments.registry import ENVIRONMENTS, environment_type

TOKENIZER = ChatTokenizer.load(qwen_tokenizer())
NUM_TASKS = 6
CHANGES = ('{"call":"pay_order"', '{"call":"cancel_order"', '{"call":"transfer"')
"""What a request has after a turn that changed the book; a kill in between must not lose the change."""
CONFIG = """
flow.stages = ["rollouts"]

[models.base]
model = "scripted"
endpoints = [{{ url = "{url}" }}]
tokenizer = "{tokenizer}"
hedge_floor_s = 3600.0  # What a slow machine asks twice is not what is counted here.

[questions]
sources = [{{ from = "environment", split = "heldout" }}]

[rollouts]
max_concurrent = 2

[environment]
type = "service"
url = "{service}"
"""


async def solutions() -> dict[str, list[str]]:
    """Return the turns of a solution by the text of the task."""
    settings = ENVIRONMENTS.parse({"type": "ledger", "num_tasks": 4 * NUM_TASKS})
    rows = environment_type(settings).tasks(settings, "heldout", 0)
    made = [Assignment.make(row["payload"]["seed"]) async for row in rows]
    return {one.text: list(solution_text(one)) for one in made}


def written(desk: Desk) -> list[bytes]:
    """Return the bytes of the rollouts."""
    parts = (desk.folder / "outputs/artifacts/rollouts").rglob("part-*.parquet")
    return [path.read_bytes() for path in sorted(parts)]


@pytest.mark.parametrize("moment", sampled([1, 2, 3, 4, 5, 6, 7], {2}))
def test_killed_run_resumes_to_the_same_rollouts(tmp_path: Path, moment: int) -> None:
    turns = asyncio.run(solutions())
    seen: list[str] = []
    reached = threading.Event()

    def script(request: RecordedRequest) -> Reply:
        text = next((text for text in turns if text in request.text), None)
        if text is None:  # a check of the server
            said = "Ready."
        else:
            seen.append(request.text)
            if sum(any(call in one for call in CHANGES) for one in seen) >= moment:
                reached.set()
            said = turns[text][request.text.count("<|im_start|>assistant") - 1]
        return Reply(said, (*TOKENIZER.encode(said), TOKENIZER.turn_end_ids[0]))

    command = ("run", "ledger.toml", "--run", "r")
    with (
        ServedProcess("ledger", "--set", f"environments.ledger.num_tasks={4 * NUM_TASKS}") as service,
        served(script, codec=TOKENIZER) as server,
    ):
        desk = Desk(tmp_path / "desk")
        desk.folder.mkdir()
        config = CONFIG.format(url=server.url, tokenizer=qwen_tokenizer(), service=service.url)
        (desk.folder / "ledger.toml").write_text(config)
        whole = Desk(tmp_path / "whole")
        shutil.copytree(desk.folder, whole.folder)
        with desk.started(*command) as process:
            while not reached.wait(0.05) and process.poll() is None:
                pass
            assert process.poll() is None, desk.ended(process).err
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        desk.treadle(*command).succeeded()
        disturbed = Counter(seen)
        seen.clear()
        whole.treadle(*command).succeeded()
        with urllib.request.urlopen(service.url + "/instances") as response:
            left = orjson.loads(response.read())
    rows = desk.rows("r", "1/rollouts@base", "rollouts")
    assert len(rows) == NUM_TASKS and {row["status"] for row in rows} == {"finished"}
    # Some texts are those of two tasks, on different books.
    assert 1.0 in {row["reward"] for row in rows}
    assert written(desk) == written(whole) != []
    # Turns before the kill were acted again on new instances; the model was asked again only for those in flight.
    again = disturbed - Counter(seen)
    assert disturbed.keys() == set(seen) and again.total() <= 2
    assert len(left) <= 2, "only instances of the killed process wait for their idle limit"
