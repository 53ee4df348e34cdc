"""Batch the requests of many rollouts: a request waits for other requests, never for a timeout.

A batch is generated when every rollout that could still request a completion has done so; rollouts in a tool call are
waited for. Batches are therefore as large as possible, and reproducible. See docs/behaviour/group-rollouts.md, part
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
"""Function that returns completions of the requests, in their order."""


@dataclass(slots=True)
class BatchMembership:
    """Counter of rollouts that may still request a completion.

    Counted are rollouts in a turn, and groups that are about to start their next turns.

    Attributes:
        num_active: Number of counted rollouts and groups, including rollouts that wait for a completion.
    """

    num_active: int = 0
    _on_leave: list[Callable[[], None]] = field(default_factory=list)

    def enter(self, number: int = 1) -> None:
        """Add `number` to the counter."""
        self.num_active += number

    def leave(self, number: int = 1) -> None:
        """Subtract `number` from the counter and notify; the batch may now be complete."""
        self.num_active -= number
        for notify in self._on_leave:
            notify()

    def on_leave(self, notify: Callable[[], None]) -> None:
        """Call `notify` after each `leave`."""
        self._on_leave.append(notify)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    request: CompletionRequest
    answer: asyncio.Future[Completion]


class BatchedModel:
    """Model for rollouts (`treadle.agent.model_types.Model`) that passes requests in batches to a function.

    The function runs in one thread, one call at a time; thread-local state of a library has to be set inside it. If it
    raises, all rollouts of the batch get the error. Use on one event loop.

    Attributes:
        batch_sizes: Number of requests of each batch so far.
    """

    def __init__(self, generate: Generate, membership: BatchMembership, *, max_batch: int | None = None) -> None:
        self._generate = generate
        self._membership = membership
        self._max_batch = max_batch
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="generate")
        self.batch_sizes: list[int] = []
        membership.on_leave(self._start_batch_if_ready)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """Return one completion, generated in a batch with the other rollouts' requests.

        `deadline` is ignored, because the time of a batch includes waiting for other rollouts. Raises the errors of the
        function.
        """
        waiting = _Waiting(request, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._start_batch_if_ready()
        try:
            return await waiting.answer
        finally:
            # A cancelled rollout no longer waits.
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def _start_batch_if_ready(self) -> None:
        if self._task is None and self._waiting and len(self._waiting) >= self._membership.num_active:
            self._task = asyncio.get_running_loop().create_task(self._answer_all())

    async def _answer_all(self) -> None:
        batch, self._waiting = self._waiting, []
        size = self._max_batch or len(batch)
        for start in range(0, len(batch), size):
            # A rollout may have been cancelled in the meantime.
            await self._answer([waiting for waiting in batch[start : start + size] if not waiting.answer.done()])
        self._task = None
        self._start_batch_if_ready()

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        if not batch:
            return
        self.batch_sizes.append(len(batch))
        requests = [waiting.request for waiting in batch]
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._generate, requests)
            if len(answers) != len(batch):
                raise EngineError(f"the generator gave {len(answers)} answers to {len(batch)} requests")
        except Exception as error:  # noqa: BLE001 -- any error is raised in all rollouts of the batch
            for waiting in batch:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
            return
        for waiting, answer in zip(batch, answers, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(answer)
