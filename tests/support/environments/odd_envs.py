"""An environment that does what each message says: answer, sleep, block, fail, end its process, leave a child."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from treadle.agent.contract import ModelTurn, Outcome, Task
from treadle.environments.custom.base import Done, Environment, Reaction

TASKS = {
    "plain": {},
    "raise-in-reset": {"reset": "raise"},
    "hang-in-reset": {"reset": "hang"},
    "exit-in-reset": {"reset": "exit"},
    "raise-in-close": {"close": "raise"},
    "hang-in-close": {"close": "hang"},
    "big-score": {"score": 5.0},
    "no-score": {"score": None},
}
"""Task id -> payload."""


class Odd(Environment):
    """Environment of odd tasks."""

    @classmethod
    async def tasks(cls, settings: Any, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        if split == "train":
            for name, payload in TASKS.items():
                yield {"id": name, "question": f"a task: {name}", "payload": payload}

    async def reset(self, task: Task) -> str:
        self.count = 0
        await act(task.payload.get("reset", ""))
        return task.text

    async def step(self, turn: ModelTurn) -> Reaction:
        if turn.text == "done":
            return Done("bye", reward=1.0)
        word, _, rest = turn.text.partition(" ")
        said = await act(word, rest)
        self.count += 1
        return f"{said or word} {self.count}"

    async def outcome(self) -> Outcome:
        score = self.task.payload.get("score", 0.5)
        return Outcome(score)

    async def close(self) -> None:
        await act(self.task.payload.get("close", ""))


class Noop(Environment):
    """Environment whose steps do nothing, for loads."""

    @classmethod
    async def tasks(cls, settings: Any, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        yield {"id": "noop", "question": "do nothing"}

    async def step(self, turn: ModelTurn) -> Reaction:
        return turn.text


async def act(word: str, rest: str = "") -> str:
    """Do what a word says; return what to answer, or nothing."""
    if word == "raise":
        raise ValueError(f"it failed in {os.getcwd()}")
    if word == "hang":
        await asyncio.sleep(3600)
    if word == "sleep":
        await asyncio.sleep(float(rest))
    if word == "block":
        time.sleep(float(rest))
    if word == "spin":
        until = time.thread_time() + float(rest)
        while time.thread_time() < until:
            pass
    if word == "exit":
        os._exit(3)
    if word == "log":
        path, line = rest.split()
        with open(path, "ab", buffering=0) as file:
            file.write(f"{line}\n".encode())
    if word == "pid":
        return str(os.getpid())
    if word == "child":
        # It leaves the group of its parent, too.
        return str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
    if word == "odd":
        return "\ud800"
    return ""
