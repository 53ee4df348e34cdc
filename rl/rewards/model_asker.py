"""Ask a model from inside a training: from an event loop in a thread of its own, about each case only once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.types import Completion, EndpointState
from treadle.core.steady_loop import SteadyLoop
from treadle.core.work_clock import timed_work
from treadle.rl.rewards.verdict_store import V, VerdictStore

T = TypeVar("T")


class ModelAsker(Generic[V]):
    """Chat model with open connections, and what it said about each case.

    `run` and `servers` are for other threads; the coroutines run on the asker's event loop.
    """

    def __init__(self, name: str, settings: ModelSettings, known: VerdictStore[V]) -> None:
        """Prepare to ask over the chat route; `name` is that of the model's table, for messages."""
        self._name = name
        self._settings = settings.model_copy(update={"api": "chat"})
        self._known: VerdictStore[V] = known
        self._asked: dict[str, asyncio.Task[V | None]] = {}
        self._loop = SteadyLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def __enter__(self) -> Self:
        # Engines that use another rule do not import the client.
        from treadle.core.llm.pool import ModelPool

        self._thread.start()
        self._pool = ModelPool(self._name, self._settings)
        self.run(self._pool.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.run(self._pool.__aexit__(None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the asker's event loop, and return its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def servers(self) -> list[tuple[str, EndpointState]]:
        """Return the states of the model's endpoints."""
        return [(self._pool.name, state) for state in self._pool.endpoint_states()]

    @property
    def has_answered(self) -> bool:
        """True once there is a verdict, of this process or of an earlier one."""
        return len(self._known) > 0

    def known(self, digest: str) -> V | None:
        """Return the verdict on a case if there is one, of this process or of an earlier one."""
        return self._known.get(digest)

    async def once(self, digest: str, ask: Callable[[], Awaitable[V | None]]) -> V | None:
        """Return the verdict on a case: the known one, or that of `ask`, which equal cases share.

        A verdict is kept before it is returned. A missing one is not, so a later step may ask again.
        """
        if (known := self.known(digest)) is not None:
            return known
        task = self._asked.get(digest)
        if task is None:
            task = self._asked[digest] = asyncio.ensure_future(self._kept(digest, ask))
            task.add_done_callback(lambda done: self._forget(digest, done))
        return await asyncio.shield(task)

    async def _kept(self, digest: str, ask: Callable[[], Awaitable[V | None]]) -> V | None:
        """Return a new verdict; it is kept even if no caller waits for it any longer."""
        verdict = await ask()
        if verdict is not None:
            self._known.put(digest, verdict)
        return verdict

    def _forget(self, digest: str, done: asyncio.Task[V | None]) -> None:
        del self._asked[digest]
        if not done.cancelled():
            done.exception()  # otherwise asyncio logs it if no caller is left

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], sampling: Sampling, *, seed: int, session: str, limit_s: float
    ) -> Completion:
        """Return a reply; raise DeadlineExceeded after `limit_s`, without waiting for the server, and ModelErrors."""
        with timed_work() as clock:
            deadline = clock.time() + limit_s
            return await self._pool.chat(messages, sampling, seed=seed, session=session, deadline=deadline)
