"""Managers of contexts, as a user runs them: killed and resumed, with a helper's verdict, seen in `show`."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import threading
from pathlib import Path

from support.qwen_tokenizer import qwen_tokenizer
from support.runs.command_line import END_S, TREADLE, Desk, environment
from support.runs.processes import end_family
from support.servers.scripted_server import RecordedRequest, Reply, served

from treadle.agent.contexts.clipping import REMOVED
from treadle.core.chat import ChatTokenizer

TOKENIZER = ChatTokenizer.load(qwen_tokenizer())
SOURCE = '''
from treadle.api import Done, Environment, ModelTurn, Task


class Talk(Environment):
    """Talk for four turns."""

    async def reset(self, task: Task) -> str:
        return "Talk."

    async def step(self, turn: ModelTurn) -> str | Done:
        return Done("Bye.", reward=1.0) if turn.number == 3 else f"Reply {turn.number}."
'''
CONFIG = """
[models.base]
model = "scripted"
endpoints = [{{ url = "{url}" }}]
tokenizer = "{tokenizer}"

[questions]
sources = [{{ path = "tasks.jsonl", dataset = "talk", payload = ["number"] }}]

[environment]
type = "talk.py:Talk"
{context}

[rollouts]
max_concurrent = 1
"""
VERDICT = '{"verdicts": [{"id": "m2", "action": "remove"}]}'
HELPER = """
[models.helper]
model = "scripted"
endpoints = [{{ url = "{helper}" }}]
tokenizer = "{tokenizer}"
"""
ROWS = "1/rollouts@base", "rollouts"
NUM_TASKS = 6


def desk_of(folder: Path, url: str, context: str, helper: str = "") -> Desk:
    folder.mkdir(exist_ok=True)
    desk = Desk(folder)
    (folder / "talk.py").write_text(SOURCE)
    config = CONFIG + HELPER if helper else CONFIG
    text = config.format(url=url, tokenizer=qwen_tokenizer(), context=context, helper=helper)
    (folder / "talk.toml").write_text(text)
    desk.write("tasks.jsonl", *({"question": "Talk.", "number": number} for number in range(NUM_TASKS)))
    return desk


def answer(request: RecordedRequest) -> Reply:
    """Give a verdict, or think and say the number of the turn."""
    turn = request.text.count("<|im_start|>assistant")
    text = VERDICT if "verdicts" in request.text else f"<think>thought {turn}</think>turn {turn}"
    return Reply(text, (*TOKENIZER.encode(text), TOKENIZER.turn_end_ids[0]))


def test_rollouts_with_own_contexts_have_the_same_rows_from_a_killed_run_and_its_helper(tmp_path: Path) -> None:
    context = 'context = { manager = "linear_think", think_hint = "Think first." }'
    reached, numbers, both = threading.Event(), itertools.count(1), asyncio.Event()

    async def script(request: RecordedRequest) -> Reply:
        if "Reply 1." in request.text and not both.is_set():
            # Each process runs one rollout at a time, so both are at work.
            if next(numbers) == 2:
                both.set()
                reached.set()
            await both.wait()
        return answer(request)

    run = ("run", "talk.toml", "--run", "talk")
    with served(script, codec=TOKENIZER) as server:
        desk = desk_of(tmp_path / "desk", server.url, context)
        sharded = (*run, "--set", "rollouts.shards=2")
        work = [TREADLE, "work", "1/rollouts@base", "--run", "talk", "--wait"]
        with desk.started(*sharded) as process, subprocess.Popen(work, cwd=desk.folder, env=environment()) as helper:
            try:
                while not reached.wait(0.05) and process.poll() is None:
                    pass
                assert process.poll() is None, "the run ended before it was killed"
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                desk.treadle(*sharded).succeeded()
                assert helper.wait(timeout=END_S) == 0
            finally:
                end_family(helper)
        saw = [request.prompt for request in server.requests]
        whole = desk_of(tmp_path / "whole", server.url, context)
        whole.treadle(*run).succeeded()
    rows = desk.rows("talk", *ROWS)
    assert rows == whole.rows("talk", *ROWS)
    for row in rows:
        assert row["num_turns"] == len(row["samples"]) == 4 and row["reward"] == 1.0
        for sample in row["samples"]:
            (start,) = sample["turn_starts"]
            assert [*sample["prompt_ids"], *sample["ids"][:start]] in saw
            assert "thought" not in TOKENIZER.decode(sample["prompt_ids"])
    shown = desk.treadle("show", rows[0]["rollout_key"], "--run", "talk").succeeded()
    assert shown.out.count("context trimmed") == 3


def test_a_helper_gives_the_verdict(tmp_path: Path) -> None:
    context = 'context = { manager = "context_selfclip", clip_tokens = 60 }\nroles.clipper = { model = "helper" }'
    with served(answer, codec=TOKENIZER) as server, served(answer, codec=TOKENIZER) as helper:
        desk = desk_of(tmp_path / "desk", server.url, context, helper.url)
        desk.treadle("run", "talk.toml", "--run", "talk").succeeded()
        asked = [["verdicts" in request.text for request in one.requests].count(True) for one in (server, helper)]
    assert asked == [0, NUM_TASKS]
    for row in desk.rows("talk", *ROWS):
        assert len(row["samples"]) == 2 and REMOVED in TOKENIZER.decode(row["samples"][1]["prompt_ids"])
