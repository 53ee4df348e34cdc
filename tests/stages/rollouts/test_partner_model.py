"""An environment with a partner model, as a user runs it: nothing is asked twice, and what the partner cost counts."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
from support.qwen_tokenizer import qwen_tokenizer
from support.runs.command_line import Desk
from support.servers.scripted_server import RecordedRequest, Reply, served

from treadle.core.chat import ChatTokenizer

NUM_KILLS = int(os.environ.get("TREADLE_KILL_POINTS", "2"))
TOKENIZER = ChatTokenizer.load(qwen_tokenizer())
IN_FLIGHT = 2
NUM_TASKS = 12
SOURCE = '''
from treadle.api import Done, Environment, ModelTurn, Task


class Talk(Environment):
    """Talk to a partner for three turns."""

    roles = ("human",)

    async def reset(self, task: Task) -> str:
        self.number = task.payload["number"]
        return f"Talk about number {self.number}."

    async def step(self, turn: ModelTurn) -> str | Done:
        if turn.number == 2:
            return Done("Bye.", reward=float(len(turn.text)))
        said = f"You are the partner {self.number}. The model says: {turn.text}"
        return await self.ask("human", [{"role": "user", "content": said}])
'''
CONFIG = """
[models.base]
model = "scripted"
endpoints = [{{ url = "{url}" }}]
tokenizer = "{tokenizer}"

[models.human]
model = "scripted"
endpoints = [{{ url = "{url}" }}]
tokenizer = "{tokenizer}"

[questions]
sources = [{{ path = "tasks.jsonl", dataset = "talk", payload = ["number"] }}]

[environment]
type = "{type}"

[rollouts]
max_concurrent = {in_flight}
"""


def answer(request: RecordedRequest) -> Reply:
    """Answer with a word that the prompt alone decides."""
    word = hashlib.sha256(request.text.encode()).hexdigest()[:8]
    return Reply(word, (*TOKENIZER.encode(word), TOKENIZER.turn_end_ids[0]))


def is_asked(request: RecordedRequest) -> bool:
    """Whether a request is of a rollout, not a check of the server."""
    return "Talk about number" in request.text or "You are the partner" in request.text


def desk_with_partner(folder: Path, url: str, kind: str = "talk.py:Talk", *, num_tasks: int = NUM_TASKS) -> Desk:
    """Write the environment, its configuration and tasks."""
    folder.mkdir(exist_ok=True)
    desk = Desk(folder)
    (folder / "talk.py").write_text(SOURCE)
    config = CONFIG.format(url=url, tokenizer=qwen_tokenizer(), type=kind, in_flight=IN_FLIGHT)
    (folder / "talk.toml").write_text(config)
    desk.write("tasks.jsonl", *({"question": "Talk.", "number": number} for number in range(num_tasks)))
    return desk


@pytest.mark.sweep
def test_killed_dialogues_ask_neither_model_nor_partner_twice(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    lock, reached = threading.Lock(), threading.Event()
    limit = 0

    def script(request: RecordedRequest) -> Reply:
        if is_asked(request):
            with lock:
                seen.append((request.text, request.body["seed"]))
                if len(seen) >= limit:
                    reached.set()
        return answer(request)

    num_tasks = max(NUM_TASKS, 2 * NUM_KILLS)
    with served(script, codec=TOKENIZER) as server:
        desk = desk_with_partner(tmp_path / "desk", server.url, num_tasks=num_tasks)
        for kill in range(NUM_KILLS):
            with lock:
                limit = len(seen) + 5 + kill % 7
                reached.clear()
            with desk.started("run", "talk.toml", "--run", "talk") as process:
                while not reached.wait(0.05) and process.poll() is None:
                    pass
                assert process.poll() is None, "the run ended before it was killed"
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
        desk.treadle("run", "talk.toml", "--run", "talk").succeeded()
        counts = Counter(seen)
        shutil.copytree(desk.folder, tmp_path / "other", ignore=shutil.ignore_patterns("outputs"))
        whole = Desk(tmp_path / "other")
        whole.treadle("run", "talk.toml", "--run", "talk").succeeded()
    again = sum(count - 1 for count in counts.values())
    print(f"{NUM_KILLS} kills, {len(counts)} requests, {again} of them twice")
    assert again <= IN_FLIGHT * NUM_KILLS, "more requests were served twice than were in flight at the kills"
    assert len(counts) == 5 * num_tasks, "each rollout has three turns and two replies"
    assert any(text.count("You are the partner") for text, _ in counts)
    kinds = ("1/rollouts@base", "rollouts")
    assert desk.rows("talk", *kinds) == whole.rows("talk", *kinds)


def test_partner_may_be_a_service_that_only_chats(tmp_path: Path) -> None:
    with (
        served(answer, codec=TOKENIZER) as server,
        served(lambda request: Reply("Hello."), codec=TOKENIZER, chat_only=True) as hosted,
    ):
        desk = desk_with_partner(tmp_path / "desk", server.url, num_tasks=2)
        own, partner = (desk.folder / "talk.toml").read_text().split("[models.human]")
        table = f'\napi = "chat"\nmodel = "scripted"\nendpoints = [{{ url = "{hosted.url}" }}]\n\n[questions]'
        (desk.folder / "talk.toml").write_text(f"{own}[models.human]{table}{partner.split('[questions]')[1]}")
        desk.treadle("run", "talk.toml", "--run", "talk").succeeded()
    rows = desk.rows("talk", "1/rollouts@base", "rollouts")
    assert [row["status"] for row in rows] == ["finished"] * 2
    assert all("Hello." in row["text"] for row in rows)


def test_tokens_of_the_partner_count_after_an_interruption(tmp_path: Path) -> None:
    """The budget of a resumed run begins with what policy and partner used before, so it is exceeded at once."""
    lock, reached = threading.Lock(), threading.Event()
    used = {"policy": list[int](), "partner": list[int]()}

    def script(request: RecordedRequest) -> Reply:
        reply = answer(request)
        if is_asked(request):
            role = "partner" if "You are the partner" in request.text else "policy"
            assert request.prompt is not None and reply.token_ids is not None
            with lock:
                used[role].append(len(request.prompt) + len(reply.token_ids))
                if sum(map(len, used.values())) == 24:
                    reached.set()
        return reply

    with served(script, codec=TOKENIZER) as server:
        desk = desk_with_partner(tmp_path / "desk", server.url)
        with desk.started("run", "talk.toml", "--run", "talk") as process:
            while not reached.wait(0.05) and process.poll() is None:
                pass
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        told = desk.treadle("run", "talk.toml", "--run", "talk", "--set", "rollouts.max_total_tokens=1")
    found = re.search(r"(\d+) tokens are used of max_total_tokens = 1", told.err)
    assert told.code != 0 and found is not None, told.err
    # What was in flight at the kill may be lost.
    lost = IN_FLIGHT * max(map(max, used.values()))
    total = sum(map(sum, used.values()))
    assert sum(used["partner"]) > lost and total - lost <= int(found[1]) <= total
