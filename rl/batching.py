"""Many rollouts, one generator of batches: requests wait for each other, never for a clock.

A batch is generated when nobody is left who could ask for a completion without having got one first: who was in a tool
has asked, too. So batches are as large as they can be, and the same each time. docs/behaviour/group-rollouts.md, part
"Batches".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Self

from treadle.core.errors import EngineError
from treadle.core.llm.types import Completion, CompletionRequest

Generate = Callable[[Sequence[CompletionRequest]], Sequence[Completion]]
"""Completions of some requests, in their order."""


@dataclass(slots=True)
class Attendance:
    """Counts who may still ask a model: rollouts in a turn, and groups that are about to begin their next turns.

    Attributes:
        num_moving: All of them, those who have asked and wait included.
    """

    num_moving: int = 0
    _on_leave: list[Callable[[], None]] = field(default_factory=list)

    def enter(self, number: int = 1) -> None:
        """Count so many more."""
        self.num_moving += number

    def leave(self, number: int = 1) -> None:
        """Count so many less; a batch may be complete by that."""
        self.num_moving -= number
        for notify in self._on_leave:
            notify()

    def on_leave(self, notify: Callable[[], None]) -> None:
        """Be told of everyone who leaves."""
        self._on_leave.append(notify)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    request: CompletionRequest
    answer: asyncio.Future[Completion]


class BatchedModel:
    """A model for rollouts (`treadle.agent.rollout.Model`) over a function that completes batches.

    The function runs in one thread of its own, never twice at once; what of a library's state belongs to a thread is
    to be set inside it. It may raise: all rollouts of the batch then meet its error. Use on one event loop.

    Attributes:
        batch_sizes: Number of requests of each batch so far.
    """

    def __init__(self, generate: Generate, attendance: Attendance, *, max_batch: int | None = None) -> None:
        self._generate = generate
        self._attendance = attendance
        self._max_batch = max_batch
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="generate")
        self.batch_sizes: list[int] = []
        attendance.on_leave(self._look)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """One completion, out of the batch that everyone else's requests make with it.

        `deadline` is not looked at: how long others take says nothing about this one. Raises what the function raises.
        """
        waiting = _Waiting(request, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._look()
        try:
            return await waiting.answer
        finally:
            # A rollout that was cancelled asks no more.
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def _look(self) -> None:
        if self._task is None and self._waiting and len(self._waiting) >= self._attendance.num_moving:
            self._task = asyncio.get_running_loop().create_task(self._answer_all())

    async def _answer_all(self) -> None:
        batch, self._waiting = self._waiting, []
        size = self._max_batch or len(batch)
        for start in range(0, len(batch), size):
            # A rollout may have been cancelled since.
            await self._answer([waiting for waiting in batch[start : start + size] if not waiting.answer.done()])
        self._task = None
        self._look()

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        if not batch:
            return
        self.batch_sizes.append(len(batch))
        requests = [waiting.request for waiting in batch]
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._generate, requests)
            if len(answers) != len(batch):
                raise EngineError(f"the generator gave {len(answers)} answers to {len(batch)} requests")
        except Exception as error:  # noqa: BLE001 -- whatever it is, the rollouts of the batch meet it
            for waiting in batch:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
            return
        for waiting, answer in zip(batch, answers, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(answer)
