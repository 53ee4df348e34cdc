"""Environments by module and by entry point, with tasks of their own, through the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.qwen_tokenizer import qwen_tokenizer
from support.runs.command_line import Desk
from support.servers.scripted_server import RecordedRequest, Reply, served
from support.sweep import sampled

from treadle.core.chat import ChatTokenizer

TOKENIZER = ChatTokenizer.load(qwen_tokenizer())
SOURCE = '''
from collections.abc import AsyncIterator, Mapping
from typing import Any

from treadle.api import Done, Environment, ModelTurn, Task


class Echo(Environment):
    """Say the word that is asked for."""

    num_tasks: int = 3
    """Tasks of each split."""

    @classmethod
    async def tasks(cls, settings: Any, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        for number in range(settings.num_tasks):
            yield {"question": "Say the word.", "payload": {"word": f"{split}{number}"}}

    async def reset(self, task: Task) -> str:
        self.word = task.payload["word"]
        return f"Say the word {self.word}."

    async def step(self, turn: ModelTurn) -> Done:
        return Done(reward=float(turn.text == self.word))
'''
CONFIG = """
[models.base]
model = "scripted"
endpoints = [{{ url = "{url}" }}]
tokenizer = "{tokenizer}"

[questions]
sources = [{{ from = "environment", split = "heldout" }}]

[environment]
type = "{type}"
num_tasks = 4
"""


def echo(request: RecordedRequest) -> Reply:
    word = request.text.rpartition("Say the word ")[2].partition(".")[0]
    return Reply(word, (*TOKENIZER.encode(word), TOKENIZER.turn_end_ids[0]))


def install(folder: Path) -> None:
    """Write a package with an entry point into a folder of the import path."""
    (folder / "echo_package").mkdir(parents=True)
    (folder / "echo_package" / "__init__.py").write_text(SOURCE)
    facts = folder / "echo_package-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-package\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[treadle.environments]\necho = echo_package:Echo\n")


@pytest.mark.parametrize("kind", sampled(["echo_package:Echo", "echo"], ["echo"]))
def test_type_of_a_package_brings_its_tasks_and_runs(tmp_path: Path, kind: str) -> None:
    install(tmp_path / "packages")
    with served(echo, codec=TOKENIZER) as server:
        desk = Desk(tmp_path)
        config = CONFIG.format(url=server.url, tokenizer=qwen_tokenizer(), type=kind)
        (tmp_path / "echo.toml").write_text(config)
        done = desk.alone("run", "echo.toml", "--run", "echo", PYTHONPATH=str(tmp_path / "packages"))
    assert done.code == 0, done.err
    tasks = desk.rows("echo", "1/questions", "questions")
    rollouts = desk.rows("echo", "1/rollouts@base", "rollouts")
    assert len(tasks) == len(rollouts) == 4, "tasks with one text and different payloads are different tasks"
    assert {row["split"] for row in tasks} == {"heldout"} and len({row["payload"] for row in tasks}) == 4
    assert sorted(row["text"].removesuffix("<|im_end|>") for row in rollouts) == [f"heldout{n}" for n in range(4)]
    assert [row["score"] for row in desk.rows("echo", "1/scores@base", "scores")] == [1.0] * 4
